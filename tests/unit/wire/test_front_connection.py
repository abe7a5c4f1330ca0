"""One client connection in memory: phases, deadlines, memory and order, with the clock in the test's hands."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.front import BodyBudget, FrontLimits
from tests.unit.wire.front_cases import K, N, P
from tests.unit.wire.front_helpers import OK, Connection, RecordingHandler

CLOSING = b"HTTP/1.1 401 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def post(body: bytes, extra: bytes = b"") -> bytes:
    return P + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def waiting(**kwargs: object) -> Connection:
    """A connection whose requests are answered by the test."""
    return Connection(RecordingHandler(prompt=False), **kwargs)  # type: ignore[arg-type]


# -- order ---------------------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_served_one_by_one() -> None:
    """The second request is not even parsed before the first is answered."""
    connection = waiting().feed(post(b"one") + post(b"three") + b"BROKEN\r\n\r\n")
    assert connection.story == ["POST /v1/x 3"]
    for expected in (["POST /v1/x 3", "POST /v1/x 5"], ["POST /v1/x 3", "POST /v1/x 5", 400]):
        connection.front.answer(OK)
        connection.turn()
        assert connection.story == expected
    assert connection.transport.written.startswith(OK + OK + b"HTTP/1.1 400")


def test_a_long_row_of_pipelined_requests_gives_others_a_turn() -> None:
    """Each request of a row is read in a loop turn of its own, and however long, nothing recurses."""
    connection = Connection(RecordingHandler())
    connection.front.data_received(N * 3000)
    assert len(connection.handler.seen) == 1
    connection.turn()
    assert len(connection.handler.seen) == 3000
    assert connection.transport.written == OK * 3000


def test_reading_pauses_behind_a_running_request_and_goes_on_after_it() -> None:
    """At most 64 KB and one read wait; what the kernel holds is read later, in order."""
    connection = waiting().feed(post(b"x"), *[post(b"y" * 30_000)] * 4)
    assert not connection.transport.reading
    assert len(connection.unread) > 0
    for _ in range(5):
        connection.front.answer(OK)
        connection.turn()
    assert connection.story == ["POST /v1/x 1", *["POST /v1/x 30000"] * 4]
    assert connection.transport.reading


def test_a_big_upload_behind_a_running_request_is_read_on() -> None:
    """A paused connection resumes when the waiting bytes turn out to be a body that is not complete."""
    upload = post(b"z" * 500_000)
    connection = waiting().feed(post(b"x"), upload[:100_000], upload[100_000:])
    connection.front.answer(OK)
    connection.turn()
    assert connection.story == ["POST /v1/x 1", "POST /v1/x 500000"]


def test_a_big_head_behind_a_running_request_is_read_on() -> None:
    """So does one whose waiting bytes are a head that is not complete."""
    head = b"GET /big HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 150_000 + b"\r\n\r\n"
    connection = waiting(limits=FrontLimits(header_bytes=200_000)).feed(N, head[:100_000], head[100_000:])
    connection.front.answer(OK)
    connection.turn()
    assert connection.story == ["GET /n 0", "GET /big 0"]


def test_a_short_request_behind_one_that_came_in_pieces() -> None:
    """Where the search for one head stopped says nothing about the next."""
    assert Connection().feed(P, b"\r", b"\n", N, N).story == ["POST /v1/x 0", "GET /n 0", "GET /n 0"]


def test_the_next_request_waits_until_the_last_answer_is_taken() -> None:
    """A client that does not read its answers cannot make more of them."""
    connection = waiting().feed(N)
    connection.front.pause_writing()
    connection.front.answer(OK)
    connection.feed(N)
    assert connection.story == ["GET /n 0"]
    connection.front.resume_writing()
    connection.turn()
    assert connection.story == ["GET /n 0", "GET /n 0"]
    assert connection.handler.sinks[0].events == ["pause"]
    assert connection.handler.sinks[1].events == []


def test_the_sink_hears_of_a_slow_client() -> None:
    """Full and drained buffers are passed on."""
    connection = waiting().feed(N)
    connection.front.pause_writing()
    assert connection.front.write_paused
    connection.front.resume_writing()
    assert not connection.front.write_paused
    assert connection.handler.sinks[0].events == ["pause", "resume"]


def test_stray_line_ends_between_requests_start_no_request() -> None:
    """An idle connection with a CRLF behind its last body is idle, and its next request is fine."""
    connection = Connection().feed(post(b"x") + b"\r\n")
    connection.sweep(11)
    assert connection.story == ["POST /v1/x 1"]
    assert connection.feed(N).story == ["POST /v1/x 1", "GET /n 0"]


# -- early answers and bodies --------------------------------------------------------------------------------------------


def test_an_early_answer_with_the_body_at_hand_keeps_the_connection() -> None:
    """A body that arrived with its head is skipped, and the next request is served."""
    connection = Connection(RecordingHandler(early=OK)).feed(post(b"hello") + N)
    assert connection.story == ["POST /v1/x early", "GET /n early"]


@pytest.mark.parametrize("request_bytes", [P + b"Content-Length: 9\r\n\r\nhello", K + b"5\r\nhello\r\n0\r\n\r\n"])
def test_an_early_answer_before_the_body_closes_after_lingering(request_bytes: bytes) -> None:
    """The rest of the body is read and dropped up to the size a body may have, so that no reset overtakes the answer."""
    handler = RecordingHandler(early=CLOSING)
    connection = Connection(handler, limits=FrontLimits(max_body_bytes=1_000_000)).feed(request_bytes)
    assert handler.seen == ["POST /v1/x early"]
    assert connection.transport.written == CLOSING
    assert connection.transport.eof
    assert not connection.ended
    connection.feed(b"x" * 1_200_000)
    assert not connection.ended
    connection.feed(b"x" * 100_000)
    assert connection.transport.closed


def test_lingering_ends_after_two_seconds() -> None:
    """A client that goes on and on is not waited for."""
    connection = Connection(RecordingHandler(early=CLOSING)).feed(K)
    connection.sweep(1.9)
    assert not connection.ended
    connection.sweep(0.2)
    assert connection.transport.closed


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [(post(b"hi"), True), (P + b"Content-Length: 9\r\n\r\nhi", False), (K, False), (post(b"hi", b"Connection: close\r\n"), False)],
)
def test_keep_alive_tells_an_early_answer_what_will_happen(request_bytes: bytes, expected: bool) -> None:
    """What the answer should say about the connection is known before it is written."""
    handler = RecordingHandler()
    told: list[bool] = []
    original = handler.head
    handler.head = lambda front, head: (told.append(front.keep_alive), original(front, head))[1]  # type: ignore[method-assign]
    Connection(handler).feed(request_bytes)
    assert told == [expected]


def test_continue_is_sent_once_and_only_before_the_body() -> None:
    """A client that waits is told to go on; one that did not wait is not."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    expecting = P + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"
    patient = waiting().feed(expecting, b"a", b"bcd")
    assert patient.transport.written == interim
    assert patient.story == ["POST /v1/x 4"]
    assert waiting().feed(expecting + b"a").transport.written == b""
    assert waiting().feed(expecting + b"abcd").transport.written == b""
    assert waiting().feed(expecting.replace(b"HTTP/1.1", b"HTTP/1.0")).transport.written == b""
    refused = Connection(RecordingHandler(early=CLOSING)).feed(expecting)
    assert refused.transport.written == CLOSING


