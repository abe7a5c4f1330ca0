"""The simulator as a process: start, signals, wrong usage."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import httpx
import pytest

from tests.contract.simulated import drain, plain_client, simulated_process

ASKED = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "stream": True}


async def test_the_first_line_is_the_address() -> None:
    """Port 0 takes a free one, and it answers at once."""
    start = time.perf_counter()
    async with simulated_process("--model", "m") as (_, url), plain_client() as http:
        assert time.perf_counter() - start < 5
        assert (await http.get(f"{url}/v1/models")).json()["data"][0]["id"] == "m"


async def test_a_taken_port_is_one_line_and_status_1() -> None:
    """No traceback."""
    async with simulated_process() as (_, url):
        command = (sys.executable, "-m", "replicas.simulator", "--port", url.rpartition(":")[2])
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, err = await second.communicate()
    assert second.returncode == 1
    assert err.decode().startswith("kvgate simulate: cannot listen on 127.0.0.1:")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [["--preset", "none"], ["--fault", "boom"], ["--speed", "0"], ["--colour"]])
async def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    """As of every command."""
    command = (sys.executable, "-m", "replicas.simulator", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    assert process.returncode == 2
    assert arguments[-1].encode() in err or b"speed" in err


async def test_sigterm_without_work_ends_at_once() -> None:
    """Idle kept-alive connections do not hold it up."""
    async with simulated_process() as (process, url), plain_client() as http:
        await http.get(f"{url}/health")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 2) == 0


async def test_sigterm_leaves_clients_waiting_until_they_hang_up() -> None:
    """Without a shutdown timeout: new connections are refused, the open stream gets neither event nor end."""
    async with simulated_process("--preset", "demo") as (process, url), plain_client() as http:
        async with http.stream("POST", f"{url}/v1/completions", json={**ASKED, "max_tokens": 2000}, timeout=0.5) as answer:
            pieces = answer.aiter_bytes()
            await anext(pieces)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.ReadTimeout):
                await drain(pieces)
            assert process.returncode is None
            with pytest.raises(httpx.ConnectError):
                await http.get(f"{url}/health")
        assert await asyncio.wait_for(process.wait(), 2) == 0


async def test_sigterm_with_a_timeout_finishes_what_runs_and_refuses_the_rest() -> None:
    """Health stays 200, new work gets 500, the running stream ends in good order."""
    async with simulated_process("--preset", "demo", "--shutdown-timeout", "20") as (process, url), plain_client() as http:
        async with http.stream("POST", f"{url}/v1/completions", json=ASKED) as answer:
            pieces = answer.aiter_text()
            text = await anext(pieces)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            assert (await http.get(f"{url}/health")).status_code == 200
            refused = await http.post(f"{url}/v1/completions", json=ASKED)
            assert (refused.status_code, refused.json()["error"]["type"]) == (500, "InternalServerError")
            async for piece in pieces:
                text += piece
        assert text.endswith("data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 2) == 0


async def test_the_shutdown_timeout_is_kept() -> None:
    """A stream that takes longer is cut."""
    async with simulated_process("--preset", "demo", "--shutdown-timeout", "0.2") as (process, url), plain_client() as http:
        async with http.stream("POST", f"{url}/v1/completions", json={**ASKED, "max_tokens": 2000}) as answer:
            pieces = answer.aiter_bytes()
            await anext(pieces)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                await drain(pieces)
        assert await asyncio.wait_for(process.wait(), 2) == 0


async def test_a_second_signal_ends_the_process_at_once() -> None:
    """Whatever is still open."""
    asked = {**ASKED, "max_tokens": 2000}
    async with (
        simulated_process("--preset", "demo") as (process, url),
        plain_client() as http,
        http.stream("POST", f"{url}/v1/completions", json=asked) as answer,
    ):
        pieces = answer.aiter_bytes()
        await anext(pieces)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 2) == 1


async def test_idle_connections_are_closed() -> None:
    """After the keep-alive time, as uvicorn does, and not before."""
    async with simulated_process("--keep-alive", "0.5") as (_, url):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        start = time.perf_counter()
        assert await asyncio.wait_for(reader.read(), 5)
        assert time.perf_counter() - start > 0.4
        writer.close()
