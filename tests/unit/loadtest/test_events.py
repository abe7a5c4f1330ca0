"""Judging the raw replicas' event streams."""

from loadtest.overhead.events import Tally, Watcher

NONCE = b"00000007"


def event(number: int, due: int, sent: int) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"#%07d %019d %019d"}}]}\n\n' % (number, due, sent)


def end(total: int, nonce: bytes = NONCE) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"end %b %07d"}}]}\n\ndata: [DONE]\n\n' % (nonce, total)


def watched(*pieces: bytes, recording: bool = False) -> tuple[Tally, Watcher]:
    tally = Tally()
    tally.recording = recording
    watcher = Watcher(tally, NONCE, started_ns=100)
    for number, piece in enumerate(pieces):
        watcher.feed(piece, now_ns=1000 + number)
    return tally, watcher


def test_a_whole_stream_has_no_fault_wherever_it_is_cut() -> None:
    """Events count once, however reads split them."""
    stream = event(0, 150, 400) + event(1, 900, 950) + end(2)
    for size in (1, 7, 64, len(stream)):
        tally, watcher = watched(*(stream[at : at + size] for at in range(0, len(stream), size)))
        assert watcher.verdict() is None
        assert tally.events == 2
        assert not tally.faults


def test_time_to_first_event_leaves_out_the_replicas_thinking() -> None:
    """From request written (100) to event read (1000), less the 250 between arrival and answer at the replica."""
    tally, watcher = watched(event(0, 150, 400), recording=True)
    assert list(tally.paths) == [650]
    assert watcher.begun
    assert not tally.delays


def test_delay_counts_from_when_the_event_was_due() -> None:
    """The replica's own lateness is told apart: 1001 read, 900 due, 950 written."""
    tally, _ = watched(event(0, 150, 400), event(1, 900, 950), recording=True)
    assert list(tally.delays) == [101]
    assert list(tally.lags) == [50]


def test_lost_repeated_and_swapped_events_are_faults() -> None:
    """Each break of the numbering is counted."""
    for numbers in ((0, 2), (0, 0), (1,)):
        tally, _ = watched(*(event(number, 1, 1) for number in numbers))
        assert tally.faults["event lost, repeated or out of order"] == 1


def test_verdict_names_what_is_missing() -> None:
    """A stream that ends early, short, unfinished or for someone else is not whole."""
    first = event(0, 1, 1)
    assert watched(first)[1].verdict() == "ended without its last event"
    assert watched(first, end(2))[1].verdict() == "events missing"
    assert watched(first, end(1, b"00000008"))[1].verdict() == "answer to another request"
    assert watched(first, end(1).removesuffix(b"data: [DONE]\n\n"))[1].verdict() == "ended without [DONE]"
    assert watched(first, end(1), b"data: more")[1].verdict() == "ended without [DONE]"