@pytest.mark.parametrize(
    ("request_bytes", "story"),
    [
        (P + b"Content-Length: 10\r\n\r\n0123456789", ["POST /v1/x 10"]),
        (P + b"Content-Length: 11\r\n\r\n", [413]),
        (P + b"Content-Length: 11\r\nExpect: 100-continue\r\n\r\n", [413]),
        (K + b"a\r\n0123456789\r\n0\r\n\r\n", ["POST /v1/x 10"]),
        (K + b"6\r\n012345\r\n5\r\n", [413]),
    ],
)
def test_bodies_are_limited_before_they_are_read(request_bytes: bytes, story: list[str | int]) -> None:
    """By content-length, or by the first chunk that would be too much."""
    connection = Connection(limits=FrontLimits(max_body_bytes=10)).feed(request_bytes)
    assert connection.story == story
    assert b"100 Continue" not in connection.transport.written


def test_limits_may_change_while_connections_are_open() -> None:
    """A reload counts from the next request on."""
    connection = Connection().feed(post(b"hello"))
    connection.shared.limits = FrontLimits(max_body_bytes=4)
    assert connection.feed(post(b"hello")).story == ["POST /v1/x 5", 413]


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"Content-Length: x\r\n\r\n", 400),
        (b"Content-Length: 999999999999\r\n\r\n", 413),
        (b"X: " + b"y" * 70_000, 431),
        (b"Transfer-Encoding: chunked\r\n\r\nX", 400),
        (b"Content-Length: 70000000\r\n\r\n", 413),
        (b"Content-Length: 9\r\n\r\n", 408),
    ],
)
def test_a_refusal_knows_the_target_it_is_for(rest: bytes, status: int) -> None:
    """So that the error has the shape its sender understands; the target of an earlier request is not mistaken for it."""
    connection = waiting().feed(N)
    connection.front.answer(OK)
    connection.feed(b"POST /v1/messages HTTP/1.1\r\nHost: a\r\n" + rest)
    connection.sweep(61)
    assert (connection.handler.seen[-1], connection.handler.target) == (status, b"/v1/messages")


