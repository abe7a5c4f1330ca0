"""Deadlines: each for its own phase, none for an answer that lives, and an error the client can read."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import at_rest, deaf, in_turn, records, sends, streams
from tests.integration.toolkit import CHAT, DONE, SSE_HEAD, STREAM, Client, ask, completion, ev, eventually, framed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.app import Gateway
    from tests.integration.scripts import Script
    from tests.integration.toolkit import Conn, Reply, Scripted

    Replica = Callable[..., Awaitable[Scripted]]
    Start = Callable[..., Awaitable[Gateway]]

pytestmark = pytest.mark.usefixtures("quiet")

SLACK = 0.6  # seconds: deadlines are looked at four times a second, and the machine may be busy
PING = b": ping\n\n"
NO_RETRY = {"attempts": 1}


def after(seconds: float, script: Script) -> Script:
    """The script, later."""

    async def late(conn: Conn) -> None:
        await asyncio.sleep(seconds)
        await script(conn)

    return late


async def timed(gw: Gateway, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[Reply, float]:
    """The reply and the seconds until its end."""
    began = time.monotonic()
    reply = await ask(gw, body, path)
    return reply, time.monotonic() - began


def told(reply: Reply) -> dict[str, Any]:
    """The error of the last event."""
    return json.loads(reply.body.rstrip().rsplit(b"data: ", 1)[1])["error"]


# -- what lives is left alone ----------------------------------------------------------------------------------------------


async def test_a_stream_that_goes_on_may_take_as_long_as_it_likes(replica: Replica, gateway: Start) -> None:
    """No limit on the whole is set by default; first byte, idle and data limits are not added up."""
    gw = await gateway(
        await replica(streams(*[ev("tok")] * 10, DONE, every=0.15)), timeouts={"first_byte_s": 0.5, "idle_s": 0.5, "data_idle_s": 0.5}
    )
    assert gw.settings.timeouts.total_s is None
    reply, took = await timed(gw, STREAM)
    assert (reply.body, reply.complete) == (ev("tok") * 10 + DONE, True)
    assert took > 1.5


async def test_comments_are_signs_of_life(replica: Replica, gateway: Start) -> None:
    """Keep-alives during a long prefill hold the idle limit off, and are passed on as they come."""
    gw = await gateway(await replica(streams(*[PING] * 8, ev("a"), DONE, every=0.12)), timeouts={"idle_s": 0.4, "first_byte_s": 0.4})
    reply = await ask(gw, STREAM)
    assert (reply.body, reply.complete) == (PING * 8 + ev("a") + DONE, True)
    assert sum(data == PING for _, data in reply.arrivals) == 8


async def test_a_prompt_comment_is_no_reason_to_give_up(replica: Replica, gateway: Start) -> None:
    """A keep-alive right behind the head starts the wait for data; it does not end it."""
    gw = await gateway(await replica(sends(SSE_HEAD, framed(PING), then="hold")))
    async with Client(gw.ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        await asyncio.sleep(0.7)
        assert len(gw.service.running) == 1


async def test_the_limit_for_the_first_byte_is_not_the_one_between_bytes(replica: Replica, gateway: Start) -> None:
    """A long prefill is no silence in mid-stream."""
    gw = await gateway(
        await replica(after(0.7, streams(ev("a"), ev("b"), DONE, every=0.1))),
        timeouts={"first_byte_s": 2, "idle_s": 0.3, "data_idle_s": 0.3},
    )
    reply = await ask(gw, STREAM)
    assert (reply.body, reply.complete) == (ev("a") + ev("b") + DONE, True)


async def test_a_second_try_has_clocks_of_its_own(replica: Replica, gateway: Start) -> None:
    """Silence before the first byte of the second try is not counted from the last byte of the first."""
    half = ev("half")[:40]
    broken = sends(SSE_HEAD, framed(half), every=0.3, then="rst")
    fine = after(0.7, sends(SSE_HEAD, framed(half), framed(ev("half")[40:]), framed(DONE), b"0\r\n\r\n", every=0.28))
    turns = in_turn(broken, fine)
    gw = await gateway(await replica(turns), await replica(turns), timeouts={"first_byte_s": 2, "idle_s": 0.5, "data_idle_s": 2})
    reply = await ask(gw, STREAM)
    assert (reply.body, reply.headers["x-kvgate-attempts"]) == (ev("half") + DONE, "2")


# -- what does not, is ended -----------------------------------------------------------------------------------------------

SILENCES: dict[str, tuple[Script, dict[str, float], bytes]] = {
    # script, limits, what is passed on before the error
    "silent between events": (streams(ev("a"), end=b"", then="hold"), {"idle_s": 0.4}, ev("a")),
    "silent within an event": (streams(ev("a"), ev("b")[:30], end=b"", then="hold"), {"idle_s": 0.4}, ev("a")),
    "silent behind a comment": (streams(PING, end=b"", then="hold"), {"idle_s": 0.4}, PING),
    "comments only": (streams(ev("a"), *[PING] * 50, every=0.1), {"data_idle_s": 0.5}, ev("a") + PING),
    "comments from the start": (streams(*[PING] * 50, every=0.1), {"data_idle_s": 0.5}, PING),
}


@pytest.mark.parametrize(("script", "limits", "passed"), SILENCES.values(), ids=SILENCES)
async def test_a_stream_that_fell_silent_is_ended_with_an_error(
    replica: Replica, gateway: Start, script: Script, limits: dict[str, float], passed: bytes
) -> None:
    """At its limit, not before: one error event of the type timeout, both connections closed, a failure of the replica's."""
    r = await replica(script)
    gw = await gateway(r, timeouts=limits)
    done = records(gw)
    reply, took = await timed(gw, STREAM)
    limit = next(iter(limits.values()))
    assert limit <= took < limit + SLACK
    assert reply.body.startswith(passed)
    assert not reply.complete
    assert (told(reply)["type"], told(reply)["code"]) == ("timeout_error", "idle_timeout")
    assert reply.body.count(b'"error"') == 1
    await at_rest(gw)
    await eventually(lambda: r.hangups, 1)
    assert (done[0].ended_by, done[0].reason, done[0].tries) == ("timeout", "idle_timeout", (("r1", "timeout"),))
    assert gw.table.servers()[0].breaker.consecutive == 1


