"""The prefix index: matching, eviction order, bounds."""

from __future__ import annotations

import tracemalloc

from gateway.routing.index import PrefixIndex, depth
from tests.unit.routing.fleet_fakes import prompt

MB = 1 << 20


def index(budget: int = 64 * MB) -> PrefixIndex:
    return PrefixIndex(budget, 256)


def test_a_prompt_matches_as_far_as_a_touched_one_goes() -> None:
    """Shared leading blocks count, later ones do not, and other replicas have nothing."""
    held = index()
    held.touch("a", prompt(1, 10), 100)
    assert held.match("a", prompt(1, 10)) == 10
    assert held.match("a", prompt(2, 10, prompt(1, 10)[:4])) == 4
    assert held.match("a", prompt(2)) == 0
    assert held.match("b", prompt(1, 10)) == 0
    assert held.match("a", ()) == 0


def test_depth_is_found_from_any_guess() -> None:
    """A wrong guess costs a few looks, never a wrong answer."""
    chain = prompt(1, 40)
    for known in range(41):
        blocks = dict.fromkeys(chain[:known], 1)
        assert all(depth(blocks, chain, guess) == known for guess in range(45))


def test_matches_answers_for_many_replicas_as_match_does_for_one() -> None:
    """Order and guesses carried from one replica to the next do not matter."""
    held = index()
    chain = prompt(1, 20)
    for n, known in enumerate((20, 3, 0, 19, 1)):
        held.touch(str(n), chain[:known], 100)
    keys = ["0", "1", "2", "3", "4", "nobody", "3"]
    assert held.matches(keys, chain) == [20, 3, 0, 19, 1, 0, 19]


def test_the_least_recently_used_prompt_goes_first_and_from_its_end() -> None:
    """Suffixes go before prefixes, so what is left of a prompt is always its beginning."""
    held = index()
    held.touch("a", prompt(1, 10), 20)
    held.touch("a", prompt(2, 10), 20)
    held.touch("a", prompt(3, 4), 20)
    assert (held.match("a", prompt(1, 10)), held.match("a", prompt(2, 10)), held.match("a", prompt(3, 4))) == (6, 10, 4)
    held.touch("a", prompt(1, 6), 20)
    held.touch("a", prompt(4, 5), 20)
    assert (held.match("a", prompt(1, 10)), held.match("a", prompt(2, 10))) == (6, 5)
    assert held.blocks("a") == 20


def test_a_shared_prefix_outlives_the_prompts_that_share_it() -> None:
    """A block is as recent as the last prompt that went through it."""
    held = index()
    shared = prompt(0, 4)
    for n in range(1, 200):
        held.touch("a", prompt(n, 10, shared), 50)
        assert held.match("a", shared) == 4
    assert held.blocks("a") == 50


def test_a_prompt_longer_than_the_capacity_keeps_its_beginning() -> None:
    """The bound holds even for one prompt."""
    held = index()
    held.touch("a", prompt(1, 100), 30)
    assert held.match("a", prompt(1, 100)) == 30
    held.touch("b", prompt(1, 100), 0)
    assert held.blocks("b") == 0


def test_touching_one_prompt_for_ever_costs_no_memory() -> None:
    """Stale touches are compacted away as new ones come in."""
    held = index()
    for _ in range(3000):
        held.touch("a", prompt(1, 16), 1000)
        held.touch("a", prompt(2, 1), 1000)
    assert held.blocks("a") == 17
    assert held.memory < 400_000


def test_compaction_keeps_the_order_of_eviction() -> None:
    """After many touches of a few prompts the one touched longest ago still goes first."""
    held = index()
    held.touch("a", prompt(99, 10), 60)
    for n in range(2000):
        held.touch("a", prompt(n % 4, 10), 60)
    held.touch("a", prompt(50, 20), 60)
    assert held.match("a", prompt(99, 10)) == 0
    assert held.match("a", prompt(0, 10)) == 10
    held.touch("a", prompt(51, 10), 60)
    assert [held.match("a", prompt(n, 10)) for n in range(4)] == [0, 10, 10, 10]


def test_the_budget_is_shared_by_need() -> None:
    """The largest holders give back; a small one keeps all it has."""
    held = index(400_000)
    held.touch("small", prompt(7, 20), 10_000)
    for n in range(400):
        held.touch("a", prompt(n, 16), 10_000)
        held.touch("b", prompt(n + 1000, 16), 10_000)
    assert held.memory <= 400_000
    assert held.blocks("small") == 20
    assert 0.8 < held.blocks("a") / held.blocks("b") < 1.25
    assert held.memory > 390_000


def test_a_smaller_budget_takes_effect_at_once_and_another_block_size_forgets() -> None:
    """Reconfiguration keeps what it can."""
    held = index()
    for n in range(100):
        held.touch("a", prompt(n, 16), 10_000)
    held.reset(100_000, 256)
    assert 0 < held.memory <= 100_000
    assert held.match("a", prompt(99, 16)) == 16
    held.reset(100_000, 512)
    assert (held.memory, held.blocks("a")) == (0, 0)


def test_retracting_removes_what_only_that_touch_brought() -> None:
    """Blocks that were known before, or named again since, stay."""
    held = index()
    held.touch("a", prompt(1, 4), 100)
    number = held.touch("a", prompt(2, 12, prompt(1, 4)), 100)
    held.touch("a", prompt(2, 12, prompt(1, 4))[:8], 100)
    held.retract("a", prompt(2, 12, prompt(1, 4)), 4, number)
    assert held.match("a", prompt(2, 12, prompt(1, 4))) == 8
    assert held.blocks("a") == 8
    held.retract("nobody", prompt(1), 0, 1)


def test_expiring_removes_what_is_older_than_a_touch_up_to_a_limit() -> None:
    """Oldest first, and never the touch itself or anything newer."""
    held = index()
    numbers = [held.touch("a", prompt(n, 10), 100) for n in range(4)]
    held.expire("a", numbers[2], 15)
    assert [held.match("a", prompt(n, 10)) for n in range(4)] == [0, 5, 10, 10]
    held.expire("a", numbers[2], 1000)
    assert [held.match("a", prompt(n, 10)) for n in range(4)] == [0, 0, 10, 10]
    held.expire("nobody", 5, 5)


def test_clearing_forgets_one_replica() -> None:
    """A restart empties one cache and gives its memory back."""
    held = index()
    held.touch("a", prompt(1), 100)
    before = held.memory
    held.touch("b", prompt(1), 100)
    held.clear("b")
    held.clear("nobody")
    assert (held.memory, held.blocks("a"), held.blocks("b")) == (before, 16, 0)


def test_memory_stays_flat_under_diverse_prompts_and_keeps_the_shared_prefix() -> None:
    """Distinct prompts of 16 blocks, 4 of them shared, many times what fits: real memory stays near the estimate and bounded."""
    held = index(2 * MB)
    shared = prompt(0, 4)
    tracemalloc.start()
    try:
        for n in range(1, 8001):
            held.touch("ab"[n % 2], prompt(n, 16, shared), 1 << 20)
            if n == 2000:
                early = tracemalloc.get_traced_memory()[0]
        late = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held.memory <= 2 * MB
    assert late <= 1.1 * held.memory
    assert late <= 1.05 * early
    assert held.match("a", shared) == held.match("b", shared) == 4
