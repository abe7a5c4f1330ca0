"""Blocks of the simulated KV cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.simulator.kv import BlockPool


def filled(capacity: int, *chains: list[int]) -> BlockPool:
    """A pool through which sequences with these keys have passed, one after the other."""
    pool = BlockPool(capacity)
    for chain in chains:
        known = pool.match(chain, len(chain))
        assert pool.claim(chain[:known], len(chain) - known)
        held = chain[:known] + [key for key in chain[known:] if pool.publish(key)]
        pool.release(held, len(chain) - len(held))
    return pool


def test_match_is_the_longest_known_prefix() -> None:
    """A chain matches up to its first unknown block, and no further than the limit."""
    pool = filled(8, [1, 2, 3])
    assert pool.match([1, 2, 9, 3], 4) == 2
    assert pool.match([1, 2, 3], 2) == 2
    assert pool.match([2, 3], 2) == 2
    assert pool.match([9], 1) == 0


def test_eviction_takes_the_least_recently_used_block_and_suffixes_before_prefixes() -> None:
    """Of two equally old chains' blocks, the tail of the older chain goes first."""
    pool = filled(4, [1, 2], [3, 4])
    assert pool.allocate(1)
    assert [pool.match([key], 1) for key in (1, 2, 3, 4)] == [1, 0, 1, 1]
    assert pool.evictions == 1


def test_reuse_renews_a_block() -> None:
    """A chain that was asked for again outlives one that was not."""
    pool = filled(4, [1, 2], [3, 4], [1, 2])
    assert pool.allocate(2)
    assert pool.match([1, 2], 2) == 2
    assert pool.match([3], 1) == 0


def test_blocks_in_use_are_never_evicted() -> None:
    """Asking for more than is evictable changes nothing."""
    pool = filled(4, [1, 2])
    assert pool.claim([1, 2], 1)
    assert not pool.allocate(2)
    assert (pool.used, pool.free) == (3, 1)
    assert pool.match([1, 2], 2) == 2


def test_claiming_idle_blocks_counts_them_as_used() -> None:
    """A claim fails when its new blocks would have to come from the very blocks it shares."""
    pool = filled(3, [1, 2, 3])
    assert not pool.claim([1, 2], 2)
    assert pool.claim([1, 2], 1)
    assert pool.match([3], 1) == 0


def test_a_shared_block_stays_until_its_last_user_leaves() -> None:
    """Two sequences on one prefix hold it once."""
    pool = filled(4, [1])
    assert pool.claim([1], 0)
    assert pool.claim([1], 0)
    pool.release([1], 0)
    assert pool.used == 1
    pool.release([1], 0)
    assert (pool.used, pool.cached) == (0, 1)


def test_a_duplicate_block_stays_private() -> None:
    """Content computed twice at the same time is cached once."""
    pool = BlockPool(4)
    assert pool.allocate(2)
    assert pool.publish(7)
    assert not pool.publish(7)
    pool.release([7], 1)
    assert (pool.cached, pool.free) == (1, 3)


def test_forgetting_drops_only_idle_blocks() -> None:
    """What running sequences hold survives a cache reset."""
    pool = filled(4, [1, 2])
    assert pool.claim([1], 0)
    pool.forget()
    assert pool.match([1, 2], 2) == 1


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), max_size=30))
def test_blocks_are_never_lost(chains: list[list[int]]) -> None:
    """After any history of finished sequences nothing is in use and all blocks are accounted for."""
    pool = filled(8, *chains)
    assert pool.used == 0
    assert pool.free + pool.cached == pool.capacity
    assert pool.free >= 0


def test_a_pool_says_what_it_holds() -> None:
    """The representation shows every kind of block."""
    assert repr(filled(4, [1])) == "BlockPool(4: held=0, idle=1, private=0, free=3)"


@pytest.mark.parametrize("count", [0, 1, 4])
def test_allocation_up_to_capacity_succeeds(count: int) -> None:
    """An empty pool gives out all its blocks."""
    assert BlockPool(4).allocate(count)
