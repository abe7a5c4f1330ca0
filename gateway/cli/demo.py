"""`kvgate demo`: three simulated replicas, the gateway, and a conversation that sticks to its replica until that one is drowned."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import uvloop

from gateway.app import Gateway
from gateway.cli import CommandError
from gateway.cli.tables import candidates_text
from gateway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODEL = "demo-8b"
REPLICAS = ("a", "b", "c")
# A long system prompt shared by every turn: about 1,500 tokens that only one replica will have to prefill.
HANDBOOK = "You answer questions for the city library. " + " ".join(
    f"Rule {n}: a book from shelf {n} may be kept for {7 + n % 21} days, renewed {n % 4} times, "
    f"and costs {5 + n % 9} cents a day when late."
    for n in range(1, 46)
)
QUESTIONS = ("How long may I keep a book from shelf 12?", "And may I renew it?", "What does it cost when I forget it?")


def run(*, once: bool, port: int, admin_port: int) -> None:
    """Run the demonstration; keep serving unless `once`."""
    try:
        uvloop.run(_demo(once=once, port=port, admin_port=admin_port))
    except OSError as error:
        raise CommandError(f"kvgate demo: {error.strerror or error}; choose other ports with --port and --admin-port") from None


async def _demo(*, once: bool, port: int, admin_port: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(_simulator(i)) for i in range(len(REPLICAS))]
        gateway = Gateway(_settings(urls, port, admin_port))
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        await _show(gateway, session, dict(zip(REPLICAS, urls, strict=True)))
        if once:
            return
        _hint(gateway)
        await _until_stopped()
        print("\nstopping…")


def _settings(urls: list[str], port: int, admin_port: int) -> Settings:
    replicas = [{"id": name, "url": url} for name, url in zip(REPLICAS, urls, strict=True)]
    return Settings.model_validate(
        {
            "server": {"host": "127.0.0.1", "port": port, "admin": {"port": admin_port}, "shutdown": {"timeout_s": 5}},
            "models": [{"name": MODEL, "aliases": ["gpt-4o-mini"], "replicas": replicas}],
            "log": {"level": "error", "requests": "off"},
        }
    )


@contextlib.asynccontextmanager
async def _simulator(index: int) -> AsyncIterator[str]:
    """One simulated replica as a process of its own; yields its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "replicas.simulator", "--port", "0", "--model", MODEL, "--preset", "demo", "--seed", str(index),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode().split()
        if not line:
            raise CommandError("kvgate demo: a simulated replica did not start")
        yield line[-1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@dataclass
class Turn:
    """One answered question."""

    text: str
    request_id: str
    replica: str
    prefix_hit: str
    ttft_s: float
    usage: dict[str, Any] = field(default_factory=dict)


async def _show(gateway: Gateway, session: aiohttp.ClientSession, urls: dict[str, str]) -> None:
    print(f"gateway on http://127.0.0.1:{gateway.ports[0]}, three simulated replicas: {', '.join(REPLICAS)}\n")
    messages: list[dict[str, str]] = [{"role": "system", "content": HANDBOOK}]
    last = None
    for number, question in enumerate(QUESTIONS, 1):
        last = await _turn(gateway, session, messages, question, number)
    assert last is not None
    print(f"\nNow replica {last.replica} is drowned by {_FLOOD} long prompts sent to it past the gateway …")
    flood = await _drown(session, urls[last.replica])
    moved = await _turn(gateway, session, messages, "Is there anything else I should know?", len(QUESTIONS) + 1)
    verdict = "moved away" if moved.replica != last.replica else "stayed: a cached prefix is still worth more than the wait"
    print(f"\nThe conversation {verdict}. Every term of that decision:\n")
    print(candidates_text(gateway.decisions.get(moved.request_id)[-1].explain()))
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def _turn(gateway: Gateway, session: aiohttp.ClientSession, messages: list[dict[str, str]], question: str, number: int) -> Turn:
    messages.append({"role": "user", "content": question})
    print(f"turn {number}  user: {question}\n        bot:  ", end="", flush=True)
    turn = await _stream(gateway, session, messages)
    messages.append({"role": "assistant", "content": turn.text})
    decision = gateway.decisions.get(turn.request_id)[-1].explain()
    cached = (turn.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    print(
        f"\n        → replica {turn.replica}: {decision['reason']}"
        f"\n          first token after {turn.ttft_s * 1e3:.0f} ms; predicted prefix hit {turn.prefix_hit}, "
        f"actual {cached}/{turn.usage.get('prompt_tokens', '?')} tokens cached"
    )
    return turn


async def _stream(gateway: Gateway, session: aiohttp.ClientSession, messages: list[dict[str, str]]) -> Turn:
    body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 24, "stream_options": {"include_usage": True}}
    url = f"http://127.0.0.1:{gateway.ports[0]}/v1/chat/completions"
    began = time.perf_counter()
    async with session.post(url, json=body) as response:
        if response.status != 200:
            raise CommandError(f"kvgate demo: {response.status} {await response.text()}")
        h = response.headers
        turn = Turn("", h["x-request-id"], h["x-kvgate-replica"], h["x-kvgate-prefix-hit"], 0.0)
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            turn.ttft_s = turn.ttft_s or time.perf_counter() - began
            event = json.loads(line[6:])
            turn.usage = event.get("usage") or turn.usage
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                turn.text += piece
                print(piece, end="", flush=True)
    return turn


_FLOOD = 24


async def _drown(session: aiohttp.ClientSession, url: str) -> list[asyncio.Task[None]]:
    """Keep one replica busy with prompts it has never seen, sent directly to it; return once the gateway can have noticed."""

    async def one(number: int) -> None:
        text = " ".join(f"{number}.{word}" for word in range(6_000))
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 400, "ignore_eos": True}
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()

    tasks = [asyncio.create_task(one(n)) for n in range(_FLOOD)]
    await asyncio.sleep(2.5)  # two scrapes
    return tasks


def _hint(gateway: Gateway) -> None:
    public, admin = gateway.ports
    print(
        f"\nStill serving (Ctrl-C stops):\n"
        f"  curl -N http://127.0.0.1:{public}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model":"{MODEL}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}\'\n'
        f"  kvgate status --admin http://127.0.0.1:{admin}\n"
        f"  kvgate explain REQUEST_ID --admin http://127.0.0.1:{admin}     (x-request-id of any response)"
    )


async def _until_stopped() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
