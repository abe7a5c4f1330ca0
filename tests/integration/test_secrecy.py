"""Keys, tokens, addresses and prompts stay out of everything that is written or shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.app import Gateway
from gateway.settings import Settings
from tests.integration.process import command, write
from tests.integration.toolkit import CHAT, STREAM, Client, Conn, Reply, admin, ask, eventually, http

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.toolkit import Scripted

    Start = Any

CLIENT, WRONG, OWN, HEADER, TOKEN, QUERY = (
    "sk-client-111111",
    "sk-wrong-222222",
    "sk-own-333333",
    "sk-head-444444",
    "t-555555",
    "sk-query-666666",
)
PROMPT = "my diary of that day"


async def indiscreet(conn: Conn) -> None:
    """Repeats what it was sent, in all kinds of errors."""
    told = json.dumps({"error": {"message": f"{conn.request.headers} {conn.request.body!r}"}}).encode()
    body = conn.request.body
    if b"die" in body:
        await conn.rst()
    elif b"nonsense" in body:
        await conn.send(f"{conn.request.headers}\r\n\r\n".encode())
    else:
        await conn.send(http(401 if b"auth" in body else 500 if b"fail" in body else 200, told))


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
@pytest.mark.parametrize("form", ["console", "json"])
async def test_nothing_secret_is_written_or_shown(replica: Start, stack: Any, capfd: Any, level: str, form: str) -> None:
    """Whatever goes wrong, at every level and in both formats: logs, metrics, the admin port and our own errors tell no secret."""
    r1: Scripted = await replica(indiscreet)
    entry = {"url": r1.url, "api_key": OWN, "headers": {"x-tenant-secret": HEADER}}
    server = {"host": "127.0.0.1", "port": 0, "api_keys": [CLIENT], "admin": {"port": 0, "token": TOKEN}}
    log = {"level": level, "format": form, "requests": "stdout"}
    gateway = Gateway(Settings.model_validate({"server": server, "log": log, "models": [{"name": "m", "replicas": [entry]}]}))
    await gateway.start()
    stack.push_async_callback(gateway.stop)
    ours: list[Reply] = []
    for case in ("fine", "auth", "fail", "die", "nonsense"):
        body = {**CHAT, "messages": [{"role": "user", "content": f"{PROMPT} {case}"}]}
        reply = await ask(gateway, body, f"/v1/chat/completions?key={QUERY}", f"authorization: Bearer {CLIENT}\r\n")
        ours += [reply] if "x-kvgate-error" in reply.headers else []
    ours.append(await ask(gateway, {**CHAT, "model": CLIENT}, headers=f"x-api-key: {CLIENT}\r\nx-request-id: {OWN}\r\n"))
    ours.append(await ask(gateway, headers=f"authorization: Bearer {WRONG}\r\n"))
    ours.append(await ask(gateway, b'{"' + PROMPT.encode(), headers=f"api-key: {CLIENT}\r\n"))
    ours.append(await ask(gateway, path=f"/v1/{WRONG}?key={QUERY}", headers=f"api-key: {CLIENT}\r\n"))
    assert {"upstream_auth", "invalid_api_key", "invalid_json"} <= {r.headers["x-kvgate-error"] for r in ours}
    async with Client(gateway.ports[0]) as client:
        await client.send(f"BREW /{QUERY} HTTP/1.1\r\nhost: {OWN}\r\nauthorization: {WRONG}\r\n\r\n".encode())
        ours.append(await client.reply())
    pages = [
        await admin(gateway, path, headers=f"authorization: Bearer {token}\r\n")
        for path in ("/metrics", "/admin/replicas", "/admin/decisions", "/admin/config", "/admin/explain/x", "/openapi.json")
        for token in (TOKEN, WRONG)
    ]
    gateway.request_log.flush(1)
    out, err = capfd.readouterr()
    shown = {
        "logs": out + err,
        "pages": "".join(page.body.decode() for page in pages),
        "errors": "".join(reply.body.decode() + str({k: v for k, v in reply.headers.items() if k != "x-request-id"}) for reply in ours),
    }
    assert level != "info" or "chat_completions" in shown["logs"]
    for place, text in shown.items():
        for secret in (OWN, HEADER, TOKEN, QUERY, PROMPT):
            assert secret not in text, (place, secret)
        assert place == "errors" or WRONG not in text, place
        assert place == "errors" or CLIENT not in text, place
        assert "Traceback" not in text
    assert f":{r1.port}" not in shown["errors"]


async def test_credentials_in_an_address_are_refused_without_being_repeated(tmp_path: Path) -> None:
    """`check` and the start say what to do instead."""
    file = tmp_path / "kvgate.yaml"
    write(file, {"models": [{"name": "m", "replicas": [{"url": "http://user:sk-secret-1@127.0.0.1:9"}]}]})
    ran = await command("check", "-c", str(file))
    assert (ran.code, "api_key" in ran.err) == (2, True)
    assert "sk-secret-1" not in ran.out + ran.err
    option = await command("serve", "--replica", "http://user:sk-secret-1@127.0.0.1:9")
    assert (option.code, "sk-secret-1" in option.err) == (2, False)


async def test_a_replica_s_refusal_of_our_key_is_not_shown(replica: Start, gateway: Start) -> None:
    """The client learns that it is the operator's fault, not which key it was."""
    running = await gateway(await replica(indiscreet), r1={"api_key": OWN})
    reply = await ask(running, {**STREAM, "x": "auth"})
    assert (reply.status, reply.headers["x-kvgate-error"]) == (502, "upstream_auth")
    assert OWN not in reply.body.decode()


async def test_odd_names_cannot_forge_log_lines(replica: Start, stack: Any, capfd: Any) -> None:
    """A model's name with line ends and terminal codes is one harmless word in one line."""
    r1 = await replica()
    server = {"host": "127.0.0.1", "port": 0, "admin": {"port": 0}}
    gateway = Gateway(Settings.model_validate({"server": server, "models": [{"name": "m", "replicas": [{"url": r1.url}]}]}))
    await gateway.start()
    stack.push_async_callback(gateway.stop)
    await ask(gateway, {**CHAT, "model": "x\n12:00:00.000 200 forged\x1b[2J"})
    await eventually(lambda: not gateway.service.running)
    gateway.request_log.flush(1)
    out, _ = capfd.readouterr()
    assert "\x1b[2J" not in out
    assert not any(line.startswith("12:00:00.000 200 forged") for line in out.splitlines())
