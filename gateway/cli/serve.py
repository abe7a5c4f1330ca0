"""`kvgate serve` and `kvgate check`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gateway.cli import CommandError
from gateway.settings import Overrides, Settings, SettingsError, load
from gateway.settings import show as show_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run(
    config: Path | None, replicas: tuple[str, ...], host: str | None, port: int | None, admin_port: int | None, policy: str | None
) -> None:
    """Serve until told to stop."""
    if config is None and not replicas:
        raise CommandError("kvgate serve: give -c FILE, or --replica URL at least once", 2)
    overrides = Overrides(replicas=replicas, host=host, port=port, admin_port=admin_port, policy=policy)

    def read() -> Settings:
        return load(config, overrides=overrides, env=os.environ)

    settings = checked(read)
    import uvloop

    from gateway.app import Gateway

    async def body() -> None:
        await Gateway(settings, read, watch=config).run()

    try:
        uvloop.run(body())
    except OSError as error:
        raise CommandError(f"kvgate serve: {error.strerror or error}") from None


def check_file(config: Path, *, show: bool) -> None:
    """Validate; print the effective settings when asked."""
    settings = checked(lambda: load(config, overrides=Overrides(), env=os.environ))
    count = len(settings.models)
    print(show_settings(settings) if show else f"{config}: ok, {count} model{'' if count == 1 else 's'}")


def checked(read: Callable[[], Settings]) -> Settings:
    """Settings, or a command error with one line for each fault."""
    try:
        return read()
    except SettingsError as error:
        raise CommandError("\n".join(str(f) for f in error.faults), 2) from None
