"""Block chains and rendezvous order."""

from __future__ import annotations

import random

from gateway.routing.hashing import chain, chain_slices, leading, rendezvous

DATA = random.Random(1).randbytes(10_000)


def test_a_chain_has_one_hash_for_each_whole_block() -> None:
    """A partial block at the end is left out, and a prompt under one block has no chain."""
    assert len(chain(DATA, 1, 256)) == 10_000 // 256
    assert chain(DATA[:255], 1, 256) == ()
    assert len(chain(DATA[:256], 1, 256)) == 1


def test_prompts_share_hashes_exactly_as_far_as_they_share_blocks() -> None:
    """A change in block 5 changes its hash and every later one, and none before."""
    other = bytearray(DATA)
    other[5 * 256 + 17] ^= 1
    mine, theirs = chain(DATA, 1, 256), chain(bytes(other), 1, 256)
    assert mine[:5] == theirs[:5]
    assert not set(mine[5:]) & set(theirs)


def test_equal_blocks_at_different_places_differ() -> None:
    """A hash stands for the whole prefix, not for its last block."""
    hashes = chain(b"x" * 256 * 8, 1, 256)
    assert len(set(hashes)) == 8


def test_another_seed_makes_other_hashes() -> None:
    """Without the seed nobody can foresee a hash."""
    assert not set(chain(DATA, 1, 256)) & set(chain(DATA, 2, 256))


def test_slices_join_to_the_same_chain() -> None:
    """Hashing in pieces, of any size, gives what hashing at once gives."""
    for slice_bytes in (1, 256, 700, 4096, 1 << 20):
        assert sum(chain_slices(DATA, 7, 256, slice_bytes), ()) == chain(DATA, 7, 256)
    assert list(chain_slices(b"", 7, 256)) == []


def test_leading_blocks_are_those_a_later_turn_begins_with() -> None:
    """Longer prompts with the same first KB have the same leading hash."""
    hashes = chain(DATA, 1, 256)
    assert leading(hashes) == leading(hashes[:4]) == hashes[3]
    assert leading(hashes[:2]) == hashes[1]


def test_rendezvous_moves_only_the_keys_of_a_name_that_leaves() -> None:
    """Every other key keeps its first choice, and the lost ones spread over the rest."""
    names = [(f"r{n}", n) for n in range(5)]
    before = {key: rendezvous(names, key) for key in range(1000)}
    after = {key: rendezvous(names[:4], key) for key in range(1000)}
    moved = [key for key in before if before[key] != after[key]]
    assert all(before[key] == 4 for key in moved)
    assert 120 < len(moved) < 280
    assert {after[key] for key in moved} == {0, 1, 2, 3}


def test_rendezvous_does_not_depend_on_the_order_of_names() -> None:
    """Gateways that list their replicas differently choose alike."""
    names = [(f"r{n}", n) for n in range(8)]
    assert all(rendezvous(names, key) == rendezvous(names[::-1], key) for key in range(50))
