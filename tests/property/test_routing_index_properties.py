"""The prefix index against a model that does the same by walking over everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.index import PrefixIndex

Chain = tuple[int, ...]
KEYS = ("a", "b", "c")


class NaiveCache:
    """A trie of blocks by their whole path, each with the number of its last touch; evicts the oldest leaf."""

    def __init__(self) -> None:
        self.touched: dict[Chain, int] = {}

    def match(self, chain: Chain) -> int:
        return next((n for n in range(len(chain), 0, -1) if chain[:n] in self.touched), 0)

    def touch(self, chain: Chain, number: int, capacity: int) -> None:
        if not chain and capacity:
            return
        for n in range(1, min(len(chain), capacity) + 1):
            self.touched[chain[:n]] = number
        while len(self.touched) > capacity:
            self.evict()

    def evict(self) -> None:
        oldest = min(self.touched.values())
        del self.touched[max((path for path, number in self.touched.items() if number == oldest), key=len)]

    def retract(self, chain: Chain, known: int, number: int) -> None:
        for n in range(len(chain), known, -1):
            if self.touched.get(chain[:n]) == number:
                del self.touched[chain[:n]]

    def expire(self, number: int, at_most: int) -> None:
        while at_most and self.touched and min(self.touched.values()) < number:
            self.evict()
            at_most -= 1


def hashed(path: Chain) -> Chain:
    """A chain whose blocks are named by everything before them, as hash chains are."""
    return tuple(hash(path[:n]) for n in range(1, len(path) + 1))


# Few choices per block, so that chains share prefixes, diverge and come again.
paths = st.lists(st.integers(0, 2), max_size=12).map(tuple)
touches = st.tuples(st.just("touch"), st.sampled_from(KEYS), paths, st.integers(0, 20))
retractions = st.tuples(st.just("retract"), st.just(""), st.just(()), st.integers(1, 3))
expiries = st.tuples(st.just("expire"), st.sampled_from(KEYS), st.just(()), st.integers(0, 12))
restarts = st.tuples(st.just("clear"), st.sampled_from(KEYS), st.just(()), st.just(0))
actions = st.lists(st.one_of(touches, touches, touches, retractions, expiries, restarts), max_size=40)


@settings(max_examples=100, deadline=None)
@given(actions, st.lists(paths, min_size=1, max_size=5), st.integers(1, 4))
def test_the_index_agrees_with_the_naive_model(actions: list[tuple[str, str, Chain, int]], probes: list[Chain], compaction: int) -> None:
    """Matches and sizes are equal after every action, whether or not stale touches have been compacted."""
    index = PrefixIndex(1 << 30, 256)
    naive = {key: NaiveCache() for key in KEYS}
    bookings: list[tuple[str, Chain, int, int]] = []
    for action, key, path, number in actions:
        if action == "touch":
            known = index.match(key, hashed(path))
            touch = index.touch(key, hashed(path), number)
            naive[key].touch(path, touch, number)
            bookings.append((key, path, known, touch))
            for holder in list(index._holders.values()):
                if holder.recent or holder.settled:
                    holder._compact(compaction)
        elif action == "retract" and bookings:
            key, path, known, touch = bookings.pop(-min(number, len(bookings)))
            index.retract(key, hashed(path), known, touch)
            naive[key].retract(path, known, touch)
        elif action == "expire":
            index.expire(key, number * 3, number)
            naive[key].expire(number * 3, number)
        elif action == "clear":
            index.clear(key)
            naive[key] = NaiveCache()
        for probe in [*probes, path]:
            expected = [naive[k].match(probe) for k in KEYS]
            assert index.matches(KEYS, hashed(probe)) == expected
            assert [index.match(k, hashed(probe)) for k in KEYS] == expected
        assert [index.blocks(k) for k in KEYS] == [len(naive[k].touched) for k in KEYS]


@settings(max_examples=100, deadline=None)
@given(actions, st.integers(3_000, 30_000))
def test_bounds_hold_after_every_touch(actions: list[tuple[str, str, Chain, int]], budget: int) -> None:
    """Each replica within its capacity, all together within the budget, and what is held is closed under prefixes."""
    index = PrefixIndex(budget, 256)
    capacity: dict[str, int] = {}
    for _, key, path, number in actions * 3:
        capacity[key] = max(number, 1)
        index.touch(key, hashed(path), capacity[key])
        assert index.memory <= budget
        assert index.blocks(key) <= capacity[key] or not path
        for holder in index._holders.values():
            assert holder.entries == sum(len(chain) for _, chain in [*holder.settled, *holder.recent])
        matched = index.match(key, hashed(path))
        blocks = index._holders[key].blocks if key in index._holders else {}
        assert [block in blocks for block in hashed(path)] == [True] * matched + [False] * (len(path) - matched)
    assert index.memory == sum(holder.bytes() for holder in index._holders.values())
