from __future__ import annotations

import pytest

from gateway.fleet import Signals, facts
from gateway.settings import Settings
from tests.unit.fleet.kit import config, fleet, r, scrape


def test_booking_counts_at_once_and_release_gives_everything_back() -> None:
    """A burst sees its own first member, and nothing leaks."""
    table = fleet()
    replica = r(table)
    slots = [table.book(replica, uncached=100, prompt=400, streamed=True, now=1.0) for _ in range(3)]
    assert (replica.server.inflight, replica.server.backlog, replica.server.kv_booked, replica.inflight) == (3, 300, 1200, 3)
    for slot in slots:
        slot.release(2.0)
    assert (replica.server.inflight, replica.server.backlog, replica.server.kv_booked, replica.inflight) == (0, 0, 0, 0)


def test_the_first_token_ends_the_backlog_but_not_the_request() -> None:
    """Prefill is over at the first token; the request still fills the batch."""
    table = fleet()
    server = r(table).server
    slot = table.book(r(table), uncached=100, prompt=100, streamed=True, now=1.0)
    slot.first_token(1.5)
    assert (server.inflight, server.backlog, server.prefilling) == (1, 0, 0)


def test_first_token_and_release_may_come_twice_and_in_any_order() -> None:
    """Whatever path a request takes, counters go down once."""
    table = fleet()
    server = r(table).server
    slot = table.book(r(table), uncached=100, prompt=100, streamed=True, now=1.0)
    for step in (slot.release, slot.first_token, slot.release, slot.first_token):
        step(2.0)
    assert (server.inflight, server.backlog, server.prefilling, server.kv_booked) == (0, 0, 0, 0)


def test_a_request_that_is_not_streamed_ends_its_prefill_at_the_predicted_time() -> None:
    """Its first token is never seen, so its backlog must not stay until the last one."""
    table = fleet()
    server = r(table).server
    server.learn_prefill(1000, 1.0)
    table.book(r(table), uncached=2000, prompt=2000, streamed=False, now=10.0)
    table.candidates("m", 11.9)
    assert server.backlog == 2000
    table.candidates("m", 12.0)
    assert (server.backlog, server.inflight) == (0, 1)


def test_prefills_that_are_not_streamed_end_one_after_the_other() -> None:
    """An engine works in order: the second prefill ends after the first, not beside it."""
    table = fleet()
    server = r(table).server
    server.learn_prefill(1000, 1.0)
    for _ in range(3):
        table.book(r(table), uncached=1000, prompt=1000, streamed=False, now=0.0)
    backlogs = []
    for now in (0.5, 1.0, 2.0, 3.0):
        table.candidates("m", now)
        backlogs.append(server.backlog)
    assert backlogs == [3000, 2000, 1000, 0]


def test_a_scrape_without_waiting_requests_ends_predicted_prefills_early() -> None:
    """If nothing waits in the engine, what was sent before the scrape runs already."""
    table = fleet()
    server = r(table).server
    table.book(r(table), uncached=1500, prompt=1500, streamed=False, now=0.0)
    scrape(table, server, 0.01, running=1, waiting=0)
    assert server.backlog == 0


def test_a_scrape_does_not_end_prefills_it_cannot_have_seen() -> None:
    """A request sent while the scrape was on its way is not in it."""
    table = fleet()
    server = r(table).server
    table.apply(facts.Scraping(server.key), 0.0)
    table.book(r(table), uncached=1500, prompt=1500, streamed=False, now=0.01)
    table.apply(facts.Scraped(server.key, Signals(running=0, waiting=0)), 0.02)
    assert server.backlog == 1500


def test_requests_that_are_over_do_not_stand_for_waiting_ones() -> None:
    """One request waits, others have left: the one that waits keeps its backlog."""
    table = fleet()
    server = r(table).server
    slots = [table.book(r(table), uncached=100, prompt=100, streamed=False, now=0.0) for _ in range(3)]
    for slot in slots[1:]:
        slot.release(0.001)
    scrape(table, server, 0.002, running=0, waiting=1)
    assert server.backlog == 100


def test_a_prediction_waits_while_the_engine_says_that_everything_waits() -> None:
    """Too bold a prediction must not hide a full queue."""
    table = fleet()
    server = r(table).server
    for _ in range(4):
        table.book(r(table), uncached=800, prompt=800, streamed=False, now=0.0)
    scrape(table, server, 0.3, running=0, waiting=4)
    table.candidates("m", 0.5)
    assert server.backlog == 3200
    scrape(table, server, 1.2, running=2, waiting=2)
    assert server.backlog == 1600


def test_foreign_load_is_what_is_not_our_own() -> None:
    """Requests of others are the scraped ones minus ours, split into running and waiting."""
    table = fleet()
    server = r(table).server
    decoding = [table.book(r(table), uncached=10, prompt=10, streamed=True, now=0.0) for _ in range(8)]
    for slot in decoding[:6]:
        slot.first_token(0.5)
    scrape(table, server, 1.0, running=10, waiting=5)
    assert (server.foreign_running, server.foreign_waiting) == (4, 3)


def test_foreign_load_is_never_negative() -> None:
    """Requests that have not arrived at the engine are not the negative load of somebody else."""
    table = fleet()
    server = r(table).server
    for _ in range(5):
        table.book(r(table), uncached=10, prompt=10, streamed=True, now=0.0)
    scrape(table, server, 0.1, running=1, waiting=1)
    assert (server.foreign_running, server.foreign_waiting) == (0, 0)


