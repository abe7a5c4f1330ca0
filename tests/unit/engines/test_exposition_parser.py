from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.engines.prom import Sample, finite, labels, mean, parse, total
from gateway.engines.vllm import FAMILIES

DATA = Path(__file__).parent / "data"
A = frozenset({b"a"})


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        (b"a 1", Sample(b"", 1.0)),
        (b"a{} 2.5", Sample(b"", 2.5)),
        (b'a{x="1"} 3', Sample(b'x="1"', 3.0)),
        (b'a {x="1",} 3', Sample(b'x="1",', 3.0)),
        (b'  a\t{ x = "1" }\t3  ', Sample(b' x = "1" ', 3.0)),
        (b'a{x="}{,\\" \\\\"} 4', Sample(b'x="}{,\\" \\\\"', 4.0)),
        (b'a{x="#"} 1.79611042e+09', Sample(b'x="#"', 1796110420.0)),
        (b"a 5 1700000000000", Sample(b"", 5.0)),
        (b'a 6 # {trace_id="b"} 0.5 1.0', Sample(b"", 6.0)),
        (b"a 7\r", Sample(b"", 7.0)),
        (b"a -1.5E-3", Sample(b"", -0.0015)),
    ],
)
def test_a_sample_is_read_however_it_is_written(line: bytes, sample: Sample) -> None:
    """Blanks, trailing commas, escapes, exponents, timestamps, exemplars, CR: all legal."""
    for body in (line, b"# HELP a b\n" + line + b"\n", line + b"\n# EOF\n"):
        assert parse(body, A) == {b"a": [sample]}


@pytest.mark.parametrize(
    "line", [b"a NaN", b"a +Inf", b"a -Inf", b"a nonsense", b"a", b"a{", b'a{x="1', b'a{x="1"}', b"ab 1", b"xa 1", b'b{x="\\na 1"} 2', b""]
)
def test_what_is_no_number_of_the_wanted_name_is_left_out(line: bytes) -> None:
    """A line that cannot be read costs that line alone."""
    assert parse(line + b"\na 9\n", A) == {b"a": [Sample(b"", 9.0)]}


def test_a_name_that_begins_like_a_wanted_one_is_another() -> None:
    """`num_requests_waiting_by_reason` is not `num_requests_waiting`."""
    assert parse(b"a_by_reason 5\na:x 6\na 1\n", A) == {b"a": [Sample(b"", 1.0)]}


def test_labels_are_unescaped() -> None:
    """Backslash, quote and line feed are the escapes of the format."""
    assert labels(b'a="1", b = "x\\"y\\\\n\\n" ,c="",') == {"a": "1", "b": 'x"y\\n\n', "c": ""}


def test_label_values_may_hold_anything() -> None:
    """Model names are chosen by people."""
    assert labels('m="ünï {7B},=é"'.encode()) == {"m": "ünï {7B},=é"}
    assert labels(b'm="\xff\xfe"') == {"m": "\ufffd\ufffd"}


def test_the_newer_of_two_names_wins_and_they_are_not_added() -> None:
    """A version may expose one figure under both names."""
    samples = parse(b"a 2\nb 2\nb 4\n", frozenset({b"a", b"b"}))
    assert (total(samples, b"b", b"a"), mean(samples, b"b", b"a"), total(samples, b"c", b"a"), total(samples, b"c")) == (6, 3, 2, None)


@pytest.mark.parametrize(("text", "value"), [(b"1e3", 1000.0), (b"inf", None), (b"nan", None), (b"x", None), (b"", None)])
def test_only_finite_numbers_count(text: bytes, value: float | None) -> None:
    """Nothing that arithmetic would choke on gets in."""
    assert finite(text) == value


def test_hostile_bodies_cost_no_more_than_their_length() -> None:
    """No input makes the search backtrack."""
    for body in (b'a{x="' + b"\\" * 200_000, b'\na{x="1"' * 20_000, b"a{" + b'"x",' * 50_000, b"\n" * 300_000, b"a" * 300_000):
        began = time.perf_counter()
        parse(body, A)
        assert time.perf_counter() - began < 0.5


def test_a_full_exposition_is_read_in_little_time() -> None:
    """It happens every second for every replica, on the loop that serves requests. The bound leaves room for a slow machine."""
    body = (DATA / "vllm_0.32_idle.txt").read_bytes()
    assert len(body) > 60_000
    parse(body, FAMILIES)
    fastest = 1.0
    for _ in range(20):
        began = time.perf_counter()
        parse(body, FAMILIES)
        fastest = min(fastest, time.perf_counter() - began)
    assert fastest < 0.0015
