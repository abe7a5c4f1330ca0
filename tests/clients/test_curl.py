"""curl through the gateway: no library between the test and the wire."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.clients.fleet import KEY, Fleet, Served, soon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 6, "ignore_eos": True}
JSON = ("-H", "content-type: application/json")


class Ran(NamedTuple):
    """What curl left: its exit code, the body, and what -v tells (`> ` sent, `< ` received)."""

    code: int
    body: str
    trace: str

    @property
    def status(self) -> str:
        """The last status line."""
        return [line for line in self.trace.splitlines() if line.startswith("< HTTP/")][-1][2:].strip()

    def header(self, name: str) -> str | None:
        """A header of the answer."""
        found = [line.partition(":")[2].strip() for line in self.trace.splitlines() if line.lower().startswith(f"< {name}:")]
        return found[-1] if found else None


def command(gateway: Served, path: str, *args: str, key: str = KEY) -> tuple[str, ...]:
    """A command line as in many a manual."""
    return ("curl", "-q", "-sS", "-v", "--noproxy", "*", "-H", f"authorization: Bearer {key}", *args, f"{gateway.url}{path}")


async def curl(gateway: Served, path: str, *args: str, key: str = KEY) -> Ran:
    """Run it to its end."""
    process = await asyncio.create_subprocess_exec(
        *command(gateway, path, *args, key=key), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    body, trace = await asyncio.wait_for(process.communicate(), 10)
    return Ran(process.returncode or 0, body.decode(), trace.decode())


async def test_a_chat(gateway: Served) -> None:
    """JSON in, JSON out."""
    ran = await curl(gateway, "/v1/chat/completions", *JSON, "-d", json.dumps(CHAT))
    assert (ran.code, ran.status) == (0, "HTTP/1.1 200 OK")
    assert json.loads(ran.body)["usage"]["completion_tokens"] == 6
    assert ran.header("content-length") == str(len(ran.body.encode()))


async def test_a_streamed_chat(gateway: Served) -> None:
    """-N shows every event as it was sent, and nothing else, up to [DONE]."""
    ran = await curl(gateway, "/v1/chat/completions", "-N", *JSON, "-d", json.dumps({**CHAT, "stream": True}))
    assert (ran.code, ran.status, ran.header("transfer-encoding")) == (0, "HTTP/1.1 200 OK", "chunked")
    assert (ran.header("cache-control"), ran.header("x-accel-buffering")) == ("no-cache", "no")
    events = ran.body.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: {") for event in events[:-1])
    assert events[-1] == "data: [DONE]"
    assert all(json.loads(event[6:])["choices"] for event in events[:-1])


async def test_events_arrive_when_they_are_made(fleet: Fleet) -> None:
    """Not all at the end: the replica takes 30 ms for each token."""
    asked = json.dumps({**CHAT, "model": "slow", "max_tokens": 20, "stream": True})
    process = await asyncio.create_subprocess_exec(
        *command(fleet.gateway, "/v1/chat/completions", "-N", *JSON, "-d", asked),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    times = [time.monotonic() async for line in process.stdout if line.startswith(b"data: ")]
    assert await process.wait() == 0
    assert times[-1] - times[0] > 0.3


@pytest.mark.parametrize(
    ("path", "args", "key", "status", "code"),
    [
        ("/v1/models", (), "wrong", 401, "invalid_api_key"),
        ("/v1/chat/completions", (*JSON, "-d", "{"), KEY, 400, "invalid_json"),
        ("/v1/chat/completions", (*JSON, "-d", '{"model": "nobody"}'), KEY, 404, "model_not_found"),
        ("/v1/chat/completions", (), KEY, 405, "method_not_allowed"),
        ("/chat/completions", (*JSON, "-d", "{}"), KEY, 404, "unknown_path"),
        ("/v1/realtime", (), KEY, 501, "not_implemented"),
    ],
)
async def test_errors_are_told(gateway: Served, path: str, args: tuple[str, ...], key: str, status: int, code: str) -> None:
    """An error object and its code as a header; --fail-with-body sees the status."""
    ran = await curl(gateway, path, "--fail-with-body", *args, key=key)
    assert (ran.code, ran.status.split()[1], ran.header("x-kvgate-error")) == (22, str(status), code)
    assert json.loads(ran.body)["error"]["code"] == code


async def test_a_long_upload_waits_for_100_continue(gateway: Served, tmp_path: Path) -> None:
    """curl asks before it sends 1.5 MB, is told to go on, and the sound is heard."""
    sound = tmp_path / "a.wav"
    sound.write_bytes(bytes(1_500_000))
    began = time.monotonic()
    ran = await curl(gateway, "/v1/audio/transcriptions", "-H", "expect: 100-continue", "-F", "model=m", "-F", f"file=@{sound}")
    assert time.monotonic() - began < 1  # curl goes on by itself after one second
    assert "> expect: 100-continue" in ran.trace
    assert "< HTTP/1.1 100 Continue" in ran.trace
    assert (ran.code, ran.status.split()[1], bool(json.loads(ran.body)["text"])) == (0, "200", True)


async def test_a_refused_upload_is_never_sent(gateway: Served, tmp_path: Path) -> None:
    """With a wrong key there is no 100: curl keeps the body to itself and shows the error."""
    sound = tmp_path / "a.wav"
    sound.write_bytes(bytes(1_500_000))
    form = ("-H", "expect: 100-continue", "-F", "model=m", "-F", f"file=@{sound}")
    ran = await curl(gateway, "/v1/audio/transcriptions", *form, "-w", "%{stderr}uploaded %{size_upload}", key="wrong")
    assert "100 Continue" not in ran.trace
    assert (ran.code, ran.status.split()[1]) == (0, "401")
    assert ran.trace.endswith("uploaded 0")


async def test_a_refused_upload_that_is_sent_anyway_hears_why(gateway: Served, tmp_path: Path) -> None:
    """Without `expect` the body is on its way when the answer is ready: no reset overtakes it."""
    sound = tmp_path / "a.wav"
    sound.write_bytes(bytes(3_500_000))
    ran = await curl(gateway, "/v1/audio/transcriptions", "-H", "expect:", "-F", "model=m", "-F", f"file=@{sound}", key="wrong")
    assert ran.status.split()[1] == "401"
    assert json.loads(ran.body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0(gateway: Served, *, stream: bool) -> None:
    """No chunks for a client that does not know them; the end of the connection is the end of the stream."""
    ran = await curl(gateway, "/v1/chat/completions", "--http1.0", *JSON, "-d", json.dumps({**CHAT, "stream": stream}))
    assert (ran.code, ran.status.split()[1], ran.header("transfer-encoding")) == (0, "200", None)
    assert ran.body.endswith("data: [DONE]\n\n") if stream else json.loads(ran.body)["choices"]


async def test_one_connection_for_several_requests(gateway: Served) -> None:
    """Answers, streams and errors leave the connection in use."""
    models = command(gateway, "/v1/models")[1:]
    chat = command(gateway, "/v1/chat/completions", *JSON, "-d", json.dumps({**CHAT, "stream": True}))[1:]
    unknown = command(gateway, "/v1/chat/completions", *JSON, "-d", '{"model": "nobody"}')[1:]
    process = await asyncio.create_subprocess_exec(
        "curl", *models, "--next", *chat, "--next", *unknown, "--next", *models,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, trace = await process.communicate()
    assert trace.count(b"< HTTP/1.1 ") == 4
    assert trace.count(b"Connected to 127.0.0.1") == 1


async def test_compressed_answers_are_the_replicas_affair(gateway: Served) -> None:
    """--compressed works, whatever the replica makes of it."""
    ran = await curl(gateway, "/v1/chat/completions", "--compressed", *JSON, "-d", json.dumps(CHAT))
    assert (ran.code, bool(json.loads(ran.body)["choices"])) == (0, True)


async def test_a_killed_curl_frees_the_replica(fleet: Fleet) -> None:
    """Ctrl-C in mid-stream: within a second nobody computes for it."""
    asked = json.dumps({**CHAT, "model": "slow", "max_tokens": 5000, "stream": True})
    process = await asyncio.create_subprocess_exec(
        *command(fleet.gateway, "/v1/chat/completions", "-N", *JSON, "-d", asked),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"data: ")
    assert fleet.replicas["slow"].state["running"] == 1
    process.kill()
    await process.wait()
    soon(lambda: not fleet.replicas["slow"].state["inflight"])
    soon(lambda: not fleet.gateway.total("kvgate_requests_running"))


async def test_an_impatient_curl_frees_the_replica(fleet: Fleet) -> None:
    """--max-time before a whole answer is ready."""
    asked = json.dumps({**CHAT, "model": "slow", "max_tokens": 5000})
    ran = await curl(fleet.gateway, "/v1/chat/completions", "--max-time", "0.3", *JSON, "-d", asked)
    assert ran.code == 28
    soon(lambda: not fleet.replicas["slow"].state["inflight"])