def test_requests_that_end_during_a_scrape_do_not_turn_into_foreign_ones() -> None:
    """The scrape may have counted them while they still ran."""
    table = fleet()
    server = r(table).server
    slots = [table.book(r(table), uncached=10, prompt=10, streamed=True, now=0.0) for _ in range(5)]
    table.apply(facts.Scraping(server.key), 1.0)
    for slot in slots:
        slot.release(1.1)
    table.apply(facts.Scraped(server.key, Signals(running=5, waiting=0)), 1.2)
    assert (server.foreign_running, server.foreign_waiting) == (0, 0)


def test_an_engine_that_does_not_say_what_waits_leaves_foreign_waiting_unknown() -> None:
    """Unknown is unknown, not zero."""
    table = fleet()
    server = r(table).server
    scrape(table, server, 1.0, running=3)
    assert (server.foreign_running, server.foreign_waiting) == (3, None)
    scrape(table, server, 2.0, kv_usage=0.5)
    assert (server.foreign_running, server.foreign_waiting) == (None, None)


def test_the_kv_correction_counts_only_what_the_scrape_cannot_know() -> None:
    """Tokens booked before the scrape are in its figure; those booked and finished since are the correction."""
    table = fleet()
    server = r(table).server
    early = table.book(r(table), uncached=10, prompt=1000, streamed=True, now=0.0)
    table.apply(facts.Scraping(server.key), 1.0)
    table.book(r(table), uncached=10, prompt=300, streamed=True, now=1.05)
    table.apply(facts.Scraped(server.key, Signals(running=1, waiting=0, kv_usage=0.1)), 1.1)
    assert server.kv_booked == 300
    early.release(1.5, completion=50)
    assert server.kv_booked == 300 - 1050


def test_old_scrapes_become_unknown_and_own_load_stays() -> None:
    """A figure older than stale_after_s says nothing about now; sizes do not age."""
    table = fleet()
    server = r(table).server
    table.book(r(table), uncached=10, prompt=10, streamed=True, now=0.0)
    scrape(table, server, 1.0, running=9, waiting=2, kv_usage=0.5, kv_tokens=5000, block_size=16)
    table.candidates("m", 5.9)
    assert (server.foreign_running, server.foreign_waiting) == (9, 1)
    table.candidates("m", 6.0)
    assert (server.signals.running, server.signals.kv_usage, server.foreign_running, server.foreign_waiting) == (None, None, None, None)
    assert (server.capacity_tokens(), server.signals.block_size, server.inflight) == (5000, 16, 1)


def test_a_scrape_refused_in_between_does_not_prolong_the_signals() -> None:
    """Failing scrapes age like missing ones."""
    table = fleet()
    server = r(table).server
    scrape(table, server, 1.0, running=9, waiting=2)
    for now in (2.0, 3.0, 4.0, 5.0):
        table.apply(facts.Scraping(server.key), now)
        table.apply(facts.ScrapeFailed(server.key, "no answer"), now)
    table.candidates("m", 6.0)
    assert server.signals.running is None


def test_prefill_rate_is_learned_from_first_tokens_and_the_backlog_ahead_of_them() -> None:
    """An engine that works through 4000 tokens in two seconds prefills 2000 a second, however they are split."""
    table = fleet()
    server = r(table).server
    first = table.book(r(table), uncached=3000, prompt=3000, streamed=True, now=0.0)
    second = table.book(r(table), uncached=1000, prompt=1000, streamed=True, now=0.0)
    first.first_token(1.5)
    second.first_token(2.0)
    assert server.prefill_rate == pytest.approx(2000, rel=0.01)


def test_small_prefills_teach_nothing() -> None:
    """Ten tokens take a whole step: that is no rate."""
    table = fleet()
    slot = table.book(r(table), uncached=10, prompt=900, streamed=True, now=0.0)
    slot.first_token(0.5)
    assert r(table).server.prefill_rate is None


def test_sizes_come_from_settings_then_engine_then_defaults_then_what_was_seen() -> None:
    """Batch slots, step budget and capacity: the most certain source wins."""
    table = fleet(1)
    server = r(table).server
    assert (server.max_num_seqs(), server.step_tokens(), server.capacity_tokens()) == (256, 2048, None)
    scrape(table, server, 1.0, running=300, waiting=9, step_seen=8192, ranks=1)
    assert (server.max_num_seqs(), server.step_tokens()) == (300, 8192)
    scrape(table, server, 2.0, running=1, waiting=0, max_num_seqs=64, step_tokens=512, kv_tokens=9000)
    assert (server.max_num_seqs(), server.step_tokens(), server.capacity_tokens()) == (64, 512, 9000)
    table.reconfigure(Settings.model_validate(config(1, max_num_seqs=8, step_tokens=100, kv_tokens=777)), 3.0)
    assert (server.max_num_seqs(), server.step_tokens(), server.capacity_tokens()) == (8, 100, 777)


def test_defaults_hold_per_data_parallel_rank() -> None:
    """Two ranks behind one address have two batches."""
    table = fleet(1)
    scrape(table, r(table).server, 1.0, running=3, waiting=0, ranks=2)
    assert (r(table).server.max_num_seqs(), r(table).server.step_tokens()) == (512, 4096)


def test_two_replicas_at_one_address_share_its_load() -> None:
    """One server under two models is one server."""
    both = config(1)
    both["models"].append({"name": "n", "replicas": [{"id": "n1", "url": "HTTP://10.0.0.1:8000/v1/"}]})
    table = fleet(1)
    table.reconfigure(Settings.model_validate(both), 1.0)
    assert len(table.servers()) == 1
    table.book(table.replicas("n")[0], uncached=5, prompt=5, streamed=True, now=1.0)
    assert (r(table).server.inflight, r(table).inflight, r(table, "n1").inflight) == (1, 0, 1)