async def test_silence_in_a_long_event_can_only_be_cut(replica: Replica, gateway: Start) -> None:
    """An error in the middle of an event would make clients fail on bad JSON."""
    part = ev("y" * 9000)[:6000]
    gw = await gateway(await replica(streams(ev("a"), part, end=b"", then="hold")), timeouts={"idle_s": 0.3})
    reply = await ask(gw, STREAM)
    assert (reply.body, reply.complete) == (ev("a") + part, False)


async def test_a_replica_that_holds_its_connection_behind_done_does_no_harm(replica: Replica, gateway: Start) -> None:
    """The answer is whole; at the limit it is ended as such."""
    gw = await gateway(await replica(streams(ev("a"), DONE, end=b"", then="hold")), timeouts={"idle_s": 0.3})
    reply = await ask(gw, STREAM)
    assert (reply.body, reply.complete) == (ev("a") + DONE, True)
    await at_rest(gw)


UNANSWERED: dict[str, tuple[dict[str, Any], Script, dict[str, float], str]] = {
    "no first byte of a stream": (STREAM, sends(then="hold"), {"first_byte_s": 0.4}, "first_byte_timeout"),
    "a head, but no event": (STREAM, sends(SSE_HEAD, then="hold"), {"first_byte_s": 0.4}, "first_byte_timeout"),
    "the start of a first event": (STREAM, sends(SSE_HEAD + framed(ev("a")[:20]), then="hold"), {"idle_s": 0.4}, "idle_timeout"),
    "no answer": (CHAT, sends(then="hold"), {"unary_s": 0.4}, "total_timeout"),
    "any request at all": (STREAM, sends(then="hold"), {"total_s": 0.4}, "total_timeout"),
}


