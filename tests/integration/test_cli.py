"""The `kvgate` command as people and scripts use it: exit codes, one line per fault on stderr, answers on stdout."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.process import COMMAND, ENV, command, kvgate, serving
from tests.integration.scripts import streams
from tests.integration.toolkit import CHAT, DONE, STREAM, Client, ask, ev

if TYPE_CHECKING:
    from pathlib import Path

    Start = Any

GOOD = "models:\n  - name: m\n    replicas:\n      - {url: http://127.0.0.1:9, api_key: sk-hidden}\n"


def admin_of(gateway: Any) -> tuple[str, str]:
    return "--admin", f"http://127.0.0.1:{gateway.ports[1]}"


# -- check ---------------------------------------------------------------------------------------------------------------


async def test_a_good_file_passes(tmp_path: Path) -> None:
    """Exit 0 and one line; `--show` prints what is in effect, without secrets."""
    file = tmp_path / "kvgate.yaml"
    file.write_text(GOOD)
    ran = await command("check", "-c", str(file))
    assert (ran.code, ran.out, ran.err) == (0, f"{file}: ok, 1 model\n", "")
    shown = await command("check", "-c", str(file), "--show")
    assert shown.code == 0
    assert "attempts: 2" in shown.out and "hidden" not in shown.out


async def test_every_fault_of_a_file_is_told_with_its_place(tmp_path: Path) -> None:
    """Exit 2; one line `FILE:LINE: field: fault` each, in the order of the file, nothing on stdout."""
    file = tmp_path / "kvgate.yaml"
    file.write_text(
        "server:\n  port: 99999\nretries:\n  attempts: none\nmodles: []\nmodels:\n  - name: m\n    replicas: [{url: ftp://x}]\n"
    )
    ran = await command("check", "-c", str(file))
    assert (ran.code, ran.out) == (2, "")
    lines = ran.err.splitlines()
    starts = ["2: server.port: ", "4: retries.attempts: ", "5: modles: ", "8: models[0].replicas[0].url: "]
    assert [line.removeprefix(f"{file}:").startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 4, lines
    assert all("allowed" in line or "did you mean" in line for line in lines), lines


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["check"], "--config"),
        (["check", "-c", "/nowhere/kvgate.yaml"], "/nowhere/kvgate.yaml"),
        (["serve"], "--replica"),
        (["serve", "-c", "/nowhere/kvgate.yaml"], "/nowhere/kvgate.yaml"),
        (["serve", "--replica", "not a url"], "--replica"),
        (["serve", "--replica", "http://127.0.0.1:9", "--policy", "nope"], "--policy"),
        (["serve", "--replica", "http://127.0.0.1:9", "--port", "x"], "--port"),
        (["nope"], "nope"),
        (["status", "--nope"], "--nope"),
        (["explain"], "request_id"),
        (["drain"], "replica_id"),
    ],
)
async def test_wrong_usage_is_exit_2_in_one_line(args: list[str], says: str) -> None:
    """No traceback, and a word on what was wrong."""
    ran = await command(*args)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1, ran.err


async def test_the_commands_describe_themselves() -> None:
    """Version and help on stdout, exit 0; every command in the help works with `--help`."""
    assert (await command("--version")).out.startswith("kvgate ")
    top = await command("--help")
    assert top.code == 0
    for name in ("serve", "check", "demo", "status", "explain", "drain", "undrain"):
        assert f"  {name}" in top.out
        told = await command(name, "--help")
        assert (told.code, told.err) == (0, "") and "Usage: kvgate" in told.out


# -- serve ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
async def test_a_port_in_use_ends_the_start_in_one_line(option: str) -> None:
    """Exit 1, naming the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        others = {"--port": "0", "--admin-port": "0", option: port}
        ran = await kvgate("serve", "--replica", "http://127.0.0.1:9", *(word for pair in others.items() for word in pair))
    assert (ran.code, ran.out) == (1, "")
    [line] = ran.err.splitlines()
    assert line.startswith("kvgate serve: ") and f"127.0.0.1:{port}" in line


