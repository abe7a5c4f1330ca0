"""Answers of the admin port as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN = "?"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns wide enough for their cells; the first one aligned left, the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)


def status_text(answer: dict[str, Any]) -> str:
    """`/admin/replicas` as a table, followed by what is missing or wrong."""
    rows = answer["replicas"]
    if not rows:
        return f"kvgate {answer['version']}, policy {answer['policy']}: no replicas"
    head = ("replica", "model", "engine", "state", "in flight", "waiting", "KV used", "hit rate", "backlog", "blocks")
    body = [
        (
            row["id"],
            row["model"],
            f"{row['engine']} {row['version'] or ''}".strip(),
            row["state"],
            str(row["inflight"]),
            _number(_signal(row, "waiting")),
            _percent(_signal(row, "kv_usage")),
            _percent(_signal(row, "hit_rate")),
            str(row["backlog_tokens"]),
            str(row["prefix_index_blocks"]),
        )
        for row in rows
    ]
    lines = [f"kvgate {answer['version']}, policy {answer['policy']}", "", table(head, body)]
    notes = [f"{row['id']}: {note}" for row in rows for note in _notes(row)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _notes(row: dict[str, Any]) -> list[str]:
    """Why a replica cannot serve, and what else is known to be wrong with it. What another line says with more words is left out."""
    probe = f"{row['health']}, last probe: {row['health_detail']}" if row["health_detail"] else ""
    lines = [probe, row["reason"], *row["warnings"]]
    return [line for line in lines if line and not any(line != other and line in other for other in lines)]


def explain_text(answer: dict[str, Any]) -> str:
    """`/admin/explain/{id}`: every try of a request."""
    return "\n\n".join(_try_text(number, decision) for number, decision in enumerate(answer["tries"], 1))


def candidates_text(decision: dict[str, Any]) -> str:
    """Every candidate of a decision with the contribution of each term to its score."""
    candidates = decision["candidates"]
    if not candidates:
        return "no candidate"
    names = list(candidates[0]["terms"])
    weights = decision["weights"]
    head = (
        "",
        *(f"{name} x{weights[name]:g}" if name in weights else name for name in names),
        "score",
        "cached",
        "to prefill",
        "requests",
        "",
    )
    rows = [
        (
            ("> " if c["chosen"] else "  ") + c["replica"],
            *(_term(c["terms"][name]) for name in names),
            f"{c['score']:.3f}",
            str(c["matched_tokens"]),
            str(c["uncached_tokens"]),
            _number(c["requests"]),
            "left out: load guard" if c["left_out_by_load_guard"] else "",
        )
        for c in candidates
    ]
    lines = [table(head, rows)]
    lines += [f"  {f['replica']}  not considered: {f['reason']}" for f in decision["filtered"]]
    return "\n".join(lines)


def _try_text(number: int, decision: dict[str, Any]) -> str:
    predicted, actual = decision["predicted"], decision["actual"]
    chosen = decision["replica"] or "no replica"
    fail_open = " (fail open: all were down)" if decision["fail_open"] else ""
    lines = [
        f"try {number}: {chosen} by {decision['policy']}, {decision['reason']}{fail_open}",
        candidates_text(decision),
        f"predicted: {predicted['cached_tokens']} of about {decision['prompt_tokens_estimated']} prompt tokens cached",
    ]
    if actual["prompt_tokens"] is not None:
        cached = UNKNOWN if actual["cached_tokens"] is None else actual["cached_tokens"]
        lines.append(f"actual:    {cached} of {actual['prompt_tokens']} prompt tokens cached")
    if actual["ttft_s"] is not None:
        lines.append(f"first token after {actual['ttft_s'] * 1e3:.0f} ms")
    if decision["outcome"]:
        lines.append(f"outcome:   {decision['outcome']}")
    return "\n".join(lines)


def _term(term: dict[str, Any]) -> str:
    """value -> contribution; an unknown term has neither."""
    if term["value"] is None:
        return "unknown"
    return f"{term['value']:.2f} -> {term['contribution']:.3f}"


def _signal(row: dict[str, Any], name: str) -> float | None:
    reading = row["signals"].get(name)
    return None if reading is None else reading["value"]


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"
