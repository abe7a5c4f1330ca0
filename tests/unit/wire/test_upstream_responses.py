"""Every kind of response, from a real socket into a sink."""

import pytest

from tests.unit.wire.scripted_upstream import REQUEST, Peer, Sink, ask, pool_for, replica, until
from tests.unit.wire.upstream_cases import CASES, PLAIN, Case

TOLD = {"reuse": "finished", "drop": "finished", "cut": "failed", "refused": "failed"}


# Size limits do not depend on the borders of reads.
RUNS = [pytest.param(case, False, id=case.name) for case in CASES]
RUNS += [pytest.param(case, True, id=f"{case.name}, bytewise") for case in CASES if len(case.data) < 3000]


@pytest.mark.parametrize(("case", "bytewise"), RUNS)
async def test_response(case: Case, bytewise: bool) -> None:
    """Good answers arrive once and whole; a connection is kept exactly when nothing on it is in doubt."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*([case.data[i : i + 1] for i in range(len(case.data))] if bytewise else [case.data]))
        if case.then == "rst":
            await until(lambda: bytes_expected_are_there(case, sink))
            peer.reset()
        elif case.then == "fin":
            peer.close()
        else:
            await peer.request()
            await peer.send(PLAIN)

    sink = Sink()
    async with replica(script) as upstream:
        pool = pool_for(upstream)
        pool.send(REQUEST, sink, method=case.method)
        await sink.wait()
        assert sink.told[-1] == TOLD[case.verdict]
        assert ("response" in sink.told) == (case.verdict != "refused")
        if case.verdict == "reuse":
            assert (pool.idle, pool.open) == (1, 1)
            assert (await ask(pool)).body == b"hi"
            assert len(upstream.peers) == 1
        else:
            await until(lambda: pool.open == 0)
            assert pool.idle == 0
        pool.close()
    check(case, sink)


def bytes_expected_are_there(case: Case, sink: Sink) -> bool:
    return case.verdict == "refused" or sink.body == case.body


def check(case: Case, sink: Sink) -> None:
    if case.verdict in ("reuse", "drop"):
        assert (sink.status, sink.body) == (case.status, case.body)
        assert not {b"link", b"x-t", b"connection", b"transfer-encoding", b"content-length"} & {name.lower() for name, _ in sink.headers}
        return
    assert sink.error is not None
    kinds = {"cut": ("truncated", "protocol"), "refused": ("reset", "protocol")}[case.verdict]
    assert sink.error.kind in kinds
    assert sink.error.begun == bool(case.data)
    assert not sink.error.reused