def test_a_head_that_never_completes_has_no_target() -> None:
    """Nor has it that of the request before."""
    connection = Connection().feed(N, b"GET /x HTTP/1.1\r\nHo")
    connection.sweep(11)
    assert (connection.story, connection.handler.target) == (["GET /n 0", 408], None)


def test_a_request_that_starts_while_the_client_does_not_read_is_paused_at_once() -> None:
    """A TLS transport says that it is full when the answer that filled it has ended."""
    connection = waiting().feed(N)
    connection.front.answer(OK)
    connection.front.pause_writing()
    connection.feed(N)
    connection.front.resume_writing()
    assert connection.handler.sinks[1].events == ["pause", "resume"]


# -- memory --------------------------------------------------------------------------------------------------------------


def test_bodies_are_counted_while_held_and_given_back_on_every_path() -> None:
    """Answered, refused, timed out, cut or left: the budget is whole again."""
    budget = BodyBudget(1000)
    partial = P + b"Content-Length: 200\r\n\r\n" + b"x" * 150

    answered = waiting(budget=budget).feed(partial)
    assert budget.used == 150
    answered.feed(b"x" * 50)
    assert budget.used == 200
    answered.front.answer(OK)
    assert budget.used == 0

    waiting(budget=budget).feed(K + b"3\r\nabc\r\nX")
    assert budget.used == 0
    late = waiting(budget=budget).feed(partial)
    late.sweep(61)
    assert (budget.used, late.story) == (0, [408])
    waiting(budget=budget).feed(post(b"abc")).front.cut()
    assert budget.used == 0
    waiting(budget=budget).feed(partial).front.eof_received()
    assert budget.used == 0
    waiting(budget=budget).feed(partial).lose()
    assert budget.used == 0


@pytest.mark.parametrize("request_bytes", [post(b"x" * 60), P + b"Content-Length: 99\r\n\r\n" + b"x" * 60, K + b"3c\r\n" + b"x" * 60])
def test_a_body_that_does_not_fit_the_budget_is_refused(request_bytes: bytes) -> None:
    """Whole, counted or chunked; those already held are not touched."""
    budget = BodyBudget(100)
    first = waiting(budget=budget).feed(post(b"x" * 50))
    second = waiting(budget=budget).feed(request_bytes)
    assert second.handler.seen == [503]
    assert second.handler.code == "overloaded"
    assert second.handler.sinks[0].events == ["gone"]
    assert (budget.used, first.handler.sinks[0].events) == (50, [])


# -- deadlines -----------------------------------------------------------------------------------------------------------


def test_a_slow_head_is_timed_from_its_first_byte() -> None:
    """Further bytes do not extend the time, and nobody is told to go away for being idle before."""
    connection = Connection()
    connection.sweep(100)
    connection.feed(b"GET /")
    connection.sweep(6)
    connection.feed(b"x")
    connection.sweep(3.9)
    assert connection.story == []
    connection.sweep(0.2)
    assert connection.story == [408]
    assert connection.handler.code == "request_timeout"


