"""New settings for a running gateway: what they change, what they must not disturb, and that a bad file changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gateway.app import Gateway
from gateway.settings import load
from tests.integration.process import serving, write
from tests.integration.scripts import streams
from tests.integration.toolkit import CHAT, DONE, STREAM, Client, Conn, admin, ask, ev, eventually, refused, total

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.toolkit import Scripted

    Start = Any


def fleet(*replicas: Scripted, **sections: Any) -> dict[str, Any]:
    entries = [{"id": f"at{r.port}", "url": r.url} for r in replicas]
    return {"models": [{"name": "m", "replicas": entries}], "health": {"interval_s": 0.1}, **sections}


class Reloadable:
    """A gateway in this process whose settings come from a file."""

    def __init__(self, stack: AsyncExitStack, file: Path) -> None:
        self._stack = stack
        self.file = file
        self.gateway: Gateway

    async def start(self, settings: dict[str, Any]) -> Gateway:
        write(self.file, settings)
        self.gateway = Gateway(load(self.file), lambda: load(self.file), watch=self.file)
        await self.gateway.start()
        self._stack.push_async_callback(self.gateway.stop)
        return self.gateway

    def write(self, settings: dict[str, Any]) -> None:
        write(self.file, settings)

    async def reload(self) -> Any:
        return await admin(self.gateway, "/admin/reload", "POST", {})


@pytest.fixture
def reloadable(stack: AsyncExitStack, tmp_path: Path) -> Reloadable:
    return Reloadable(stack, tmp_path / "kvgate.yaml")


async def where(gateway: Any, times: int = 8) -> set[str]:
    return {(await ask(gateway, {**CHAT, "user": str(i)})).headers["x-kvgate-replica"] for i in range(times)}


async def test_replicas_change_under_a_running_stream(replica: Start, reloadable: Reloadable) -> None:
    """A stream on a removed replica ends normally, new requests go to the new ones, and what stays keeps what is known of it."""
    go = asyncio.Event()

    async def script(conn: Conn) -> None:
        if conn.request.json().get("stream"):
            await conn.stream(ev("a"), end=b"")
            await go.wait()
            tail = ev("b") + DONE
            await conn.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(tail), tail))
        else:
            await conn.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    r1, r2, r3 = [await replica(script) for _ in range(3)]
    gateway = await reloadable.start(fleet(r1, r2, routing={"policy": "round_robin"}))
    prompt = {**CHAT, "messages": [{"role": "user", "content": "once upon a time " * 300}]}
    for _ in range(2):
        await ask(gateway, prompt)
    state = gateway.table.replica(f"at{r2.port}")
    blocks = gateway.router.index_blocks()[f"at{r2.port}"]
    async with Client(gateway.ports[0]) as client:
        while (await where(gateway, 1)) != {f"at{r2.port}"}:  # so that the stream goes to the first
            pass
        await client.post("/v1/chat/completions", STREAM)
        await eventually(lambda: any(r.json().get("stream") for r in r1.requests))
        reloadable.write(fleet(r2, r3, routing={"policy": "round_robin"}))
        reply = await reloadable.reload()
        assert (reply.status, reply.json()["changed"]) == (
            200,
            [f"models[m].replicas[at{r.port}]" for r in sorted((r1, r3), key=lambda r: r.port)],
        )
        assert [row.state for row in gateway.table.snapshot(gateway.now()) if row.id == f"at{r1.port}"] == ["draining"]
        await eventually(lambda: len(gateway.table.candidates("m", gateway.now())[0]) == 2)
        assert await where(gateway) == {f"at{r2.port}", f"at{r3.port}"}
        go.set()
        stream = await client.reply()
    assert (stream.complete, stream.body) == (True, ev("a") + ev("b") + DONE)
    assert gateway.table.replica(f"at{r2.port}") is state
    assert gateway.router.index_blocks()[f"at{r2.port}"] >= blocks
    await eventually(lambda: {row.id for row in gateway.table.snapshot(gateway.now())} == {f"at{r2.port}", f"at{r3.port}"})


BROKEN = [
    ("syntax", "models: [\n", "kvgate.yaml:2"),
    ("unknown key", "modles: []\n", "modles"),
    ("bad value", "retries: {attempts: -1}\n", "retries.attempts"),
    ("not available", "routing: {policy: least_delay}\n", "not available in this version"),
    ("not a mapping", "- 1\n", "not a mapping"),
    ("certificate", "server: {tls: {cert: /nowhere.pem, key: /nowhere.key}}\n", "server.tls.cert"),
    ("log file", "log: {requests: /nowhere/log}\n", "log.requests"),
    ("variable", "server: {api_keys: ['${NO_SUCH_VARIABLE_HERE}']}\n", "NO_SUCH_VARIABLE_HERE"),
]


@pytest.mark.parametrize(("text", "says"), [pytest.param(text, says, id=name) for name, text, says in BROKEN])
async def test_a_bad_file_changes_nothing_and_is_told(replica: Start, reloadable: Reloadable, text: str, says: str) -> None:
    """400 with file, line and field; the old settings go on, the metric says so, and a good file heals it."""
    r1 = await replica()
    gateway = await reloadable.start(fleet(r1, server={"api_keys": ["k"]}))
    before = gateway.settings
    reloadable.file.write_text(text)
    reply = await reloadable.reload()
    assert reply.status == 400
    assert any(says in fault for fault in reply.json()["faults"]) and says in reply.json()["detail"]
    assert gateway.settings is before
    assert (await ask(gateway, headers="x-api-key: k\r\n")).status == 200
    refused(await ask(gateway), 401, "invalid_api_key")
    assert total(gateway, "kvgate_config_last_reload_successful") == 0
    assert total(gateway, "kvgate_config_reloads_total", result="failed") >= 1
    reloadable.write(fleet(r1))
    assert (await reloadable.reload()).status == 200
    assert total(gateway, "kvgate_config_last_reload_successful") == 1
    assert (await ask(gateway)).status == 200


async def test_a_missing_file_changes_nothing(replica: Start, reloadable: Reloadable) -> None:
    """A file that is gone is a fault, not an empty configuration."""
    gateway = await reloadable.start(fleet(await replica()))
    reloadable.file.unlink()
    assert (await reloadable.reload()).status == 400
    assert (await ask(gateway)).status == 200


async def test_new_settings_take_effect_at_once(replica: Start, reloadable: Reloadable) -> None:
    """Keys, limits, CORS, revealing, relayed paths, usage injection, replica keys: each without a restart."""
    r1 = await replica(streams(ev("a"), DONE))
    gateway = await reloadable.start(fleet(r1))
    assert (await ask(gateway, path="/v1/classify")).status == 404
    new = fleet(r1, usage={"inject": False}, limits={"headers": 20})
    new["models"][0]["replicas"][0] |= {"api_key": "sk-own-key", "max_inflight": 7}
    new["models"][0]["aliases"] = ["gpt-x"]
    new["server"] = {
        "api_keys": ["k"], "cors_origins": ["https://app.example"], "reveal": False, "relay_paths": ["/v1/classify"], "max_body_bytes": 200,
    }  # fmt: skip
    reloadable.write(new)
    changed = (await reloadable.reload()).json()["changed"]
    assert {"server.reveal", "usage.inject", "limits.headers", "models[m].aliases"} <= set(changed)
    refused_reply = await ask(gateway)
    assert (refused_reply.status, "x-kvgate-error" in refused_reply.headers) == (401, False)
    key = "x-api-key: k\r\norigin: https://app.example\r\n"
    reply = await ask(gateway, {**STREAM, "model": "gpt-x"}, "/v1/classify", key)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert not any(name.startswith("x-kvgate-") for name in reply.headers)
    assert (await ask(gateway, STREAM, headers=key)).status == 200
    assert r1.requests[-1].json() == STREAM
    assert r1.requests[-1].header("authorization") == "Bearer sk-own-key"
    assert (await ask(gateway, {**CHAT, "x": "y" * 300}, headers=key)).status == 413
    assert (await ask(gateway, headers=key + "x: y\r\n" * 30)).status == 431


async def test_what_needs_a_restart_is_said_and_left(replica: Start, reloadable: Reloadable, capfd: pytest.CaptureFixture[str]) -> None:
    """Ports stay as they are; a warning names the setting."""
    r1 = await replica()
    gateway = await reloadable.start(fleet(r1))
    reloadable.write(fleet(r1, server={"port": 1}))
    assert (await reloadable.reload()).json()["changed"] == ["server.port"]
    assert (await ask(gateway)).status == 200
    assert '"setting":"server.port"' in capfd.readouterr().err


async def test_a_replica_added_by_hand_survives_a_reload(replica: Start, reloadable: Reloadable) -> None:
    """Unless the new file takes its id: then the file is refused."""
    r1, extra = await replica(), await replica()
    gateway = await reloadable.start(fleet(r1, routing={"policy": "round_robin"}))
    await admin(gateway, "/admin/replicas", "POST", {"model": "m", "url": extra.url, "id": "extra"})
    await eventually(lambda: len(gateway.table.candidates("m", gateway.now())[0]) == 2)
    reloadable.write(fleet(r1, routing={"policy": "round_robin"}, retries={"attempts": 3}))
    assert (await reloadable.reload()).status == 200
    assert await where(gateway) == {f"at{r1.port}", "extra"}
    clash = fleet(r1)
    clash["models"][0]["replicas"][0]["id"] = "extra"
    reloadable.write(clash)
    reply = await reloadable.reload()
    assert (reply.status, "extra" in reply.json()["detail"]) == (400, True)
    assert await where(gateway) == {f"at{r1.port}", "extra"}


async def test_a_changed_file_is_taken_over_by_itself(replica: Start, reloadable: Reloadable) -> None:
    """Written in place or replaced, as editors and Kubernetes do."""
    r1 = await replica()
    gateway = await reloadable.start(fleet(r1))
    await asyncio.sleep(0.3)  # the watch begins
    reloadable.write(fleet(r1, retries={"attempts": 3}))
    await eventually(lambda: gateway.settings.retries.attempts == 3, within=8)
    other = reloadable.file.with_name("new.yaml")
    write(other, fleet(r1, retries={"attempts": 4}))
    other.rename(reloadable.file)
    await eventually(lambda: gateway.settings.retries.attempts == 4, within=8)
    reloadable.file.write_text("modles: 1\n")
    await eventually(lambda: total(gateway, "kvgate_config_reloads_total", result="failed"), within=8)
    assert (await ask(gateway)).status == 200


async def test_a_hangup_signal_reloads(replica: Start, tmp_path: Path) -> None:
    """SIGHUP to the process, with faults in its log and no harm done."""
    r1, r2 = await replica(), await replica()
    file = tmp_path / "kvgate.yaml"
    async with serving(file, fleet(r1)) as served:
        assert await where(served, 1) == {f"at{r1.port}"}
        file.write_text("modles: 1\n")
        os.kill(served.process.pid, signal.SIGHUP)
        await eventually(lambda: any("modles" in line and "not reloaded" in line for line in served.lines), within=8)
        write(file, fleet(r2))
        os.kill(served.process.pid, signal.SIGHUP)
        await eventually(lambda: any('"configuration reloaded"' in line for line in served.lines), within=8)
        async with Client(served.ports[0]) as client, asyncio.timeout(8):
            status = 503  # until the new replica has been looked at
            while status != 200:
                await client.get("/readyz?model=m")
                status = (await client.reply()).status
        assert await where(served, 3) == {f"at{r2.port}"}
        assert served.process.returncode is None
        assert not any("Traceback" in json.loads(line).get("exception", "") for line in served.lines)
