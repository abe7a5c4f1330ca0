"""Which prompt blocks each replica is believed to hold: a memory-bounded guess at the engines' prefix caches.

Per holder, a dict maps each block to the number of the touch that last named it, and a queue keeps the touches in order.
Two facts about chains carry the whole design. A block is only ever touched together with all blocks before it, so touch
numbers never rise along a chain; and eviction takes the oldest touch from its deep end. Hence:

- what a holder has of a chain is always a prefix of it, and can be found by bisection;
- eviction is exact least-recently-used with suffixes before prefixes, like in the engines;
- the blocks that still carry a touch's number are one contiguous run of its chain, so a stale touch is known by one look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

Chain = tuple[int, ...]
Blocks = dict[int, int]

# Upper estimates of what CPython spends, in bytes.
_BLOCK_BYTES: Final = 160  # a dict slot at its emptiest and the hash as an int object
_ENTRY_BYTES: Final = 40  # a block named by a touch: tuple slot and int object
_TOUCH_BYTES: Final = 176  # the touch itself: two tuples, a number, a queue slot

_STALE_SLACK: Final = 1024  # entries that may be stale before compaction starts, whatever the size
_COMPACTION_RATE: Final = 4  # entries looked at per entry added, so that stale ones stay a fixed share
_GIVE_BACK: Final = 1024  # a holder over the common budget gives back this part of it at once


def depth(blocks: Blocks, chain: Chain, guess: int = 0) -> int:
    """Count the leading blocks of `chain` that are in `blocks`; `guess` is where the answer is tried first."""
    if not chain or chain[0] not in blocks:
        return 0
    if chain[-1] in blocks:
        return len(chain)
    low, high = 1, len(chain) - 1  # the answer lies in low..high
    if low <= guess <= high:
        if chain[guess - 1] not in blocks:
            high = guess - 1
        elif chain[guess] in blocks:
            low = guess + 1
        else:
            return guess
    while low < high:
        middle = (low + high + 1) >> 1
        if chain[middle - 1] in blocks:
            low = middle
        else:
            high = middle - 1
    return low


class _Holder:
    """The believed cache of one replica. Touches in `settled` are older than those in `recent`."""

    __slots__ = ("blocks", "entries", "recent", "settled")

    def __init__(self) -> None:
        self.blocks: Blocks = {}
        self.entries = 0  # blocks named by all touches, stale ones included
        self.recent: deque[tuple[int, Chain]] = deque()
        self.settled: deque[tuple[int, Chain]] = deque()

    def bytes(self) -> int:
        touches = len(self.settled) + len(self.recent)
        return _BLOCK_BYTES * len(self.blocks) + _ENTRY_BYTES * self.entries + _TOUCH_BYTES * touches

    def touch(self, chain: Chain, number: int) -> None:
        self.blocks.update(dict.fromkeys(chain, number))
        self.recent.append((number, chain))
        self.entries += len(chain)
        if self.entries > 2 * len(self.blocks) + _STALE_SLACK:
            self._compact(_COMPACTION_RATE * (len(chain) + 1))

    def evict(self, count: int) -> int:
        """Remove up to `count` blocks, all from the oldest touch; return how many were removed."""
        queue = self.settled or self.recent
        number, chain = queue.popleft()
        self.entries -= len(chain)
        blocks = self.blocks
        end = kept = depth(blocks, chain)
        while kept and end - kept < count and blocks.get(chain[kept - 1]) == number:
            kept -= 1
            del blocks[chain[kept]]
        if kept and blocks.get(chain[kept - 1]) == number:
            queue.appendleft((number, chain[:kept]))
            self.entries += kept
        return end - kept

    def oldest(self) -> int | None:
        """Number of the oldest touch on record."""
        queue = self.settled or self.recent
        return queue[0][0] if queue else None

    def _compact(self, effort: int) -> None:
        """Go over the touches in order, dropping stale ones and the stale part of others; start again at the end."""
        blocks = self.blocks
        while effort > 0 and (self.recent or self.settled):
            if not self.recent:
                self.recent, self.settled = self.settled, self.recent
            number, chain = self.recent.popleft()
            effort -= len(chain) + 1
            end = depth(blocks, chain)
            live = chain[_first_live(blocks, chain, end, number) : end]
            self.entries -= len(chain) - len(live)
            if live:
                self.settled.append((number, live))


def _first_live(blocks: Blocks, chain: Chain, end: int, number: int) -> int:
    """Where the blocks of `chain[:end]` that no later touch has named begin."""
    if not end or blocks.get(chain[end - 1]) != number:
        return end
    low, high = 0, end - 1
    while low < high:
        middle = (low + high) >> 1
        if blocks.get(chain[middle], number) > number:
            low = middle + 1
        else:
            high = middle
    return low


class PrefixIndex:
    """Believed prefix caches of all replicas, by key, within `budget_bytes` together.

    When the budget is spent the largest holder gives back first, which shares it evenly among those that want more.
    """

    def __init__(self, budget_bytes: int, block_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.block_bytes = block_bytes
        self._holders: dict[str, _Holder] = {}
        self._number = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return (
            f"<PrefixIndex {len(self._holders)} holders, {sum(len(h.blocks) for h in self._holders.values())} blocks, {self._bytes} bytes>"
        )

    @property
    def memory(self) -> int:
        """Estimated bytes in use; never more than the budget after a touch."""
        return self._bytes

    def blocks(self, key: str) -> int:
        """Blocks believed to be held by one replica."""
        holder = self._holders.get(key)
        return 0 if holder is None else len(holder.blocks)

    def match(self, key: str, chain: Chain) -> int:
        """Leading blocks of `chain` that one replica is believed to hold."""
        holder = self._holders.get(key)
        return 0 if holder is None else depth(holder.blocks, chain)

    def matches(self, keys: Iterable[str], chain: Chain) -> list[int]:
        """`match` for several replicas, quicker: neighbours often agree, as they share a system prompt or nothing."""
        found: list[int] = []
        guess = 0
        get = self._holders.get
        for key in keys:
            holder = get(key)
            if holder is None:
                found.append(0)
                continue
            guess = depth(holder.blocks, chain, guess)
            found.append(guess)
        return found

    def touched(self, key: str, block: int) -> int:
        """Number of the touch that last named a block at one replica; 0 when it is not there."""
        holder = self._holders.get(key)
        return 0 if holder is None else holder.blocks.get(block, 0)

    def touch(self, key: str, chain: Chain, capacity: int) -> int:
        """Note that a prompt went to a replica that keeps at most `capacity` blocks; return the number of the touch."""
        self._number += 1
        if capacity < 1:
            self.clear(key)
        if not chain or capacity < 1:
            return self._number
        holder = self._holders.get(key)
        if holder is None:
            holder = self._holders[key] = _Holder()
        before = holder.bytes()
        holder.touch(chain if len(chain) <= capacity else chain[:capacity], self._number)
        while (surplus := len(holder.blocks) - capacity) > 0:
            holder.evict(surplus)
        self._bytes += holder.bytes() - before
        if self._bytes > self.budget_bytes:
            self._give_back()
        return self._number

    def retract(self, key: str, chain: Chain, known: int, number: int) -> None:
        """Take back a touch whose prompt never reached the replica: the blocks beyond `known` that only it has named."""
        holder = self._holders.get(key)
        if holder is None:
            return
        before = holder.bytes()
        blocks = holder.blocks
        for block in reversed(chain[known:]):
            if blocks.get(block) == number:
                del blocks[block]
        self._bytes += holder.bytes() - before

    def expire(self, key: str, number: int, at_most: int) -> None:
        """Remove what was last touched before `number`, oldest first and no more than `at_most` blocks."""
        holder = self._holders.get(key)
        if holder is None:
            return
        before = holder.bytes()
        while at_most > 0 and (oldest := holder.oldest()) is not None and oldest < number:
            at_most -= holder.evict(at_most)
        self._bytes += holder.bytes() - before

    def clear(self, key: str) -> None:
        """Forget one replica: it restarted with an empty cache, or is gone."""
        holder = self._holders.pop(key, None)
        if holder is not None:
            self._bytes -= holder.bytes()

    def reset(self, budget_bytes: int, block_bytes: int) -> None:
        """Take new limits. Blocks of another size are other blocks: everything is forgotten then."""
        if block_bytes != self.block_bytes:
            self._holders.clear()
            self._bytes = 0
        self.budget_bytes, self.block_bytes = budget_bytes, block_bytes
        if self._bytes > budget_bytes:
            self._give_back()

    def _give_back(self) -> None:
        target = self.budget_bytes - self.budget_bytes // _GIVE_BACK
        while self._bytes > target:
            holder = max(self._holders.values(), key=_Holder.bytes)
            before = holder.bytes()
            wanted = self._bytes - target
            while before - holder.bytes() < wanted and holder.oldest() is not None:
                holder.evict(1 + wanted // _BLOCK_BYTES)
            freed = before - holder.bytes()
            self._bytes -= freed
            if not freed:
                return
