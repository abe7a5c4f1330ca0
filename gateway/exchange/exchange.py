"""The story of one request: admit, plan, attempt, relay, settle.

An exchange is the front's sink (body, gone, pause, resume) and owns everything the request holds: its place in the waiting room,
its attempt and with it the replica's slot. Every path ends in `_settle`, exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from gateway.exchange.attempt import OPENING, STREAMING, Answer, Attempt
from gateway.exchange.outbound import client_lines, request_head
from gateway.exchange.prepare import prepare
from gateway.exchange.refused import Refused
from gateway.exchange.replies import error_response, final_head
from gateway.exchange.retry import ERROR_CODES, RETRYABLE
from gateway.openai.errors import ERRORS, event
from gateway.wire.headers import is_chunked

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gateway.exchange.outbound import Route
    from gateway.exchange.service import Service
    from gateway.fleet.facts import Outcome
    from gateway.openai.endpoints import Endpoint
    from gateway.openai.view import RequestView
    from gateway.routing import Decision, Query
    from gateway.telemetry.records import EndedBy, Phase
    from gateway.wire.front import FrontProtocol, RequestHead
    from gateway.wire.sse import Usage
    from gateway.wire.upstream import UpstreamError

_SKIPS_CACHE: Final = frozenset({"prompt_logprobs", "echo"})
LARGE_BODY: Final = 512 * 1024  # beyond this, decoding and hashing leave the event loop

log = structlog.get_logger("kvgate")


class Exchange:
    """One client request from its head to its end.

    What most requests never change is a default of the class: an instance holds only what happened to it.
    """

    answer: Answer | None = None  # the last error a replica gave, while another one is tried
    attempt: Attempt | None = None
    decision: Decision | None = None
    route: Route | None = None
    view: RequestView | None = None
    query: Query | None = None
    usage: Usage | None = None
    model = ""
    lane: Hashable = None  # the replicas that cannot take this request however free they are, once it has to wait
    stream = False
    phase: Phase = "admit"
    status = 0
    reason = ""
    own_key = False
    sends = 0
    started = False
    settled = False
    paused = False
    skips_cache = False
    queued_at: float | None = None
    queue_s = 0.0
    overhead = 0.0
    ttft: float | None = None
    tpot: float | None = None
    bytes_in = 0
    bytes_out = 0
    seen_sent_at = 0.0
    seen_at = 0.0
    seen_data_at = 0.0
    seen_bytes = 0
    seen_events = 0

    def __init__(self, service: Service, front: FrontProtocol, head: RequestHead, endpoint: Endpoint, key: str) -> None:
        self.service = service
        self.front = front
        self.head = head
        self.endpoint = endpoint
        self.key = key
        self.began = self.ready_at = service.clock()
        self.request_id = service.request_id(head)
        self.tries: list[tuple[str, str]] = []

    # -- the client's side -------------------------------------------------------------------------------------------

    def body(self, data: bytes) -> None:
        """The whole request is here."""
        service = self.service
        self.ready_at = service.clock()
        self.bytes_in = len(data)
        if len(data) > LARGE_BODY or b"content-encoding" in self.head.fields:
            service.spawn(self._prepare_aside(data))
            return
        try:
            self._prepared(*prepare(service, self.endpoint, self.head, data))
        except Refused as fault:
            self.refuse(fault.code, fault.message, fault.param, fault.retry_after)
        except Exception:
            self._internal_error()

    def gone(self) -> None:
        """The client left, in whatever phase: let go of everything at once."""
        if self.settled:
            return
        attempt = self.attempt
        if attempt is not None:
            attempt.hang_up()
            self._tell(attempt, "cancelled")
        self.service.waiting.leave(self)
        refused = self.status and not self.started  # by the front, while the body came in
        self.reason = self.reason if refused else "client_gone"
        self._book("gateway" if refused else "client")

    def cancel(self, code: str, message: str) -> None:
        """The gateway itself ends this request."""
        if self.started and self.attempt is not None:
            self.broken_stream(self.attempt, b"", "cancelled", code)
            return
        if self.attempt is not None:
            self._drop(self.attempt, "cancelled")
        self.service.waiting.leave(self)
        self.refuse(code, message, retry_after=1)

    def pause(self) -> None:
        """The client reads slower than the replica writes."""
        self.paused = True
        if self.attempt is not None and self.attempt.call is not None:
            self.attempt.call.pause()

    def resume(self) -> None:
        self.paused = False
        if self.attempt is not None and self.attempt.call is not None:
            self.attempt.call.resume()

    # -- plan --------------------------------------------------------------------------------------------------------

    async def _prepare_aside(self, data: bytes) -> None:
        """Long or compressed bodies are read in a thread, so that no stream waits for them."""
        service = self.service
        try:
            prepared = await service.aside(prepare, service, self.endpoint, self.head, data)
            # A decoded body counts like one that was sent plain: small bombs must not fill the memory together.
            if not self.settled and (prepared[0] is None or self.front.hold(len(prepared[0].body))):
                self._prepared(*prepared)
        except Refused as fault:
            if not self.settled:
                self.refuse(fault.code, fault.message, fault.param, fault.retry_after)
        except Exception:
            self._internal_error()

    def _internal_error(self) -> None:
        """A fault of our own, not foreseen: logged, told, and nothing stays behind."""
        log.exception("a request failed inside the gateway", request=self.request_id.decode("latin-1"))
        if self.settled:
            return
        if self.attempt is not None:
            self._drop(self.attempt, "cancelled")
        self.service.waiting.leave(self)
        self.refuse("internal_error", "The gateway failed on this request; its log says more.")

    def _prepared(self, view: RequestView | None, model: str, query: Query) -> None:
        self.view = view
        self.model = model
        self.query = query
        self.stream = view is not None and view.stream
        self.service.retries.request(self.ready_at)
        if not self.service.place(self):
            self.service.wait(self)

    def queued(self) -> None:
        """No replica can take this request now; it waits."""
        self.phase = "queued"
        self.queued_at = self.service.clock()

    def expired(self) -> None:
        """Waited as long as it may."""
        reason, message = self.service.why_waiting(self)
        self.refuse(reason, message, retry_after=1)

    def start(self, decision: Decision, attempt: Attempt) -> None:
        """Send the request to the replica that was chosen and booked."""
        now = self.service.clock()
        if self.queued_at is not None:
            self.queue_s += now - self.queued_at
            self.queued_at = None
        self.decision = decision
        self.attempt = attempt
        self.phase = "connecting"
        route = self.route = self.service.route(attempt.replica)
        self.own_key = route.own_key
        attempt.injected = self.service.injects(self, attempt.replica)
        self._send(attempt, route)

    def _send(self, attempt: Attempt, route: Route, *, fresh: bool = False) -> None:
        view = self.view
        tries = len(self.tries)
        self.tries.append((attempt.replica.id, ""))
        body = [] if view is None else view.rewrite(self.service.model_to_send(view, attempt.replica), attempt.injected)
        rid = self.request_id if not tries else b"%b-%d" % (self.request_id, tries + 1)
        encoding = b"identity" if attempt.injected else self.head.fields.get(b"accept-encoding")
        lines = client_lines(route, self.head, forward_auth=self.service.settings.server.forward_auth)
        head = request_head(route, self.head, lines, rid, encoding, sum(map(len, body)))
        if not tries:
            self.overhead = self.service.clock() - self.ready_at - self.queue_s
        attempt.call = route.pool.send([head, *body], attempt, method=self.head.method, fresh=fresh)
        if self.paused:
            attempt.call.pause()

    # -- what becomes of a try ---------------------------------------------------------------------------------------

    def another_try(self, attempt: Attempt, outcome: Outcome) -> bool:
        """Give the request to another replica if that is allowed and one can take it. True: this attempt is over."""
        service = self.service
        sent = attempt.sent_at is not None
        allowed = outcome in RETRYABLE or (outcome == "timeout" and service.settings.retries.on_timeout)
        if self.started or not allowed or self.query is None:
            return False
        if sent and self.sends + 1 >= service.settings.retries.attempts:
            return False
        if not service.others(self, attempt) or (sent and not service.retries.take(service.clock())):
            return False
        self.sends += sent
        self._drop(attempt, outcome)
        self.query.exclude = (*self.query.exclude, attempt.replica.id)
        return service.place(self)

    def held_answer(self, attempt: Attempt, answer: Answer) -> None:
        """A replica answered with an error that another one may not have."""
        if attempt.refuses_injection(answer):
            self.service.injection_refused(attempt.replica)
            attempt.injected = False
            self._again(attempt)
            return
        outcome = self.service.outcome(answer.status, self.own_key)
        if outcome != "auth":
            self.answer = answer  # a 401 that names our own credential is never shown
        if not self.another_try(attempt, outcome):
            self._give_up(attempt, outcome, ERROR_CODES.get(outcome, ""))

    def failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """The connection to the replica failed."""
        if error.reused and not error.begun and error.kind == "reset" and not self.started:
            self._again(attempt)  # an idle connection the replica had just closed: nobody's fault
            return
        outcome: Outcome = "connect" if error.kind == "connect_timeout" else error.kind
        code = ERROR_CODES[error.kind]
        if self.started:
            self.broken_stream(attempt, b"", outcome, code)
        elif not self.another_try(attempt, outcome):
            self._give_up(attempt, outcome, code)

    def timed_out(self, attempt: Attempt, code: str) -> None:
        """A deadline passed while the replica had the request."""
        if self.started:
            self.broken_stream(attempt, b"", "timeout", code)
        elif not self.another_try(attempt, "timeout"):
            self._give_up(attempt, "timeout", code)

    def _again(self, attempt: Attempt) -> None:
        """Send once more to the same replica, on a fresh connection."""
        self.tries[-1] = (attempt.replica.id, "resent")
        attempt.restart()
        self._send(attempt, self.service.route(attempt.replica), fresh=True)

    def _give_up(self, attempt: Attempt, outcome: Outcome, code: str) -> None:
        """No further try: the client gets the last answer a replica gave, or ours."""
        if self.attempt is attempt:
            self._drop(attempt, outcome)
        answer = self.answer
        if answer is not None:
            self._deliver(answer)
        elif attempt.decision.fail_open and outcome == "connect":
            retry_after = self.service.table.retry_after(self.model, self.service.clock())
            self.refuse("no_replica_ready", f"No replica of {self.model!r} can serve right now.", retry_after=retry_after)
        else:
            self.refuse(code or "upstream_reset", f"The replica serving {self.model!r} failed: {code or outcome}.")

    def _drop(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.hang_up()
        self._tell(attempt, outcome)

    # -- the answer --------------------------------------------------------------------------------------------------

    def bodiless(self, status: int) -> bool:
        """Does an answer with this status to this request have no body?"""
        return status in (204, 304) or self.head.method == b"HEAD"

    def open_response(self, attempt: Attempt, data: bytes) -> None:
        """Head and first bytes of the replica's answer, in one write. No other replica will be asked: the request can be let go of."""
        self.started = True
        self.skips_cache = self.view is not None and not _SKIPS_CACHE.isdisjoint(self.view.fields)
        self.view = self.query = None
        self.status = attempt.status
        self.phase = "streaming"
        if attempt.mode == STREAMING and attempt.injected:
            attempt.length = None
        attempt.chunked = is_chunked(self.head.minor, attempt.length) and not self.bodiless(attempt.status)
        head = final_head(self, attempt.status, attempt.headers, attempt.length)
        self.front.transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data) if attempt.chunked and data else head + data)
        if attempt.scanner is not None:
            self._remember(attempt, data)

    def _remember(self, attempt: Attempt, *data: bytes) -> None:
        """Note which replica made the response that begins with `data`."""
        if self.endpoint.name == "responses" and attempt.status < 300:
            self.service.pins.learn(b"".join(data)[:4096], attempt.replica.id)

    def finish(self, attempt: Attempt, tail: bytes, outcome: Outcome) -> None:
        """The answer is complete."""
        if tail:
            self.front.transport.write(tail)
        if outcome == "server_error" and self.status < 400:
            self.reason = "stream_error"
        if attempt.scanner is None:
            self._remember(attempt, *attempt.held)
        delimited = attempt.chunked or attempt.length is not None or self.bodiless(self.status)
        self._leave(attempt, outcome)
        self._settle("replica", attempt, outcome, close=not delimited)

    def broken_stream(self, attempt: Attempt, data: bytes, outcome: Outcome, code: str) -> None:
        """A started answer cannot be completed: tell the client where its protocol allows, then end without the final chunk."""
        scanner = attempt.scanner
        if scanner is not None and scanner.done and scanner.at_boundary:
            attempt.hang_up()
            attempt.end_stream(data)  # what broke is only the connection: the client has its whole answer
            return
        if scanner is not None and scanner.at_boundary and not scanner.error:
            culprit = "This gateway" if outcome == "cancelled" else f"The replica serving {self.model!r}"
            told = event(self.endpoint.shape, code, f"{culprit} ended the stream before its end: {code}.")
            data += b"%x\r\n%b\r\n" % (len(told), told) if attempt.chunked else told
        if data:
            self.front.transport.write(data)
        self.reason = code
        delimited = attempt.chunked or attempt.length is not None
        self._drop(attempt, outcome)
        self._settle(_ended_by(code), close=True, cut=not delimited)

    def _deliver(self, answer: Answer) -> None:
        self.started = True
        self.status = answer.status
        self.route = self.service.route(answer.replica)  # named as the one that answers, though others may have been tried since
        self.bytes_out = len(answer.body)
        head = final_head(self, answer.status, answer.headers, len(answer.body))
        self.front.transport.write(head + answer.body)
        self._settle("replica")

    def refuse(self, code: str, message: str, param: str | None = None, retry_after: float | None = None) -> None:
        """Answer with one of the gateway's own errors."""
        self.reason = code
        self.started = True
        self.status, reply = error_response(self, code, message, param, retry_after)
        self.front.transport.write(reply)
        self._settle("timeout" if self.status == 504 else "gateway")

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called four times a second: deadlines are kept here, not by a timer per request."""
        timeouts = self.service.settings.timeouts
        attempt = self.attempt
        if timeouts.total_s is not None and now - self.began > timeouts.total_s:
            self._out_of_time("total_timeout")
        elif attempt is not None and attempt.sent_at is not None:
            self._look(attempt, attempt.sent_at, now)
            code = self._overdue(attempt, now)
            if code is not None:
                self.timed_out(attempt, code)

    def _look(self, attempt: Attempt, sent_at: float, now: float) -> None:
        """Has anything come since the last look?"""
        if sent_at != self.seen_sent_at:  # another try, or the same one sent again
            self.seen_sent_at = self.seen_at = self.seen_data_at = sent_at
            self.seen_bytes = self.seen_events = 0
        scanner = attempt.scanner
        moved = attempt.bytes != self.seen_bytes
        told = moved if scanner is None else scanner.events != self.seen_events
        if told:
            attempt.slot.progress(now)
        if moved or self.paused:
            self.seen_bytes = attempt.bytes
            self.seen_at = now
        if told or scanner is None or self.paused:
            self.seen_events = 0 if scanner is None else scanner.events
            self.seen_data_at = now

    def _overdue(self, attempt: Attempt, now: float) -> str | None:
        timeouts = self.service.settings.timeouts
        assert attempt.sent_at is not None
        if not self.stream:
            return "total_timeout" if now - attempt.sent_at > timeouts.unary_s else None
        if not attempt.bytes:
            return "first_byte_timeout" if now - attempt.sent_at > timeouts.first_byte_s else None
        if now - self.seen_at > timeouts.idle_s or (
            attempt.mode in (OPENING, STREAMING) and now - self.seen_data_at > timeouts.data_idle_s
        ):
            return "idle_timeout"
        return None

    def _out_of_time(self, code: str) -> None:
        attempt = self.attempt
        if attempt is not None:
            outcome: Outcome = "cancelled" if attempt.bytes else "timeout"  # a replica that was answering is not to blame
            if self.started:
                self.broken_stream(attempt, b"", outcome, code)
                return
            self._drop(attempt, outcome)
        self.service.waiting.leave(self)
        self.refuse(code, f"The request took longer than the {self.service.settings.timeouts.total_s} s it may take.")

    # -- settle ------------------------------------------------------------------------------------------------------

    def _tell(self, attempt: Attempt, outcome: Outcome) -> None:
        """This attempt is over, though perhaps not the request: its slot must be free before another replica is chosen."""
        self._leave(attempt, outcome)
        self.service.tried(self, attempt, outcome)

    def _leave(self, attempt: Attempt, outcome: Outcome) -> None:
        """This attempt is over."""
        self.attempt = None
        self.bytes_out = attempt.bytes
        self.tries[-1] = (attempt.replica.id, outcome)

    def _settle(
        self, ended_by: EndedBy, attempt: Attempt | None = None, outcome: Outcome = "ok", *, close: bool = False, cut: bool = False
    ) -> None:
        """The end of every path: the connection is free for the next request, and what was learned is handed in, with that of the
        last attempt unless it was told before.
        """
        if self.settled:
            return
        self._book(ended_by, attempt, outcome)
        if cut:
            self.front.cut()
        else:
            self.front.end(close=close)

    def _book(self, ended_by: EndedBy, attempt: Attempt | None = None, outcome: Outcome = "ok") -> None:
        self.settled = True
        self.service.ended(self, attempt, outcome, ended_by)


def _ended_by(code: str) -> EndedBy:
    """Who ends a stream with this error."""
    status = ERRORS[code][0]
    return "timeout" if status == 504 else "gateway" if status == 503 else "replica"
