"""Replicas as operators see them: the fleet's rows, with what routing adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.fleet import Table
    from gateway.routing import Decision, Router


class Sources(Protocol):
    """Where the overview is put together from."""

    table: Table
    router: Router

    @property
    def latest(self) -> Mapping[str, Decision]:
        """The last decision of each model."""

    def now(self) -> float:
        """Loop time in seconds."""


def rows(sources: Sources) -> list[dict[str, Any]]:
    """One JSON object for each replica and model."""
    blocks = sources.router.index_blocks()
    latest = scores(sources)
    return [
        {**msgspec.to_builtins(row), "prefix_index_blocks": blocks.get(row.id, 0), "last_score": latest.get(row.id, {})}
        for row in sources.table.snapshot(sources.now())
    ]


def scores(sources: Sources) -> dict[str, dict[str, float | None]]:
    """Replica -> term -> its part of the score in the last decision it was a candidate in; None: the term was unknown."""
    found: dict[str, dict[str, float | None]] = {}
    for decision in sources.latest.values():
        for candidate in decision.explain()["candidates"]:
            terms = {name: None if term["value"] is None else term["contribution"] for name, term in candidate["terms"].items()}
            found[candidate["replica"]] = {**terms, "total": candidate["score"]}
    return found
