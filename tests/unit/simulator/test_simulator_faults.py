"""Which requests a fault strikes, and for how long."""

from __future__ import annotations

from random import Random

import pytest

from replicas.simulator.faults import Fault, Faults, parse

CHAT = "/v1/chat/completions"


def faults_of(*faults: Fault, seed: int = 0) -> Faults:
    """Faults in force since time 0."""
    out = Faults(Random(seed))
    for fault in faults:
        out.add(fault, 0.0)
    return out


def kind_at(faults: Faults, now: float, path: str = CHAT, *, work: bool = True) -> str | None:
    """What a request meets."""
    fault = faults.strike(path, now, work=work)
    return fault.kind if fault is not None else None


def test_a_count_is_used_up() -> None:
    """Two requests fail, the third does not."""
    faults = faults_of(Fault("500", count=2))
    assert [kind_at(faults, 0.0) for _ in range(3)] == ["500", "500", None]
    assert faults.struck == {"500": 2}


def test_a_fault_ends_after_its_time() -> None:
    """`for_s` counts from the moment it was put into force."""
    faults = faults_of(Fault("hang", for_s=10))
    assert kind_at(faults, 9.9) == "hang"
    assert kind_at(faults, 10.0) is None
    assert faults.active(10.0) == []


def test_probability_is_a_share_of_requests() -> None:
    """A quarter of a thousand, give or take, and the same ones for the same seed."""
    runs = [[kind_at(faults_of(Fault("500", probability=0.25), seed=seed), 0.0) for seed in range(1000)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert 200 < runs[0].count("500") < 300


@pytest.mark.parametrize(
    ("scope", "chat", "health"), [("work", True, False), ("all", True, True), ("/health", False, True), ("/v1/chat", True, False)]
)
def test_scopes(scope: str, *, chat: bool, health: bool) -> None:
    """Requests to the model, everything, or a path prefix."""
    faults = faults_of(Fault("500", scope=scope))
    assert (kind_at(faults, 0.0) is not None, kind_at(faults, 0.0, "/health", work=False) is not None) == (chat, health)


def test_the_first_fault_that_strikes_wins() -> None:
    """In the order given."""
    faults = faults_of(Fault("429", count=1), Fault("503"))
    assert [kind_at(faults, 0.0) for _ in range(2)] == ["429", "503"]


def test_slowness_multiplies_and_passes() -> None:
    """Two slow faults at once, then one, then none; requests themselves do not meet them."""
    faults = faults_of(Fault("slow", factor=2, for_s=5), Fault("slow", factor=3, for_s=10))
    assert [faults.slowness(now) for now in (0.0, 6.0, 11.0)] == [6.0, 3.0, 1.0]
    assert kind_at(faults, 0.0) is None


def test_starting_lasts_as_long_as_it_says() -> None:
    """`seconds`, not `for_s`."""
    faults = faults_of(Fault("slow_start", seconds=3))
    assert [faults.starting(now) for now in (0.0, 2.9, 3.0)] == [True, True, False]


def test_options_do_not_share_state_with_the_faults_in_force() -> None:
    """A fault given twice is used up twice."""
    fault = Fault("500", count=1)
    assert [kind_at(faults_of(fault), 0.0) for _ in range(2)] == ["500", "500"]


def test_command_line_form() -> None:
    """Kind, then values by name."""
    assert parse("stall:after=3,probability=0.5,for_s=10") == Fault("stall", after=3, probability=0.5, for_s=10.0)
    assert parse("500") == Fault("500")


@pytest.mark.parametrize("text", ["", "boom", "500:colour=red", "500:probability=2", "slow:factor=0", "stall:after=x", "500:scope=some"])
def test_wrong_faults_are_refused(text: str) -> None:
    """With the text that was wrong in the message."""
    with pytest.raises(ValueError, match="fault"):
        parse(text)
