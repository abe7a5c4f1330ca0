"""The `kvgate` command. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration; errors are one line on stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway import __version__

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Admin = Annotated[str, typer.Option("--admin", envvar="KVGATE_ADMIN", help="Admin port of the running gateway.")]
Token = Annotated[str | None, typer.Option("--token", envvar="KVGATE_ADMIN_TOKEN", help="server.admin.token, where one is set.")]
ReplicaId = Annotated[str, typer.Argument(help="Id of the replica, as `kvgate status` shows it.")]
ADMIN = "http://127.0.0.1:9090"

# What wrong usage raises. Typer has a copy of click inside, older versions use the package: this is right for both.
_USAGE: Any = typer.BadParameter.__bases__


class CommandError(Exception):
    """Ends a command with one line on stderr and this exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def main() -> None:
    """Entry point of the console script."""
    try:
        code = app(prog_name="kvgate", standalone_mode=False)
        sys.stdout.flush()
    except CommandError as error:
        print(error, file=sys.stderr)
        code = error.code
    except _USAGE as error:
        print(f"kvgate: {error.format_message()}", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        # The reader, `head` perhaps, has seen enough; what is still buffered must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _version(show: bool) -> None:
    if show:
        print(f"kvgate {__version__} ({'pure Python' if _interpreted() else 'compiled'})")
        raise typer.Exit


def _interpreted() -> bool:
    """Do the modules that wheels hold in compiled form run from their source?"""
    from gateway.routing import index

    return index.__file__.endswith(".py")


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001  # its callback acts on it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """KV-cache-aware gateway for self-hosted LLM replicas."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit(2)


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="YAML configuration file.")] = None,
    replica: Annotated[list[str] | None, typer.Option(help="URL of a replica; engine and models are detected. Repeatable.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the public port; 127.0.0.1 when there is no file.")] = None,
    port: Annotated[int | None, typer.Option(help="Public port; 0 takes a free one.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Admin port; 0 takes a free one.")] = None,
    policy: Annotated[str | None, typer.Option(help="weighted, least_request, round_robin or session.")] = None,
) -> None:
    """Run the gateway."""
    from gateway.cli.serve import run

    run(config, tuple(replica or ()), host, port, admin_port, policy)


@app.command()
def check(
    config: Annotated[Path, typer.Option("-c", "--config", help="YAML configuration file.")],
    show: Annotated[bool, typer.Option("--show", help="Print the effective settings, secrets masked.")] = False,
) -> None:
    """Validate a configuration file; every fault with its line."""
    from gateway.cli.serve import check_file

    check_file(config, show=show)


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Exit after the demonstration.")] = False,
    port: Annotated[int, typer.Option(help="Public port; 0 takes a free one.")] = 8080,
    admin_port: Annotated[int, typer.Option(help="Admin port; 0 takes a free one.")] = 9090,
) -> None:
    """Simulated replicas, the gateway, a conversation.

    Starts three simulated replicas and a gateway, holds a conversation through it, and tells which replica served each turn and why.
    """
    from gateway.cli.demo import run

    run(once=once, port=port, admin_port=admin_port)


@app.command()
def status(admin: Admin = ADMIN, token: Token = None, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Replicas, their state and load, and what is missing or wrong."""
    from gateway.cli.operate import status as show

    show(admin, token, as_json=json)


@app.command()
def explain(
    request_id: Annotated[str, typer.Argument(help="The x-request-id of any response.")],
    admin: Admin = ADMIN,
    token: Token = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Why a request went where it went."""
    from gateway.cli.operate import explain as show

    show(request_id, admin, token, as_json=json)


@app.command()
def drain(replica_id: ReplicaId, admin: Admin = ADMIN, token: Token = None) -> None:
    """Send a replica nothing new; its running requests finish."""
    from gateway.cli.operate import set_draining

    set_draining(replica_id, admin, token, draining=True)


@app.command()
def undrain(replica_id: ReplicaId, admin: Admin = ADMIN, token: Token = None) -> None:
    """Take a drained replica back into service."""
    from gateway.cli.operate import set_draining

    set_draining(replica_id, admin, token, draining=False)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def simulate(ctx: typer.Context) -> None:
    """One simulated replica with vLLM's HTTP API."""
    from replicas.simulator import main as simulator
    from replicas.simulator import parse_options

    raise typer.Exit(simulator(parse_options(ctx.args)) or 0)
