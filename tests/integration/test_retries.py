"""Second tries: elsewhere, before anything was passed on, never more than allowed, and the client learns the last real error."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import at_rest, in_turn, records, sends, streams
from tests.integration.toolkit import CHAT, DONE, LAST_CHUNK, SSE_HEAD, STREAM, ask, completion, ev, eventually, framed, http, total

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.app import Gateway
    from tests.integration.scripts import Script
    from tests.integration.toolkit import Reply, Scripted

    Replica = Callable[..., Awaitable[Scripted]]
    Start = Callable[..., Awaitable[Gateway]]

pytestmark = pytest.mark.usefixtures("quiet")

NEVER_OPEN = {"failures": 1000, "min_requests": 1000}
GOOD = sends(completion("good"))


def error(status: int, message: str, headers: str = "") -> bytes:
    """An engine's error answer."""
    body = json.dumps({"error": {"message": message, "type": "x", "param": None, "code": status}}).encode()
    return http(status, body, f"content-type: application/json\r\n{headers}")


async def until_first_at(gw: Gateway, replica_id: str, body: dict[str, Any]) -> Reply:
    """Ask until a request is tried at this replica first."""
    done = records(gw)
    for _ in range(20):
        reply = await ask(gw, body)
        if done[-1].tries[0][0] == replica_id:
            return reply
    raise AssertionError(f"nothing was sent to {replica_id}")


# -- elsewhere -----------------------------------------------------------------------------------------------------------

FAILURES: dict[str, tuple[Script, str]] = {
    "reset": (sends(then="rst"), "reset"),
    "closed without an answer": (sends(then="fin"), "reset"),
    "closed within the head": (sends(b"HTTP/1.1 200 OK\r\ncontent-", then="fin"), "reset"),
    "no HTTP": (sends(b"SSH-2.0-OpenSSH\r\n", then="fin"), "protocol"),
    "500": (sends(error(500, "EngineCore encountered an issue")), "server_error"),
    "500 without a body": (sends(http(500)), "server_error"),
    "502 by a proxy": (sends(http(502, b"<html>bad gateway</html>", "content-type: text/html\r\n")), "server_error"),
    "503 without a body": (sends(http(503)), "backpressure"),
    "429": (sends(error(429, "slow down")), "backpressure"),
    "503 cut in its body": (sends(http(503, b"x" * 50)[:-9], then="fin"), "truncated"),
    "200 cut before its body": (sends(http(200, b"x" * 50)[:-50], then="fin"), "truncated"),
}


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(("script", "outcome"), FAILURES.values(), ids=FAILURES)
async def test_a_request_that_failed_before_its_first_byte_is_sent_elsewhere(
    replica: Replica, gateway: Start, script: Script, outcome: str, body: dict[str, Any]
) -> None:
    """The client sees only the good answer, after two tries."""
    gw = await gateway(await replica(script), await replica(GOOD))
    done = records(gw)
    reply = await until_first_at(gw, "r1", body)
    assert (reply.status, reply.body) == (200, completion("good").partition(b"\r\n\r\n")[2])
    assert (reply.headers["x-kvgate-attempts"], reply.headers["x-kvgate-replica"]) == ("2", "r2")
    assert done[-1].tries == (("r1", outcome), ("r2", "ok"))
    await at_rest(gw)
    assert total(gw, "kvgate_attempts_total", replica="r1", outcome=outcome) >= 1


async def test_each_try_has_a_request_id_of_its_own(replica: Replica, gateway: Start) -> None:
    """The client's id goes out with the first try; the next ones are numbered, because engines want ids to be unique."""
    bad, good = await replica(sends(http(500))), await replica(GOOD)
    gw = await gateway(bad, good)
    for n in itertools.count():
        reply = await ask(gw, headers=f"x-request-id: abc-{n}.x\r\n")
        assert reply.headers["x-request-id"] == f"abc-{n}.x"
        if bad.requests:
            break
    assert [r.header("x-request-id") for r in (bad.requests[-1], good.requests[-1])] == [f"abc-{n}.x", f"abc-{n}.x-2"]


async def test_nothing_is_sent_again_once_something_was_passed_on(replica: Replica, gateway: Start) -> None:
    """A text that begins anew would be worse than a cut one."""
    cut = streams(ev("one"), end=b"", then="rst")
    gw = await gateway(a := await replica(cut), b := await replica(cut))
    reply = await ask(gw, STREAM)
    assert reply.body.count(b"one") == 1
    assert (len(a.requests) + len(b.requests), reply.complete) == (1, False)