def test_a_slow_body_is_timed_from_its_last_bytes() -> None:
    """Progress extends the time, silence does not."""
    connection = waiting().feed(P + b"Content-Length: 1000000\r\n\r\n")
    for _ in range(5):
        connection.feed(b"x" * 60_000)
        connection.sweep(50)
    assert connection.story == []
    connection.sweep(11)
    assert connection.story == [408]
    assert connection.handler.sinks[0].events == ["gone"]


def test_a_body_that_drips_is_ended() -> None:
    """One byte now and then is no progress."""
    connection = waiting().feed(P + b"Content-Length: 1000000\r\n\r\n")
    for _ in range(3):
        connection.feed(b"x")
        connection.sweep(30)
    assert connection.story == [408]


def test_an_idle_connection_is_closed_without_a_word() -> None:
    """After keepalive_s from its last answer, or from connecting."""
    fresh = Connection()
    fresh.sweep(119)
    assert not fresh.ended
    fresh.sweep(2)
    used = Connection().feed(N)
    used.sweep(119)
    used.feed(N)
    used.sweep(119)
    assert used.story == ["GET /n 0", "GET /n 0"]
    used.sweep(2)
    for connection in (fresh, used):
        assert connection.story[-1] == "close"
        assert b"408" not in connection.transport.written


def test_a_running_request_has_no_deadline_here() -> None:
    """How long a replica may take is not the front's business."""
    connection = waiting().feed(N)
    connection.sweep(100_000)
    assert connection.story == ["GET /n 0"]


def test_a_client_that_takes_nothing_is_cut() -> None:
    """Write stall: bytes are pending and none leaves for write_stall_s; any that leave start the time anew."""
    connection = waiting().feed(N)
    connection.transport.pending = 500
    connection.sweep(0)
    connection.sweep(50)
    connection.transport.pending = 499
    connection.sweep(9)
    connection.sweep(60)
    assert not connection.ended
    connection.sweep(1)
    assert connection.transport.aborted
    assert connection.handler.sinks[0].events == ["gone"]


