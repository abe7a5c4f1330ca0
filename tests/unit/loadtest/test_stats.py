"""Arithmetic of load reports."""

import pytest

from loadtest import stats


def test_percentile_interpolates_between_neighbours() -> None:
    """Between two values it lies on the straight line, and at the ends it is the ends."""
    values = [10.0, 20.0, 30.0, 40.0]
    assert stats.percentile(values, 0.0) == 10.0
    assert stats.percentile(values, 0.5) == 25.0
    assert pytest.approx(39.7) == stats.percentile(values, 0.99)
    assert stats.percentile(values, 1.0) == 40.0


def test_percentile_of_nothing_is_an_error() -> None:
    """No number is made up for an empty measurement."""
    with pytest.raises(ValueError, match="nothing"):
        stats.percentile([], 0.5)


def test_spread_names_its_shares() -> None:
    """Keys read like p50 and p99.9, the order of the input does not matter."""
    assert {"p50": 2.0, "p99.9": pytest.approx(2.998), "max": 3.0, "count": 3} == stats.spread([3.0, 1.0, 2.0], (0.5, 0.999))
    assert stats.spread([]) == {"count": 0}


def test_per_unit_takes_off_idle_cpu() -> None:
    """What the process burns anyway is not charged to the work."""
    assert pytest.approx(100.0) == stats.per_unit(cpu_s=1.5, idle_share=0.1, elapsed_s=5.0, units=10_000)
    assert stats.per_unit(cpu_s=0.1, idle_share=0.1, elapsed_s=5.0, units=10) == 0.0
    assert stats.per_unit(cpu_s=1.0, idle_share=0.0, elapsed_s=1.0, units=0) is None


def test_medians_skip_rounds_that_lack_a_figure() -> None:
    """A figure missing in one round is judged by the others; missing everywhere it is unknown."""
    rounds = [{"a": 1.0, "b": None}, {"a": 9.0, "b": 4.0}, {"a": 2.0}, {"c": None}]
    assert stats.medians(rounds) == {"a": 2.0, "b": 4.0, "c": None}


def test_ratio_compares_within_each_round() -> None:
    """A slow round slows both sides: the median of quotients, not the quotient of medians."""
    ours = [{"x": 10.0}, {"x": 40.0}, {"x": 11.0}]
    theirs = [{"x": 20.0}, {"x": 80.0}, {"x": 110.0}]
    assert stats.ratio(ours, theirs, "x") == 0.5
    assert stats.ratio(ours, [{"x": None}, {"x": 0.0}], "x") is None
