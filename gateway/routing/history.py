"""Who was chosen lately: what ties are broken by when neither scores nor loads tell replicas apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.routing.scoring import ID, Row

_WINDOW: Final = 64.0  # placements per replica after which older ones count half
_BOUND: Final = 1.1
_SLACK: Final = 1.0


class History:
    """Per replica id: the number of its last placement, and a decaying count of recent ones."""

    __slots__ = ("_last", "_number", "_recent", "_total")

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._recent: dict[str, float] = {}
        self._number = 0
        self._total = 0.0

    def placed(self, replica: str) -> None:
        """A request was given to this replica."""
        self._number += 1
        self._last[replica] = self._number
        recent = self._recent
        recent[replica] = recent.get(replica, 0.0) + 1.0
        self._total += 1.0
        if self._total > _WINDOW * len(recent):
            for name in recent:
                recent[name] /= 2.0
            self._total = sum(recent.values())

    def forget(self, replica: str) -> None:
        """A replica is gone, or starts afresh."""
        self._last.pop(replica, None)
        self._total -= self._recent.pop(replica, 0.0)

    def least_recent(self, rows: Sequence[Row]) -> Row:
        """The candidate placed on longest ago."""
        last = self._last
        return min(rows, key=lambda row: last.get(row[ID], 0))

    def recent(self, replica: str) -> float:
        """Its placements lately."""
        return self._recent.get(replica, 0.0)

    def share_limit(self, replicas: Sequence[str]) -> float:
        """A count of recent placements not far above the mean of these replicas; at least one of them keeps to it."""
        get = self._recent.get
        return _BOUND * sum([get(replica, 0.0) for replica in replicas]) / len(replicas) + _SLACK