def test_a_close_that_never_completes_is_forced() -> None:
    """A TLS peer that does not answer our goodbye holds the connection for a second; unsent bytes get the write-stall time."""
    connection = Connection().feed(N.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert connection.transport.closed
    connection.transport.pending = 10
    connection.sweep(5)
    assert not connection.transport.aborted
    connection.transport.pending = 0
    connection.sweep(0)
    assert connection.transport.aborted


def test_a_fault_in_one_connection_does_not_stop_the_sweep() -> None:
    """The faulty one is dropped and the others keep their deadlines."""
    connection = Connection().feed(b"GET /")
    other = Connection()
    connection.shared.connections.add(other.front)
    connection.handler.refuse = None  # type: ignore[assignment, method-assign]
    other.feed(b"GET /")
    connection.sweep(11)
    other.clock = connection.clock
    assert connection.transport.aborted
    assert other.story == [408]


# -- ends ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["eof", "lost"])
@pytest.mark.parametrize("sent", [P + b"Content-Length: 9\r\n\r\nhi", post(b"hi"), K])
def test_a_client_that_leaves_ends_its_request(how: str, sent: bytes) -> None:
    """During the upload or while waiting: the sink is told exactly once, and a half-closed connection counts as left."""
    connection = waiting().feed(sent)
    if how == "eof":
        assert not connection.front.eof_received()
        assert connection.transport.aborted
    connection.lose()
    assert connection.handler.sinks[0].events == ["gone"]
    assert not connection.front.open
    assert connection.handler.left == 1
    assert not connection.shared.connections


def test_nothing_is_gone_after_the_end() -> None:
    """A client that leaves after its answer ended no request."""
    connection = waiting().feed(N)
    connection.front.answer(OK)
    connection.front.eof_received()
    connection.lose()
    assert connection.handler.sinks[0].events == []


def test_an_answer_can_close_the_connection() -> None:
    """What was pipelined behind it is not served."""
    connection = waiting().feed(N + N)
    connection.front.answer(OK, close=True)
    connection.turn()
    connection.sweep(3)
    assert connection.story == ["GET /n 0", "close"]
    assert connection.transport.written == OK


def test_ends_count_once() -> None:
    """A second end, and an end when no request runs, change nothing."""
    connection = waiting().feed(N)
    connection.front.end()
    connection.front.end(close=True)
    assert connection.feed(N).story == ["GET /n 0", "GET /n 0"]


def test_cutting_drops_the_connection_and_tells_nobody() -> None:
    """The owner of the request asked for it and knows."""
    connection = waiting().feed(N)
    connection.front.cut()
    connection.front.send(b"late")
    connection.lose()
    assert connection.transport.aborted
    assert connection.transport.written == b""
    assert connection.handler.sinks[0].events == []


def test_draining_closes_idle_connections_and_lets_requests_finish() -> None:
    """Running requests get their answer, then the connection ends; new requests on it are not read."""
    idle, busy = Connection(), waiting().feed(N)
    idle.shared.drain()
    busy.shared.drain()
    assert idle.story == ["close"]
    assert not busy.ended
    busy.front.answer(OK)
    assert busy.story == ["GET /n 0", "close"]
    assert busy.transport.written == OK


def test_a_request_that_arrives_while_draining_is_told_to_close() -> None:
    """Its answer can say so."""
    connection = waiting().feed(b"GET /n HTTP/1.1\r\n")
    connection.shared.drain()
    connection.feed(b"Host: a\r\n\r\n")
    assert connection.story == ["GET /n 0"]
    assert not connection.front.keep_alive


def test_a_connection_that_is_not_admitted_hears_why() -> None:
    """503, then the same lingering as ever; the handler never sees its end."""
    connection = Connection(RecordingHandler(admits=False))
    assert (connection.handler.seen, connection.handler.code) == ([503], "overloaded")
    connection.feed(N)
    connection.lose()
    assert connection.handler.seen == [503]
    assert connection.handler.left == 0


def test_a_fault_in_a_pipelined_request_drops_the_connection() -> None:
    """Outside the transport's own callbacks nobody else would."""
    connection = waiting().feed(N + N)
    connection.handler.head = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        connection.front.answer(OK), connection.turn()
    assert connection.transport.aborted


ACTIONS = st.one_of(
    st.tuples(st.just("feed"), st.sampled_from([N, post(b"hello"), K, b"5\r\nhello\r\n", b"0\r\n\r\n", P, b"\r\n", b"Zz", b"x" * 70_000])),
    st.tuples(st.sampled_from(["answer", "end", "close", "cut", "eof", "stuff", "drain"]), st.just(b"")),
    st.tuples(st.just("sweep"), st.sampled_from([b"", b"1", b"123", b"1" * 11, b"1" * 61, b"1" * 121])),
)


@given(st.lists(ACTIONS, max_size=14))
@settings(max_examples=400, deadline=None)
def test_whatever_happens_every_request_ends_once_and_all_memory_is_given_back(actions: list[tuple[str, bytes]]) -> None:
    """Any order of arrivals, answers, deadlines and departures: no sink is told twice, none that ended is told at all."""
    connection = waiting(budget=BodyBudget(100_000), limits=FrontLimits(max_body_bytes=80_000))
    front = connection.front
    ended = 0
    for name, data in actions:
        running = front.sink
        if name == "feed":
            connection.feed(data)
        elif name == "sweep":
            connection.sweep(len(data))
        elif name == "drain":
            connection.shared.drain()
        elif name == "stuff":
            (front.resume_writing if front.write_paused else front.pause_writing)()
        elif name == "eof" and not connection.ended:
            front.eof_received()
        elif running is not None and name in ("answer", "end", "close", "cut"):
            ended += 1
            {"answer": lambda: front.answer(OK), "end": front.end, "close": lambda: front.end(close=True), "cut": front.cut}[name]()
            assert running.events.count("gone") == 0  # type: ignore[attr-defined]
        connection.turn()
        assert connection.shared.budget.used == (front._held if front.sink is not None else 0)
    connection.lose()
    gone = [sink.events.count("gone") for sink in connection.handler.sinks]
    assert max(gone, default=0) <= 1
    assert sum(gone) + ended == len(gone)
    assert connection.shared.budget.used == 0
    assert not connection.shared.connections


def test_who_the_client_is() -> None:
    """Its address, for limits and logs."""
    front = Connection().front
    assert (front.peer, front.tls, front.open) == ("192.0.2.7", False, True)
