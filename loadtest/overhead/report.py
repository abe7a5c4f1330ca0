"""From the rounds' figures to a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest import stats

Round = Mapping[str, float | None]

FLOOR, RIVAL, DIRECT = "pipe", "smg", "direct"

_ADDED = [f"ttft_{load}_{part}_ms" for load in ("idle", "100", "1000") for part in ("p50", "p99")]

# Heading, figure, factor to the shown unit, format.
_COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("µs/request 2 KB", "us_per_request_2k", 1, ".0f"),
    ("µs/request 60 KB", "us_per_request_60k", 1, ".0f"),
    ("µs/chunk, 100 streams", "us_per_chunk_100", 1, ".1f"),
    ("µs/chunk, 1,000 streams", "us_per_chunk_1000", 1, ".1f"),
    ("added TTFT ms idle p50", "added_ttft_idle_p50_ms", 1, ".2f"),
    ("p99", "added_ttft_idle_p99_ms", 1, ".2f"),
    ("100 streams p50", "added_ttft_100_p50_ms", 1, ".2f"),
    ("p99", "added_ttft_100_p99_ms", 1, ".2f"),
    ("1,000 streams p50", "added_ttft_1000_p50_ms", 1, ".2f"),
    ("p99", "added_ttft_1000_p99_ms", 1, ".2f"),
    ("RSS idle MB", "rss_idle", 1e-6, ".0f"),
    ("KB/stream", "rss_per_stream_1000", 1e-3, ".1f"),
    ("idle CPU %", "idle_cpu_share", 100, ".1f"),
)
_RATIOS = ("us_per_request_2k", "us_per_request_60k", "us_per_chunk_100", "us_per_chunk_1000")
_RATIO_HEADINGS = ("request 2 KB", "request 60 KB", "chunk, 100", "chunk, 1,000")


def with_added(rounds: Sequence[Round], direct: Sequence[Round]) -> list[dict[str, float | None]]:
    """Each round's figures plus its times to first token beyond those of the same round without a proxy."""
    complete = []
    for index, figures in enumerate(rounds):
        base = direct[index] if index < len(direct) else {}
        added = {f"added_{name}": _difference(figures.get(name), base.get(name)) for name in _ADDED}
        complete.append({**figures, **added})
    return complete


def summarize(results: Mapping[str, Sequence[Round]]) -> dict[str, dict[str, float | None]]:
    """Medians of each proxy over its rounds, added times and ratios to the floor and to SMG included."""
    direct = results.get(DIRECT, ())
    summary = {}
    for name, rounds in results.items():
        medians = stats.medians(with_added(rounds, direct if name != DIRECT else ()))
        for figure in _RATIOS:
            for base, reference in (("floor", FLOOR), ("smg", RIVAL)):
                medians[f"{figure}_to_{base}"] = stats.ratio(rounds, results.get(reference, ()), figure)
        summary[name] = medians
    return summary


def markdown(summary: Mapping[str, Round], titles: Mapping[str, str]) -> str:
    """Two Markdown tables, one row per proxy: costs, and ratios to the floor and to SMG."""
    shown = [name for name in summary if name != DIRECT]
    costs = [[titles[name], *(_cell(summary[name].get(key), factor, form) for _, key, factor, form in _COLUMNS)] for name in shown]
    bases = [f"{key}_to_{base}" for base in ("floor", "smg") for key in _RATIOS]
    ratios = [[titles[name], *(_cell(summary[name].get(base), 1, ".2f") for base in bases)] for name in shown]
    headings = [f"{heading} ÷ {base}" for base in ("floor", "SMG") for heading in _RATIO_HEADINGS]
    return table(["proxy", *(heading for heading, *_ in _COLUMNS)], costs) + "\n" + table(["proxy", *headings], ratios)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: first column left, the others right aligned."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))


def _cell(value: float | None, factor: float, form: str) -> str:
    return "-" if value is None else format(value * factor, form)


def _difference(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base
