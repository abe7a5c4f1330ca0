"""Everything counted, as Prometheus metrics. Built when scraped; nothing of it exists in between."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector as RegistryCollector

from gateway.fleet import STATES
from gateway.telemetry.exposition import Family, as_metric, exposition, negotiated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gateway.telemetry.histogram import Histogram
    from gateway.telemetry.lag import LoopLag
    from gateway.telemetry.records import ReplicaRow
    from gateway.telemetry.stats import ModelStats, Prefix, Stats

    Samples = Mapping[tuple[str, ...], float]
    Scores = Mapping[str, Mapping[str, float | None]]  # replica -> term -> its share of the score; None: the term was unknown


class Gauge(NamedTuple):
    """A number read from elsewhere when scraped."""

    name: str
    help: str
    read: Callable[[], float]


# Name, help, where it is in a model's counters.
_MODEL_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelStats], Histogram]], ...] = (
    ("kvgate_request_ttft_seconds", "From arrival to the first byte of the answer sent to the client.", lambda m: m.ttft),
    ("kvgate_request_tpot_seconds", "Time per output token after the first, of streamed answers.", lambda m: m.tpot),
    ("kvgate_request_duration_seconds", "From arrival to the end of the exchange.", lambda m: m.duration),
    ("kvgate_queue_seconds", "Waiting in the gateway for a replica.", lambda m: m.queue),
)
_MODEL_COUNTERS: tuple[tuple[str, str, Callable[[ModelStats], float]], ...] = (
    ("kvgate_prompt_tokens", "Prompt tokens, as reported by replicas.", lambda m: m.prompt),
    ("kvgate_cached_tokens", "Prompt tokens answered from a replica's cache, as reported by replicas.", lambda m: m.cached),
    ("kvgate_completion_tokens", "Generated tokens, as reported by replicas.", lambda m: m.completion),
)
_PREFIX_COUNTERS: tuple[tuple[str, str, Callable[[Prefix], float]], ...] = (
    (
        "kvgate_prefix_predicted_tokens",
        "Prompt tokens predicted to be cached at a replica, where it told how many were.",
        lambda p: p.predicted,
    ),
    ("kvgate_prefix_actual_tokens", "Prompt tokens the same answers reported as cached.", lambda p: p.actual),
)


class Collector(RegistryCollector):
    """Renders what was counted: `render` as text, `collect` for a `prometheus_client` registry that has more to show (ten times slower).

    `fleet` gives the fleet's rows, `scores` the terms of the last decision each replica was a candidate in, `blocks` the blocks of the
    prefix index per replica, `gauges` any further numbers. All are asked when scraped.
    """

    def __init__(
        self,
        stats: Stats,
        lag: LoopLag,
        *,
        version: str,
        fleet: Callable[[], Iterable[ReplicaRow]],
        scores: Callable[[], Scores],
        blocks: Callable[[], Mapping[str, int]],
        gauges: Iterable[Gauge] = (),
    ) -> None:
        self._stats = stats
        self._lag = lag
        self._version = version
        self._fleet = fleet
        self._scores = scores
        self._blocks = blocks
        self._gauges = tuple(gauges)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The body and content type of an answer to `GET /metrics` with this `accept` header."""
        content_type = negotiated(accept)
        return exposition(chain(self.families(), _process()), content_type), content_type

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are learned by collecting."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The gateway's own metrics as objects."""
        return map(as_metric, self.families())

    def families(self) -> Iterator[Family]:
        """The gateway's own metrics."""
        yield from self._self()
        yield from self._exchanges()
        yield from self._models()
        yield from self._prefixes()
        yield from _replicas(self._fleet())
        yield from _scores(self._scores())

    def _self(self) -> Iterator[Family]:
        stats = self._stats
        yield _gauge("kvgate_build_info", "Version of the gateway.", ("version",), {(self._version,): 1})
        yield _histogram(
            "kvgate_overhead_seconds", "The gateway's own time before a request was written to a replica.", {(): stats.overhead}
        )
        yield _histogram("kvgate_loop_lag_seconds", "How late the event loop ran what was due.", {(): self._lag.histogram})
        yield _gauge("kvgate_loop_lag_max_seconds", "The worst lag of the last one to two minutes.", (), {(): self._lag.worst})
        reloads: Samples = {("ok",): stats.reloads[True], ("failed",): stats.reloads[False]}
        yield _counter("kvgate_config_reloads", "Reloads of the settings.", ("result",), reloads)
        yield _gauge("kvgate_config_last_reload_successful", "1 when the last reload took effect.", (), {(): stats.reloaded_last})
        for gauge in self._gauges:
            yield _gauge(gauge.name, gauge.help, (), {(): gauge.read()})

    def _exchanges(self) -> Iterator[Family]:
        requests: Counter[tuple[str, ...]] = Counter()
        ends: Counter[tuple[str, ...]] = Counter()
        for (model, endpoint, status, reason, ended_by, phase), series in self._stats.exchanges.items():
            requests[model, endpoint, str(status), reason] += series.count
            ends[ended_by, phase] += series.count
        yield _counter("kvgate_requests", "Requests answered.", ("model", "endpoint", "code", "reason"), requests)
        yield _counter("kvgate_request_ends", "Who ended requests, and in which phase.", ("ended_by", "phase"), ends)
        attempts: Samples = {key: count[0] for key, count in self._stats.attempts.items()}
        yield _counter("kvgate_attempts", "Tries at replicas by outcome.", ("replica", "outcome"), attempts)

    def _models(self) -> Iterator[Family]:
        models = self._stats.models
        for name, text, histogram in _MODEL_HISTOGRAMS:
            yield _histogram(name, text, {(model,): histogram(stats) for model, stats in models.items()}, ("model",))
        for name, text, count in _MODEL_COUNTERS:
            yield _counter(name, text, ("model",), {(model,): count(stats) for model, stats in models.items()})

    def _prefixes(self) -> Iterator[Family]:
        for name, text, count in _PREFIX_COUNTERS:
            yield _counter(name, text, ("replica",), {(replica,): count(prefix) for replica, prefix in self._stats.prefixes.items()})
        blocks: Samples = {(replica,): float(count) for replica, count in self._blocks().items()}
        yield _gauge("kvgate_prefix_index_blocks", "Blocks of prompt prefix the index holds for a replica.", ("replica",), blocks)


