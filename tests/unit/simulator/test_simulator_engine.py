"""The simulated engine's core, driven by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.simulator.engine import Engine, Job
from replicas.simulator.presets import PRESETS, Cost

COST = PRESETS["h100-8b"].cost
BLOCK = 16


def engine_of(*, kv_tokens: int = 65_536, slots: int = 128, budget: int = 4096, cost: Cost = COST) -> Engine:
    """An engine with the sizes a test is about."""
    return Engine(cost, kv_tokens=kv_tokens, max_num_seqs=slots, max_num_batched_tokens=budget, block_size=BLOCK)


def job_of(prompt: int, output: int, *, family: int = 0, shared: int = 0, arrived: float = 0.0) -> Job:
    """A job whose first `shared` blocks are those of every other job, the rest its family's."""
    full = (prompt + output) // BLOCK
    return Job([key if key < shared else family * 100_000 + key for key in range(full)], prompt, output, arrived=arrived)


def run(engine: Engine, now: float = 0.0) -> float:
    """Step until idle; returns the time at the end."""
    while (step := engine.begin(now)) is not None:
        now += step.seconds
        engine.finish(step, now)
    return now


def test_a_lone_request_takes_the_time_the_formula_says() -> None:
    """Prefill in one step, then one decode step per further token, each over its own context."""
    engine = engine_of()
    job = job_of(1000, 3)
    engine.add(job)
    end = run(engine)
    prefill = 0.006 + 1000 / 22_000
    decode = [0.006 + 30e-6 + 4e-8 * context for context in (1001, 1002)]
    assert job.first_at == pytest.approx(prefill)
    assert end == pytest.approx(prefill + sum(decode))
    assert (job.generated, job.done) == (3, True)


def test_a_long_prompt_is_prefilled_in_chunks_of_the_step_budget() -> None:
    """10,000 tokens at 4,096 a step are three steps, and the first token comes with the third."""
    engine = engine_of()
    job = job_of(10_000, 1)
    engine.add(job)
    chunks = []
    now = 0.0
    while (step := engine.begin(now)) is not None:
        chunks.append(step.prefill)
        now += step.seconds
        engine.finish(step, now)
    assert chunks == [4096, 4096, 1808]
    assert job.first_at == pytest.approx(3 * 0.006 + 10_000 / 22_000)


def test_decoding_goes_on_beside_a_prefill() -> None:
    """Running sequences get their token first; a new prompt gets what is left of the budget."""
    engine = engine_of(budget=100)
    first, second = job_of(64, 10, family=1), job_of(400, 1, family=2)
    engine.add(first)
    step = engine.begin(0.0)
    assert step is not None
    engine.finish(step, 0.1)
    engine.add(second)
    step = engine.begin(0.1)
    assert step is not None
    assert (step.decoding, step.prefill, step.context) == (1, 99, 65)
    assert step.seconds == pytest.approx(0.006 + 99 / 22_000 + 30e-6 + 65 * 4e-8)


def test_decode_steps_grow_with_batch_and_context() -> None:
    """Eight sequences decode more slowly than one, by 30 µs a sequence and 40 ns a token of context."""
    engine = engine_of()
    for family in range(8):
        engine.add(job_of(100, 2, family=family + 1))
    prefill = engine.begin(0.0)
    assert prefill is not None
    engine.finish(prefill, 1.0)
    decode = engine.begin(1.0)
    assert decode is not None
    assert decode.seconds == pytest.approx(0.006 + 8 * 30e-6 + 8 * 101 * 4e-8)


@pytest.mark.parametrize(("prompt", "cached"), [(16, 0), (17, 16), (32, 16), (33, 32), (100, 96), (112, 96), (113, 112)])
def test_a_repeated_prompt_is_cached_up_to_its_last_full_block_but_one_token(prompt: int, cached: int) -> None:
    """Hits are whole blocks, and at least the last prompt token is computed."""
    engine = engine_of()
    engine.add(job_of(prompt, 1))
    run(engine)
    again = job_of(prompt, 1)
    engine.add(again)
    run(engine)
    assert again.cached == cached
    assert (engine.queries, engine.hits) == (2 * prompt, cached)


def test_only_the_shared_prefix_is_reused() -> None:
    """Prompts that differ after five blocks share exactly these."""
    engine = engine_of()
    engine.add(job_of(200, 1, family=1, shared=5))
    run(engine)
    other = job_of(200, 1, family=2, shared=5)
    engine.add(other)
    run(engine)
    assert other.cached == 5 * BLOCK


def test_cached_tokens_cost_no_prefill_time() -> None:
    """The second request's first token comes after a step over its uncached tokens only."""
    engine = engine_of()
    engine.add(job_of(1600, 1, family=1, shared=90))
    now = run(engine)
    other = job_of(1600, 1, family=2, shared=90)
    engine.add(other)
    assert run(engine, now) - now == pytest.approx(0.006 + (1600 - 1440) / 22_000)


def test_generated_tokens_are_reused_by_the_next_turn() -> None:
    """A conversation's next prompt hits the answer before it, but for the block its last token completes."""
    engine = engine_of()
    engine.add(job_of(64, 64))
    run(engine)
    turn = job_of(200, 1)
    engine.add(turn)
    run(engine)
    assert turn.cached == 64 + 48  # the 64th token ends the answer and is never computed


def test_requests_admitted_in_the_same_step_share_what_the_first_computes() -> None:
    """A sibling hits blocks scheduled earlier in its own step."""
    engine = engine_of()
    first, second = job_of(320, 1, family=1, shared=20), job_of(320, 1, family=2, shared=20)
    engine.add(first)
    engine.add(second)
    step = engine.begin(0.0)
    assert step is not None
    assert (first.cached, second.cached, step.prefill) == (0, 304, 336)


