"""Paged KV cache: a pool of equal blocks, shared by content, evicted least recently used first.

Invariants
- A block is held (in use, known by its key), idle (unused, still known by its key), private (in use, content not
  shared) or free; the four add up to `capacity`.
- Only idle blocks are evicted. A sequence gives its blocks back last first, so a prefix outlives its suffixes.
"""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """`capacity` blocks. Keys name the content of a block *and* everything before it (a hash chain)."""

    __slots__ = ("_held", "_idle", "_private", "capacity", "evictions")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._held: dict[int, int] = {}  # key -> sequences using it
        self._idle: dict[int, None] = {}  # in order of last use
        self._private = 0

    def __repr__(self) -> str:
        return f"BlockPool({self.capacity}: held={len(self._held)}, idle={len(self._idle)}, private={self._private}, free={self.free})"

    @property
    def used(self) -> int:
        """Blocks some sequence needs."""
        return len(self._held) + self._private

    @property
    def free(self) -> int:
        """Blocks without content."""
        return self.capacity - self.used - len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks that a matching prompt could reuse."""
        return len(self._held) + len(self._idle)

    def match(self, keys: Sequence[int], limit: int) -> int:
        """Length of the longest known prefix of `keys[:limit]`, in blocks."""
        held, idle = self._held, self._idle
        for index in range(min(limit, len(keys))):
            if keys[index] not in held and keys[index] not in idle:
                return index
        return min(limit, len(keys))

    def claim(self, keys: Sequence[int], new: int) -> bool:
        """Share the known blocks `keys` and take `new` private ones; all or nothing."""
        idle, held = self._idle, self._held
        if new + sum(1 for key in keys if key in idle) > self.capacity - self.used:
            return False
        for key in keys:
            held[key] = held.get(key, 0) + 1
            idle.pop(key, None)
        return self.allocate(new)

    def allocate(self, count: int) -> bool:
        """Take `count` private blocks, evicting idle ones where none is free; all or nothing."""
        if count > self.capacity - self.used:
            return False
        for _ in range(count - self.free):
            del self._idle[next(iter(self._idle))]
            self.evictions += 1
        self._private += count
        return True

    def publish(self, key: int) -> bool:
        """Name one private block. False when another block already has this content: the caller's stays private, as a duplicate."""
        if key in self._held or key in self._idle:
            return False
        self._private -= 1
        self._held[key] = 1
        return True

    def release(self, keys: Sequence[int], private: int) -> None:
        """Give back a sequence's blocks: shared `keys` in prompt order, and `private` ones."""
        held, idle = self._held, self._idle
        for key in reversed(keys):
            users = held[key] - 1
            if users:
                held[key] = users
            else:
                del held[key]
                idle[key] = None
        self._private -= private

    def forget(self) -> None:
        """Drop every idle block (`/reset_prefix_cache`, sleep)."""
        self._idle.clear()