def _replicas(rows: Iterable[ReplicaRow]) -> Iterator[Family]:
    inflight: Counter[tuple[str, ...]] = Counter()
    states: dict[str, str] = {}
    ages: dict[tuple[str, ...], float] = {}
    for row in rows:
        # A server that serves several models has a row for each; it counts as up when it can serve one of them.
        inflight[row.id,] += row.inflight
        if row.state == "up" or row.id not in states:
            states[row.id] = row.state
        ages.update({(row.id, signal): reading.age_s for signal, reading in row.signals.items() if reading.age_s is not None})
    yield _gauge("kvgate_replica_inflight_requests", "Requests of this gateway running at a replica.", ("replica",), inflight)
    each: Samples = {(replica, state): float(state == now) for replica, now in states.items() for state in dict.fromkeys((*STATES, now))}
    yield _gauge("kvgate_replica_state", "1 for the state a replica is in.", ("replica", "state"), each)
    yield _gauge("kvgate_replica_signal_age_seconds", "Age of what is known about a replica.", ("replica", "signal"), ages)


def _scores(scores: Scores) -> Iterator[Family]:
    terms: dict[tuple[str, ...], float | None] = {(replica, term): value for replica, own in scores.items() for term, value in own.items()}
    known: Samples = {key: value for key, value in terms.items() if value is not None}
    yield _gauge("kvgate_replica_score", "Score of the last decision a replica was a candidate in.", ("replica", "term"), known)
    missing: Samples = {key: float(value is None) for key, value in terms.items()}
    yield _gauge("kvgate_replica_score_missing", "1 when that decision had to do without this term.", ("replica", "term"), missing)


def _process() -> Iterator[Family]:
    """Memory, CPU and descriptors of this process."""
    for metric in ProcessCollector(registry=None).collect():
        kind: Literal["counter", "gauge"] = "counter" if metric.type == "counter" else "gauge"
        yield Family(metric.name, kind, metric.documentation, (), {(): metric.samples[0].value})


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Family:
    return Family(name, "counter", text, labels, samples)


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Family:
    return Family(name, "gauge", text, labels, samples)


def _histogram(name: str, text: str, samples: Mapping[tuple[str, ...], Histogram], labels: tuple[str, ...] = ()) -> Family:
    return Family(name, "histogram", text, labels, samples)