def test_a_sibling_of_an_unfinished_prefill_hits_only_its_finished_chunks() -> None:
    """What has not been scheduled yet cannot be reused."""
    engine = engine_of(budget=160)
    engine.add(job_of(640, 1, family=1, shared=40))
    step = engine.begin(0.0)
    assert step is not None
    engine.finish(step, 0.1)
    sibling = job_of(640, 1, family=2, shared=40)
    engine.add(sibling)
    run(engine, 0.1)
    assert 160 <= sibling.cached < 640


def test_least_recently_used_prefixes_are_evicted() -> None:
    """With room for two prompts, the third pushes out the one unused for longest."""
    engine = engine_of(kv_tokens=2 * 320)
    for family in (1, 2, 1, 3):
        engine.add(job_of(320, 1, family=family))
        run(engine)
    hits = {}
    for family in (1, 2):
        again = job_of(320, 1, family=family)
        engine.add(again)
        run(engine)
        hits[family] = again.cached
    assert hits[1] > 0
    assert hits[2] == 0


def test_the_batch_has_a_fixed_number_of_slots() -> None:
    """Beyond `max_num_seqs` requests wait, in order of arrival."""
    engine = engine_of(slots=2)
    jobs = [job_of(32, 5, family=family + 1) for family in range(4)]
    for job in jobs:
        engine.add(job)
    engine.begin(0.0)
    assert engine.running == jobs[:2]
    assert list(engine.waiting) == jobs[2:]


def test_requests_wait_while_blocks_are_short() -> None:
    """A prompt that finds no room stays in the queue, and the one behind it does not overtake."""
    engine = engine_of(kv_tokens=320)
    jobs = [job_of(200, 4, family=1), job_of(200, 4, family=2), job_of(16, 4, family=3)]
    for job in jobs:
        engine.add(job)
    engine.begin(0.0)
    assert engine.running == jobs[:1]
    assert list(engine.waiting) == jobs[1:]


def test_the_youngest_is_preempted_when_blocks_run_out_and_finishes_later() -> None:
    """Both get all their tokens; the younger starts over once and keeps what it had generated."""
    engine = engine_of(kv_tokens=8 * BLOCK)
    older, younger = job_of(48, 40, family=1), job_of(48, 40, family=2)
    engine.add(older)
    engine.add(younger)
    now, seen = 0.0, 0
    while (step := engine.begin(now)) is not None:
        now += step.seconds
        engine.finish(step, now)
        assert younger.generated >= seen
        seen = younger.generated
    assert (older.preemptions, younger.preemptions, engine.preemptions) == (0, 1, 1)
    assert older.last_at is not None
    assert younger.last_at is not None
    assert older.last_at < younger.last_at
    assert older.generated == younger.generated == 40


def test_a_preempted_request_is_looked_up_once() -> None:
    """Hits on its own blocks after a preemption do not count as cache hits."""
    engine = engine_of(kv_tokens=8 * BLOCK)
    engine.add(job_of(48, 40, family=1))
    engine.add(job_of(48, 40, family=2))
    run(engine)
    assert (engine.queries, engine.hits) == (96, 0)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_aborted_request_gives_everything_back(steps: int) -> None:
    """In any phase: waiting, in the middle of a step, decoding."""
    engine = engine_of()
    job = job_of(100, 50)
    engine.add(job)
    for _ in range(steps):
        step = engine.begin(0.0)
        assert step is not None
        engine.finish(step, 0.0)
    step = engine.begin(0.0) if steps == 2 else None
    engine.abort(job)
    engine.abort(job)
    if step is not None:
        assert engine.finish(step, 0.0) == []
    assert not engine.busy
    assert engine.pool.used == 0


def test_a_job_that_could_never_fit_is_refused() -> None:
    """Rather than waiting for ever."""
    with pytest.raises(ValueError, match="do not fit"):
        engine_of(kv_tokens=160).add(job_of(150, 20))


def test_usage_counts_blocks_in_use_only() -> None:
    """Cached blocks nobody uses are free as far as the gauge goes."""
    engine = engine_of(kv_tokens=100 * BLOCK)
    engine.add(job_of(160, 2))
    step = engine.begin(0.0)
    assert step is not None
    assert engine.kv_usage == pytest.approx(0.10)
    engine.finish(step, 0.1)
    run(engine, 0.1)
    assert engine.kv_usage == 0.0
    assert engine.pool.cached == 10


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(1, 3), st.integers(0, 8)), min_size=1, max_size=25),
    st.integers(25, 60),
    st.integers(16, 200),
)
def test_every_request_gets_all_its_tokens_and_every_block_comes_back(
    sizes: list[tuple[int, int, int, int]], blocks: int, budget: int
) -> None:
    """Whatever the mix, however small the cache: nothing hangs or leaks, every token has its place, no step exceeds its budget."""
    engine = engine_of(kv_tokens=blocks * BLOCK, slots=6, budget=budget)
    jobs = [job_of(prompt, output, family=family, shared=shared) for prompt, output, family, shared in sizes]
    for job in jobs:
        engine.add(job)
    now = 0.0
    while (step := engine.begin(now)) is not None:
        assert step.tokens <= budget
        assert all(job.blocks == -(-(job.computed + tokens) // BLOCK) for job, tokens in step.work)
        assert all(len(job.held) <= job.blocks for job in engine.running)
        assert engine.pool.used <= sum(job.blocks for job in engine.running) <= engine.pool.used * 6
        assert len(engine.running) <= 6
        now += step.seconds
        engine.finish(step, now)
    assert all(job.done and job.generated == job.output for job in jobs)
    assert engine.pool.used == 0
    assert engine.pool.free >= 0
    assert engine.hits <= engine.queries == sum(job.prompt for job in jobs)
