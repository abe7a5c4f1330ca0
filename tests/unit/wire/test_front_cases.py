"""Smuggling, malformed framing and every other way to write a request: the same answer however the bytes arrive."""

from __future__ import annotations

import pytest

from gateway.wire.front import FrontLimits
from tests.unit.wire.front_cases import CASES, N
from tests.unit.wire.front_helpers import Connection

LIMITS = FrontLimits(headers=128)
BY_NAME = [pytest.param(raw, story, id=name) for name, raw, story in CASES]


def story_of(*pieces: bytes) -> list[str | int]:
    return Connection(limits=LIMITS).feed(*pieces).story


@pytest.mark.parametrize(("raw", "story"), BY_NAME)
def test_a_case_that_arrives_in_one_read(raw: bytes, story: list[str | int]) -> None:
    """Each row is answered as the table says."""
    assert story_of(raw) == story


@pytest.mark.parametrize(("raw", "story"), BY_NAME)
def test_a_case_that_arrives_byte_by_byte(raw: bytes, story: list[str | int]) -> None:
    """Reading one byte at a time changes nothing."""
    assert story_of(*(raw[i : i + 1] for i in range(len(raw)))) == story


@pytest.mark.parametrize(("raw", "story"), BY_NAME)
def test_a_case_split_at_every_position(raw: bytes, story: list[str | int]) -> None:
    """Nor does any cut in two, long rows being cut at their ends and at a sample between."""
    step = 1 if len(raw) < 8192 else 997
    positions = sorted({*range(1, min(len(raw), 300)), *range(1, len(raw), step), *range(max(1, len(raw) - 300), len(raw))})
    assert [i for i in positions if story_of(raw[:i], raw[i:]) != story] == []


@pytest.mark.parametrize(("raw", "story"), BY_NAME)
def test_a_case_on_a_connection_that_was_used_before(raw: bytes, story: list[str | int]) -> None:
    """The second request of a connection is read as strictly as the first, pipelined or not."""
    expected = ["GET /n 0", *story]
    assert story_of(N, raw) == expected
    assert story_of(N + raw) == expected