async def test_a_whole_answer_that_is_cut_is_not_sent_again(replica: Replica, gateway: Start) -> None:
    """The same for answers that are no stream."""
    cut = sends(completion()[:-20], then="fin")
    gw = await gateway(a := await replica(cut), b := await replica(cut))
    reply = await ask(gw, CHAT)
    assert (reply.status, reply.complete, len(a.requests) + len(b.requests)) == (200, False, 1)


# -- never elsewhere -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_what_is_the_clients_fault_is_not_sent_again(replica: Replica, gateway: Start, status: int, body: dict[str, Any]) -> None:
    """Every replica would say the same: one try, the replica's own words, and both stay in service."""
    answer = error(status, "context_length_exceeded")
    a, b = await replica(sends(answer)), await replica(sends(answer))
    gw = await gateway(a, b)
    for _ in range(10):
        reply = await ask(gw, body)
        assert (reply.status, reply.body) == (status, answer.partition(b"\r\n\r\n")[2])
        assert reply.headers["x-kvgate-attempts"] == "1"
    assert len(a.requests) + len(b.requests) == 10
    assert [s.fault(gw.now()) for s in gw.table.servers()] == [None, None]


async def test_a_timeout_is_not_sent_again_unless_wanted(replica: Replica, gateway: Start) -> None:
    """Slow work done twice is twice as slow: `retries.on_timeout` is off, and works when it is on."""
    timeouts = {"unary_s": 0.3}
    for wanted, status in ((False, 504), (True, 200)):
        slow, good = await replica(sends(then="hold")), await replica(GOOD)
        gw = await gateway(slow, good, timeouts=timeouts, retries={"on_timeout": wanted})
        assert (await until_first_at(gw, "r1", CHAT)).status == status


# -- replicas that cannot be reached ---------------------------------------------------------------------------------------


async def test_replicas_that_were_never_reached_cost_no_try(replica: Replica, gateway: Start) -> None:
    """Three dead ones, and only one send allowed: each is tried at most once, and the living one answers."""
    dead, good = [await replica() for _ in range(3)], await replica(GOOD)
    gw = await gateway(*dead, good, retries={"attempts": 1, "budget": 0}, health={"unhealthy_after": 1000}, breaker=NEVER_OPEN)
    for r in dead:
        await r.stop()
    done = records(gw)
    for _ in range(10):
        assert (await ask(gw)).status == 200
    for record in done:
        tried = [name for name, _ in record.tries]
        assert len(set(tried)) == len(tried)
        assert [outcome for _, outcome in record.tries] == ["connect"] * (len(tried) - 1) + ["ok"]
    assert max(record.attempts for record in done) > 1


async def test_a_dead_replica_is_soon_left_alone(replica: Replica, gateway: Start) -> None:
    """Fifty requests: all answered, and the dead one is not tried for each; then it lives, but is busy: the same."""
    r1, r2 = await replica(), await replica(GOOD)
    gw = await gateway(r1, r2, breaker={"cooldown_s": 0.5})
    await r1.stop()
    done = records(gw)
    assert {(await ask(gw)).status for _ in range(50)} == {200}
    assert sum(record.attempts for record in done) <= 50 + 5
    busy = await replica(sends(http(503)), port=r1.port)
    await eventually(lambda: gw.table.servers()[0].breaker.state(gw.now()) == "half_open")
    assert {(await ask(gw)).status for _ in range(50)} == {200}
    assert 0 < len(busy.requests) < 10


async def test_an_idle_connection_the_replica_has_closed_is_nobodys_fault(replica: Replica, gateway: Start) -> None:
    """The request goes out once more at once, on a new connection to the same replica; it is no retry and no failure."""
    r = await replica(in_turn(GOOD, sends(then="rst"), GOOD))
    gw = await gateway(r, retries={"attempts": 1, "budget": 0})
    done = records(gw)
    assert [(await ask(gw)).status for _ in range(2)] == [200, 200]
    assert done[1].tries == (("r1", "resent"), ("r1", "ok"))
    assert [x.header("x-request-id") for x in r.requests[1:]] == [done[1].id, f"{done[1].id}-2"]
    assert gw.table.servers()[0].breaker.consecutive == 0


# -- how often -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_a_request_is_sent_no_more_often_than_allowed(replica: Replica, gateway: Start, attempts: int) -> None:
    """A request that kills engines must not be fed to all of them."""
    replicas = [await replica(sends(then="rst")) for _ in range(4)]
    gw = await gateway(*replicas, retries={"attempts": attempts}, breaker=NEVER_OPEN)
    reply = await ask(gw)
    assert (reply.status, reply.error_code) == (502, "upstream_reset")
    assert sorted(len(r.requests) for r in replicas) == [0] * (4 - attempts) + [1] * attempts
    assert reply.headers["x-kvgate-attempts"] == str(attempts)


