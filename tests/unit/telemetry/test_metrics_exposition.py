"""What a Prometheus server reads from `/metrics`."""

from __future__ import annotations

import math
import random
import string
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gateway.telemetry import Collector, Gauge, LoopLag, Stats
from tests.unit.telemetry.telemetry_fakes import Row, Signal, Timers, record

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Every release keeps these, with these labels.
KEPT = {
    "kvgate_build_info": {"version"},
    "kvgate_requests_total": {"model", "endpoint", "code", "reason"},
    "kvgate_attempts_total": {"replica", "outcome"},
    "kvgate_request_ttft_seconds_bucket": {"model", "le"},
    "kvgate_request_tpot_seconds_bucket": {"model", "le"},
    "kvgate_request_duration_seconds_bucket": {"model", "le"},
    "kvgate_overhead_seconds_bucket": {"le"},
    "kvgate_queue_seconds_bucket": {"model", "le"},
    "kvgate_prompt_tokens_total": {"model"},
    "kvgate_cached_tokens_total": {"model"},
    "kvgate_completion_tokens_total": {"model"},
    "kvgate_replica_inflight_requests": {"replica"},
    "kvgate_replica_state": {"replica", "state"},
    "kvgate_replica_score": {"replica", "term"},
    "kvgate_replica_signal_age_seconds": {"replica", "signal"},
    "kvgate_prefix_predicted_tokens_total": {"replica"},
    "kvgate_prefix_actual_tokens_total": {"replica"},
    "kvgate_prefix_index_blocks": {"replica"},
    "kvgate_loop_lag_seconds_bucket": {"le"},
}