@pytest.mark.parametrize(("body", "script", "limits", "code"), UNANSWERED.values(), ids=UNANSWERED)
async def test_a_request_without_an_answer_is_told_so(
    replica: Replica, gateway: Start, body: dict[str, Any], script: Script, limits: dict[str, float], code: str
) -> None:
    """504 with the limit's name, on a connection that goes on."""
    r = await replica(script)
    gw = await gateway(r, timeouts=limits)
    async with Client(gw.ports[0]) as client:
        began = time.monotonic()
        await client.post("/v1/chat/completions", body)
        reply = await client.reply()
        assert next(iter(limits.values())) <= time.monotonic() - began < next(iter(limits.values())) + SLACK
        assert (reply.status, reply.error_code, reply.json()["error"]["type"]) == (504, code, "timeout_error")
        assert reply.headers["x-kvgate-error"] == code
        r.script = sends(completion())
        await client.post("/v1/chat/completions", CHAT)
        assert (await client.reply()).status == 200
    assert len(r.requests) == 2
    await at_rest(gw)


async def test_an_answer_that_drips_is_cut_at_the_limit_for_the_whole(replica: Replica, gateway: Start) -> None:
    """What is not streamed has one limit; a cut body is short of its length."""
    head, _, body = completion().partition(b"\r\n\r\n")
    drops = [body[i : i + 9] for i in range(0, len(body), 9)]
    gw = await gateway(await replica(sends(head + b"\r\n\r\n", *drops, every=0.1)), timeouts={"unary_s": 0.5})
    reply, took = await timed(gw, CHAT)
    assert (reply.status, reply.complete) == (200, False)
    assert took < 0.5 + SLACK


async def test_a_stream_at_the_limit_for_any_request_is_no_failure_of_its_replica(replica: Replica, gateway: Start) -> None:
    """`total_s` is the operator's wish; the replica was answering."""
    gw = await gateway(await replica(streams(*[ev("tok")] * 50, DONE, every=0.05)), timeouts={"total_s": 0.5})
    done = records(gw)
    reply = await ask(gw, STREAM)
    assert (reply.complete, told(reply)["code"]) == (False, "total_timeout")
    assert done[0].ended_by == "timeout"
    assert gw.table.servers()[0].breaker.consecutive == 0


async def test_a_request_that_waits_is_within_the_limit_for_any_request(replica: Replica, gateway: Start) -> None:
    """`total_s` counts the queue too."""
    r = await replica(sends(then="hold"))
    gw = await gateway(r, r1={"max_inflight": 1}, timeouts={"total_s": 0.5})
    replies = await asyncio.gather(*(ask(gw) for _ in range(2)))
    assert [(reply.status, reply.error_code) for reply in replies] == [(504, "total_timeout")] * 2
    await at_rest(gw)


async def test_a_timeout_is_told_in_the_endpoints_own_way(replica: Replica, gateway: Start) -> None:
    """An error event as Anthropic's clients read it."""
    first = b'event: message_start\ndata: {"type":"message_start"}\n\n'
    gw = await gateway(await replica(streams(first, end=b"", then="hold")), timeouts={"idle_s": 0.3})
    reply = await ask(gw, {**STREAM, "max_tokens": 9}, "/v1/messages")
    assert reply.body.startswith(first + b"event: error\ndata: ")
    assert told(reply)["type"] == "timeout_error"


# -- dialling --------------------------------------------------------------------------------------------------------------


async def test_a_replica_that_cannot_be_dialled_in_time_is_passed_over(replica: Replica, gateway: Start) -> None:
    """`connect_s`: another replica is asked, and when there is none, 502 says what happened."""
    r1, r2 = await replica(), await replica()
    gw = await gateway(r1, r2, timeouts={"connect_s": 0.3}, health={"unhealthy_after": 1000}, retries=NO_RETRY)
    await r1.stop()
    with deaf(r1.port):
        replies = [await ask(gw) for _ in range(4)]
        assert {reply.status for reply in replies} == {200}
        assert "2" in {reply.headers["x-kvgate-attempts"] for reply in replies}
        await r2.stop()
        reply = await ask(gw)
    assert (reply.status, reply.error_code, reply.headers["x-kvgate-attempts"]) == (502, "upstream_connect", "2")
    await at_rest(gw)