async def test_proxies_of_the_environment_are_for_the_internet(replica: Start, tmp_path: Path) -> None:
    """HTTP_PROXY does not swallow traffic to replicas, and an odd NO_PROXY does not keep the gateway from starting."""
    r1 = await replica()
    env = {
        "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9",
        "NO_PROXY": "localhost,::1,[::1],fe80::/10",
    }  # fmt: skip
    async with serving(tmp_path / "kvgate.yaml", {"models": [{"name": "m", "replicas": [{"url": r1.url}]}]}, env=env) as served:
        assert (await ask(served)).status == 200
        ran = await kvgate("status", "--admin", served.admin, env=env)
        assert (ran.code, "r1" in ran.out) == (0, True)
    assert len(r1.requests) == 1


async def test_options_replace_the_file(replica: Start, tmp_path: Path) -> None:
    """`--replica` instead of the file's models, with detected names."""
    r1 = await replica(models=[{"id": "found", "owned_by": "vllm"}])
    async with serving(tmp_path / "kvgate.yaml", {"models": [{"name": "old"}]}, "--replica", r1.url, "--policy", "round_robin") as served:
        assert (await ask(served, {**CHAT, "model": "found"})).status == 200
        assert (await ask(served, {**CHAT, "model": "old"})).status == 404
        told = json.loads((await command("status", "--admin", served.admin, "--json")).out)
        assert (told["policy"], told["replicas"][0]["origin"]) == ("round_robin", "discovered")


async def test_the_start_warns_of_an_open_door(tmp_path: Path) -> None:
    """Listening to the network without keys is allowed and said."""
    async with serving(tmp_path / "kvgate.yaml", {"models": [{"name": "m"}], "server": {"host": "0.0.0.0"}}) as served:
        assert any("anyone who can reach port" in line for line in served.lines)
        assert any("has no replicas" in line for line in served.lines)


# -- talking to a running gateway ----------------------------------------------------------------------------------------


async def test_status_shows_every_replica(replica: Start, gateway: Start) -> None:
    """A table for people, with what is wrong below it; JSON for scripts."""
    running = await gateway(await replica(), await replica(health=503))
    await ask(running)
    ran = await command("status", *admin_of(running))
    assert (ran.code, ran.err) == (0, "")
    rows = ran.out.splitlines()
    assert any(row.startswith("r1 ") and " vllm 0.32.0 " in row and " up " in row for row in rows)
    assert any(row.startswith("r2 ") for row in rows)
    assert any(row.startswith("r2: ") and "503" in row for row in rows)
    told = json.loads((await command("status", *admin_of(running), "--json")).out)
    assert [row["id"] for row in told["replicas"]] == ["r1", "r2"]


async def test_a_replica_is_drained_and_taken_back(replica: Start, gateway: Start) -> None:
    """And status says so in between."""
    running = await gateway(await replica(), await replica())
    assert (await command("drain", "r1", *admin_of(running))).out == "r1: draining; running requests finish\n"
    assert {(await ask(running)).headers["x-kvgate-replica"] for _ in range(4)} == {"r2"}
    assert "drain" in (await command("status", *admin_of(running))).out
    assert (await command("undrain", "r1", *admin_of(running))).out == "r1: in service\n"
    assert all(row.state == "up" for row in running.table.snapshot(running.now()))
    ran = await command("drain", "r9", *admin_of(running))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    assert "'r9'" in ran.err