class Site:
    """A gateway's telemetry with everything around it under the test's control."""

    def __init__(self, models: tuple[str, ...] = ("llama", "qwen"), gauges: tuple[Gauge, ...] = ()) -> None:
        self.stats = Stats(models.__contains__, {"chat", "embeddings"}.__contains__)
        self.lag = LoopLag(Timers(), clock=lambda: 0.0)  # type: ignore[arg-type]  # all it needs of a loop
        self.rows: list[Row] = []
        self.scores: dict[str, dict[str, float | None]] = {}
        self.blocks: dict[str, int] = {}
        self.collector = Collector(
            self.stats,
            self.lag,
            version="1.2.3",
            fleet=lambda: self.rows,
            scores=lambda: self.scores,
            blocks=lambda: self.blocks,
            gauges=gauges,
        )

    def families(self) -> dict[str, Metric]:
        """All metrics, read back from their text."""
        text, _ = self.collector.render()
        return {family.name: family for family in parse_text(text.decode())}

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Label values (in the order of the labels' names) and values of one sample name."""
        found = [s for family in self.families().values() for s in family.samples if s.name == name]
        return {tuple(value for _, value in sorted(s.labels.items())): s.value for s in found}

    def series(self) -> int:
        """How many series there are."""
        return sum(len(family.samples) for family in self.families().values())


def busy() -> Site:
    """A site where everything has happened once."""
    site = Site()
    site.stats.record(record())
    site.stats.record(record(status=503, reason="no_replica_ready", ended_by="gateway", phase="queued", tries=(), attempts=0, replica=""))
    site.rows = [Row("a", "up", 3, {"running": Signal(0.5), "gpu": Signal(None)}), Row("b", "down")]
    site.scores = {"a": {"total": 0.7, "prefix": 0.5, "gpu": None}}
    site.blocks = {"a": 12, "b": 0}
    site.lag.observe(0.003)
    return site


def test_every_kept_metric_is_there_with_its_labels() -> None:
    """Dashboards and alerts outlive releases."""
    labels = {s.name: set(s.labels) for family in busy().families().values() for s in family.samples}
    assert {name: labels.get(name) for name in KEPT} == KEPT


@pytest.mark.parametrize("accept", ["", "text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0;charset=utf-8"])
def test_the_output_is_valid_in_every_format(accept: str) -> None:
    """Parsed back, it has help, a type, no series twice, and histograms that add up."""
    text, content_type = busy().collector.render(accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    for family in parse(text.decode()):
        assert family.documentation
        assert family.type in {"counter", "gauge", "histogram"}
        series = [(s.name, tuple(sorted(s.labels.items()))) for s in family.samples]
        assert len(series) == len(set(series))
        assert family.type != "counter" or all(s.name.endswith("_total") for s in family.samples)
        assert family.type != "histogram" or _adds_up(family)


@pytest.mark.parametrize("value", ['"', "\\", "\n", "a,b}", "\u00e9\u4e16", ""])
def test_label_values_survive_whatever_they_contain(value: str) -> None:
    """A model may be named almost anything."""
    site = Site(models=(value,))
    site.stats.record(record(model=value))
    assert list(site.samples("kvgate_prompt_tokens_total")) == [(value,)]


@pytest.mark.parametrize("value", [0.0, 1e-9, 1.5, 1e300, 2**60, math.inf, -math.inf])
def test_values_survive_whatever_their_size(value: float) -> None:
    """Prometheus reads back what was meant."""
    assert Site(gauges=(Gauge("x", "X.", lambda: value),)).samples("x") == {(): value}


def test_not_a_number_is_written_as_such() -> None:
    """It equals nothing, so it has a test of its own."""
    assert math.isnan(Site(gauges=(Gauge("x", "X.", lambda: math.nan),)).samples("x")[()])


def _adds_up(family: Metric) -> bool:
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    counts = {}
    for s in family.samples:
        key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
        if s.name.endswith("_bucket"):
            groups.setdefault(key, []).append(s.value)
        elif s.name.endswith("_count"):
            counts[key] = s.value
    return all(values == sorted(values) and values[-1] == counts[key] for key, values in groups.items())


def test_a_registry_gets_the_same_as_the_page() -> None:
    """Own text and the client library's agree sample by sample."""
    site = busy()
    registry = CollectorRegistry()
    registry.register(site.collector)
    theirs = {f.name: _content(f) for f in parse_text(generate_latest(registry).decode())}
    assert {name: _content(f) for name, f in site.families().items() if name.startswith("kvgate")} == theirs


def _content(family: Metric) -> object:
    samples = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in family.samples}
    return family.type, family.documentation, samples


def test_metrics_of_the_process_are_there_too() -> None:
    """Memory, CPU and descriptors come with the gateway's own."""
    text = busy().collector.render()[0].decode()
    assert "process_resident_memory_bytes" in text
    assert "process_open_fds" in text


def test_requests_are_counted_by_model_endpoint_status_and_reason() -> None:
    """However they ended."""
    expected = {("200", "chat", "llama", ""): 1, ("503", "chat", "llama", "no_replica_ready"): 1}
    assert busy().samples("kvgate_requests_total") == expected
    assert busy().samples("kvgate_request_ends_total") == {("replica", "done"): 1, ("gateway", "queued"): 1}


def test_every_try_is_counted_with_its_outcome() -> None:
    """A request that needed two replicas shows at both."""
    site = Site()
    site.stats.record(record(tries=(("a", "connect"), ("b", "ok")), attempts=2, replica="b"))
    site.stats.record(record(tries=(("b", "ok"),), replica="b"))
    assert site.samples("kvgate_attempts_total") == {("connect", "a"): 1, ("ok", "b"): 2}


def test_times_and_tokens_are_measured_per_model() -> None:
    """A bound belongs to its bucket; sums are exact."""
    site = busy()
    ttft = site.samples("kvgate_request_ttft_seconds_bucket")
    assert (ttft["0.2", "llama"], ttft["0.3", "llama"], ttft["+Inf", "llama"]) == (0, 2, 2)
    assert site.samples("kvgate_request_ttft_seconds_sum") == {("llama",): 0.5}
    assert site.samples("kvgate_request_duration_seconds_count") == {("llama",): 2}
    assert site.samples("kvgate_prompt_tokens_total") == {("llama",): 2000}
    assert site.samples("kvgate_completion_tokens_total") == {("llama",): 200}


def test_a_value_on_a_bound_is_within_it() -> None:
    """`le` means less or equal."""
    site = Site()
    site.stats.record(record(ttft_s=0.1))
    ttft = site.samples("kvgate_request_ttft_seconds_bucket")
    assert (ttft["0.075", "llama"], ttft["0.1", "llama"]) == (0, 1)


def test_requests_that_reached_no_replica_have_no_overhead_or_queue_time() -> None:
    """Refusals would make the gateway look faster than it is."""
    site = Site()
    site.stats.record(record(attempts=0, tries=(), replica="", ttft_s=None, tpot_s=None))
    assert site.samples("kvgate_overhead_seconds_count") == {(): 0}
    assert site.samples("kvgate_queue_seconds_count") == {("llama",): 0}


def test_unknown_tokens_count_as_nothing() -> None:
    """Unknown is not zero cached tokens: such answers stay out of predicted against actual."""
    site = Site()
    site.stats.record(record(prompt_tokens=None, cached_tokens=None, completion_tokens=None))
    site.stats.record(record(cached_tokens=0))
    assert site.samples("kvgate_prefix_predicted_tokens_total") == {("a",): 500}
    assert site.samples("kvgate_prefix_actual_tokens_total") == {("a",): 0}
    assert site.samples("kvgate_prompt_tokens_total") == {("llama",): 1000}


def test_a_replica_is_in_exactly_one_state() -> None:
    """Also in a state this version's list does not have."""
    site = Site()
    site.rows = [Row("a", "up"), Row("b", "down"), Row("c", "novel")]
    states = site.samples("kvgate_replica_state")
    assert {key for key, value in states.items() if value} == {("a", "up"), ("b", "down"), ("c", "novel")}
    assert states["a", "down"] == 0


def test_a_replica_of_several_models_is_one_replica() -> None:
    """Its rows add up, and it is up when it can serve one of them."""
    site = Site()
    site.rows = [Row("a", "unusable", 1), Row("a", "up", 2), Row("a", "unusable", 0)]
    assert site.samples("kvgate_replica_inflight_requests") == {("a",): 3}
    assert site.samples("kvgate_replica_state")["a", "up"] == 1


def test_missing_terms_and_signals_are_absent_and_said_to_be_missing() -> None:
    """Nobody mistakes unknown for zero."""
    site = busy()
    assert site.samples("kvgate_replica_score") == {("a", "prefix"): 0.5, ("a", "total"): 0.7}
    assert site.samples("kvgate_replica_score_missing") == {("a", "gpu"): 1, ("a", "prefix"): 0, ("a", "total"): 0}
    assert site.samples("kvgate_replica_signal_age_seconds") == {("a", "running"): 0.5}


def test_reloads_show_and_so_does_a_failed_last_one() -> None:
    """A broken file keeps the old settings, and must not go unnoticed."""
    site = Site()
    site.stats.reloaded(ok=True)
    site.stats.reloaded(ok=False)
    assert site.samples("kvgate_config_reloads_total") == {("ok",): 1, ("failed",): 1}
    assert site.samples("kvgate_config_last_reload_successful") == {(): 0}


def test_further_gauges_are_read_when_scraped() -> None:
    """Their values are never old."""
    value = [1.0]
    site = Site(gauges=(Gauge("kvgate_connections", "Open client connections.", lambda: value[0]),))
    value[0] = 7.0
    assert site.samples("kvgate_connections") == {(): 7}


def test_names_from_requests_never_become_label_values() -> None:
    """Thousands of invented models, endpoints and statuses share the same few series; the page stays small."""
    site = Site()
    dice = random.Random(1)

    def word() -> str:
        return "".join(dice.choices(string.ascii_lowercase, k=12))

    def flood(times: int) -> None:
        for _ in range(times):
            strange: dict[str, Any] = {
                "model": word(),
                "endpoint": word(),
                "client": word(),
                "key": word(),
                "status": dice.choice((404, 9999, -1)),
            }
            site.stats.record(record(**strange, reason="model_not_found", attempts=0, tries=(), replica="", cached_tokens=None))

    flood(10)
    before = site.series()
    flood(5000)
    assert site.series() == before
    assert set(site.samples("kvgate_requests_total")) == {(code, "unknown", "unknown", "model_not_found") for code in ("404", "0")}
    assert sum(site.samples("kvgate_requests_total").values()) == 5010
    assert len(site.collector.render()[0]) < 20_000


def test_series_are_bounded_even_for_known_names() -> None:
    """Discovery that lists ever new names cannot fill the memory either."""
    stats = Stats(lambda _: True, lambda _: True)
    for n in range(12_000):
        stats.record(record(model=f"m{n}", tries=((f"r{n}", "ok"),), replica=f"r{n}", reason=f"e{n}"))
    assert len(stats.models) <= 1001
    assert len(stats.exchanges) <= 10_001
    assert len(stats.attempts) <= 10_001
    assert len(stats.prefixes) <= 10_001
    assert sum(s.count for s in stats.exchanges.values()) == 12_000
    assert sum(c[0] for c in stats.attempts.values()) == 12_000