async def test_second_sends_are_a_bounded_share_of_the_traffic(replica: Replica, gateway: Start) -> None:
    """When everything fails, the fleet gets a fifth more load, not twice as much; ten second sends are always allowed."""
    replicas = [await replica(sends(error(500, "broken"))) for _ in range(2)]
    gw = await gateway(*replicas, breaker=NEVER_OPEN)
    assert {(await ask(gw)).status for _ in range(30)} == {500}
    assert sum(len(r.requests) for r in replicas) == 30 + 10
    for _ in range(70):
        await ask(gw)
    assert sum(len(r.requests) for r in replicas) == 100 + 20


# -- what the client learns ------------------------------------------------------------------------------------------------


async def test_the_client_gets_the_last_real_error(replica: Replica, gateway: Start) -> None:
    """A replica's own words, its retry-after and its name, whichever was asked last."""
    answers = {"r1": error(503, "A is full"), "r2": error(503, "B is full", "retry-after: 7\r\n")}
    gw = await gateway(*[await replica(sends(answer)) for answer in answers.values()])
    reply = await ask(gw)
    last = reply.headers["x-kvgate-replica"]
    assert (reply.status, reply.body) == (503, answers[last].partition(b"\r\n\r\n")[2])
    assert reply.headers.get("retry-after") == {"r1": None, "r2": "7"}[last]
    assert reply.headers["x-kvgate-attempts"] == "2"


async def test_an_answer_counts_for_more_than_a_broken_connection(replica: Replica, gateway: Start) -> None:
    """The last replica could not be asked: the client gets what the one before it said, under its name."""
    answer = error(500, "CUDA is on fire")
    gw = await gateway(await replica(sends(answer)), await replica(sends(then="rst")))
    reply = await until_first_at(gw, "r1", CHAT)
    assert (reply.status, reply.body) == (500, answer.partition(b"\r\n\r\n")[2])
    assert reply.headers["x-kvgate-replica"] == "r1"


async def test_a_refused_key_of_ours_is_tried_elsewhere_and_never_shown(replica: Replica, gateway: Start) -> None:
    """401 to the key that the gateway holds is the operator's fault: another replica, else 502, and no word of the replica's."""
    refusal = sends(error(401, "bad key sk-ours"))
    key = {"api_key": "sk-ours"}
    r1, r2 = await replica(refusal), await replica(GOOD)
    gw = await gateway(r1, r2, r1=key, r2=key)
    assert (await until_first_at(gw, "r1", CHAT)).status == 200
    r2.script = refusal
    reply = await ask(gw)
    assert (reply.status, reply.error_code) == (502, "upstream_auth")
    assert b"sk-ours" not in reply.body
    assert reply.headers["x-should-retry"] == "false"


async def test_a_large_error_is_passed_on_when_it_is_too_long_to_keep(replica: Replica, gateway: Start) -> None:
    """Errors are held back for a second try only up to 64 KB."""
    long = error(500, "x" * 200_000)
    r = sends(long)
    reply = await ask(await gateway(await replica(r), await replica(r)))
    assert (reply.status, reply.body, reply.complete) == (500, long.partition(b"\r\n\r\n")[2], True)


async def test_an_error_in_chunks_is_passed_on_whole(replica: Replica, gateway: Start) -> None:
    """Held back and given a length."""
    head = SSE_HEAD.replace(b"200 OK", b"500 X").replace(b"text/event-stream; charset=utf-8", b"application/json")
    reply = await ask(await gateway(await replica(sends(head, framed(b'{"error":'), framed(b'"x"}'), LAST_CHUNK))), STREAM)
    assert (reply.status, reply.body, reply.headers["content-length"]) == (500, b'{"error":"x"}', "13")


async def test_a_stream_after_a_failed_try_is_like_any_other(replica: Replica, gateway: Start) -> None:
    """Nothing of the first try is left in the second: usage, counts and bytes are its own."""
    bad = await replica(streams(b'data: {"error":{"message":"full","code":503}}\n\n', DONE))
    gw = await gateway(bad, await replica(streams(ev("a"), ev("b"), DONE)))
    reply = await until_first_at(gw, "r1", STREAM)
    assert reply.body == ev("a") + ev("b") + DONE