async def test_explain_shows_why(replica: Start, gateway: Start) -> None:
    """Candidates with their terms, prediction and truth, also for ids with slashes; JSON for scripts; 1 for an unknown id."""
    usage = {"prompt_tokens": 900, "completion_tokens": 3, "total_tokens": 903, "prompt_tokens_details": {"cached_tokens": 512}}
    script = streams(ev("a"), ev("", choices=[], usage=usage), DONE)
    running = await gateway(await replica(script), await replica(script))
    await ask(running, STREAM, headers="x-request-id: chat/1\r\n")
    ran = await command("explain", "chat/1", *admin_of(running))
    assert (ran.code, ran.err) == (0, "")
    for word in ("prefix", "queue", "score", "> r", "512 of 900", "first token after", "ok"):
        assert word in ran.out, word
    told = json.loads((await command("explain", "chat/1", *admin_of(running), "--json")).out)
    assert told["tries"][0]["actual"]["cached_tokens"] == 512
    unknown = await command("explain", "nope", *admin_of(running))
    assert (unknown.code, unknown.out, len(unknown.err.splitlines())) == (1, "", 1)


async def test_a_request_nobody_could_take_is_explained(gateway: Start) -> None:
    """With what each replica lacked."""
    running = await gateway(models=[{"name": "m", "replicas": [{"url": "http://127.0.0.1:9"}]}])
    running.drain("r1", draining=True)
    await ask(running, headers="x-request-id: none\r\n")
    ran = await command("explain", "none", *admin_of(running))
    assert ran.code == 0
    assert "no replica" in ran.out and "draining" in ran.out and "no_replica_ready" in ran.out


async def test_a_token_is_sent_from_option_or_environment(replica: Start, gateway: Start) -> None:
    """Without it the gateway's own words are the error."""
    running = await gateway(await replica(), server={"admin": {"port": 0, "token": "t-0123456789"}})
    refused = await command("status", *admin_of(running))
    assert (refused.code, "token" in refused.err) == (1, True)
    assert (await command("status", *admin_of(running), "--token", "t-0123456789")).code == 0
    env = {"KVGATE_ADMIN": f"127.0.0.1:{running.ports[1]}", "KVGATE_ADMIN_TOKEN": "t-0123456789"}
    assert (await command("status", env=env)).code == 0


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9", "127.0.0.1:9", "http://no-such-host.invalid:1", "ftp://x", "http://127.0.0.1:notaport", ""]
)
async def test_a_gateway_that_does_not_answer_is_one_line(address: str) -> None:
    """Exit 1, the address, and a hint."""
    ran = await command("status", "--admin", address)
    assert (ran.code, ran.out) == (1, "")
    [line] = ran.err.splitlines()
    assert "no gateway answers" in line and "--admin" in line


async def test_another_server_at_the_admin_address_is_told(replica: Start, gateway: Start) -> None:
    """The public port, or something that is no gateway at all."""
    running = await gateway(await replica())
    for port in (running.ports[0], (await replica()).port):
        ran = await command("status", "--admin", f"http://127.0.0.1:{port}")
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
        assert "Traceback" not in ran.err


async def test_output_can_be_cut_short(replica: Start, gateway: Start) -> None:
    """`kvgate status | head -0` is no error to talk about."""
    running = await gateway(await replica())
    line = f"{COMMAND} status --admin http://127.0.0.1:{running.ports[1]} | true"
    process = await asyncio.create_subprocess_shell(line, env=ENV, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    assert b"Traceback" not in err and b"Error" not in err


async def test_the_gateway_serves_with_no_file_at_all(replica: Start) -> None:
    """`kvgate serve --replica URL` listens on this machine only, and stops at SIGTERM with exit 0."""
    r1 = await replica()
    args = ["serve", "--replica", r1.url, "--port", "0", "--admin-port", "0"]
    process = await asyncio.create_subprocess_exec(COMMAND, *args, env=ENV, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None and process.stdout is not None
    text = ""
    while "serving" not in text:
        text = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
    port = int(text.split("public=127.0.0.1:")[1].split()[0])
    async with Client(port) as client:
        await client.post("/v1/chat/completions", CHAT)
        assert (await client.reply()).status == 200
    process.terminate()
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    assert b" 200 chat_completions m r1 " in out
    assert b"Traceback" not in err
