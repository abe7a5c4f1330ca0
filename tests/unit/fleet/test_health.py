from __future__ import annotations

import pytest

from gateway.fleet import ServerState, Signals, Table, facts
from tests.unit.fleet.kit import bring_up, fails_open, fleet, ids, listed, r, scrape, settings, settled


def probe(table: Table, server: ServerState, now: float, *, ok: bool, starting: bool = False, times: int = 1) -> None:
    for n in range(times):
        table.apply(facts.Probed(server.key, ok=ok, starting=starting), now + 2.0 * n)


def test_nothing_is_sent_before_a_server_is_well_and_lists_the_model() -> None:
    """A port that is open does not serve yet."""
    table = Table(settings(1), 0.0)
    server = table.servers()[0]
    assert table.refused("m", 0.0) == [("r1", "not probed yet")]
    probe(table, server, 1.0, ok=False, starting=True)
    assert table.refused("m", 1.0) == [("r1", "starting")]
    assert ids(table, 1.0) == []
    probe(table, server, 2.0, ok=True)
    assert table.refused("m", 2.0) == [("r1", "models not listed yet")]
    table.apply(facts.Listed(server.key, listed("other", "second")), 3.0)
    assert ids(table, 3.0) == []
    table.apply(facts.Listed(server.key, listed("m")), 4.0)
    assert ids(table, 4.0) == ["r1"]


def test_down_takes_the_configured_number_of_failed_probes_and_up_of_good_ones() -> None:
    """One late answer does not move a replica, in either direction."""
    table = fleet(health={"unhealthy_after": 3, "healthy_after": 2})
    server = r(table).server
    probe(table, server, 0.0, ok=True, times=2)
    probe(table, server, 4.0, ok=False, times=2)
    assert server.health == "up"
    probe(table, server, 8.0, ok=False)
    assert (server.health, r(table).usable(8.0)) == ("down", "down")
    probe(table, server, 10.0, ok=True)
    assert server.health == "down"
    probe(table, server, 12.0, ok=True)
    assert server.health == "up"


def test_a_flapping_probe_moves_nothing() -> None:
    """Good and bad answers in turn never make a row."""
    table = fleet()
    changes: list[str] = []
    table.on_change.append(lambda server, before, after: changes.append(after))
    for n in range(40):
        probe(table, r(table).server, n * 2.0, ok=n % 2 == 0)
    assert changes == []


def test_failing_probes_do_not_remove_a_replica_whose_traffic_succeeds() -> None:
    """Busy is not dead: answers that arrive between the failing probes count more than these."""
    table = fleet()
    server = r(table).server
    for n in range(10):
        probe(table, server, n * 2.0, ok=False)
        settled(table, "ok", n * 2.0 + 1.0)
    assert ids(table, 20.0) == ["r1", "r2"]


def test_a_stream_that_makes_progress_is_traffic_that_succeeds() -> None:
    """Long answers settle rarely; their tokens are proof enough."""
    table = fleet()
    server = r(table).server
    slot = table.book(r(table), uncached=10, prompt=10, streamed=True, now=0.0)
    slot.first_token(0.5)
    for n in range(10):
        probe(table, server, 1.0 + n * 2.0, ok=False)
        slot.progress(2.0 + n * 2.0)
    assert server.health == "up"


def test_failing_probes_remove_a_replica_once_its_traffic_stops() -> None:
    """Yesterday's answers do not keep a dead server up."""
    table = fleet()
    settled(table, "ok", 0.0)
    probe(table, r(table).server, 1.0, ok=False, times=3)
    assert ids(table, 9.0) == ["r2"]


def test_when_all_are_down_the_least_bad_are_tried() -> None:
    """Fail open: a wrong opinion about everybody must not become an outage."""
    table = fleet()
    for server in table.servers():
        probe(table, server, 1.0, ok=False, times=3)
    settled(table, "connect", 7.0, "r2", times=5)
    assert (ids(table, 8.0), fails_open(table, 8.0)) == (["r1", "r2"], True)
    probe(table, r(table, "r1").server, 8.0, ok=True)
    assert (ids(table, 8.0), fails_open(table, 8.0)) == (["r1"], False)


def test_a_short_back_off_is_less_bad_than_an_open_breaker_and_that_less_than_down() -> None:
    """Among the bad, the least bad go first."""
    table = fleet(3)
    probe(table, r(table, "r1").server, 1.0, ok=False, times=3)
    settled(table, "reset", 7.0, "r2", times=5)
    settled(table, "backpressure", 7.0, "r3", retry_after=5.0)
    assert (ids(table, 7.5), fails_open(table, 7.5)) == (["r3"], True)


def test_the_least_bad_are_found_anew_when_a_cooldown_ends() -> None:
    """Behind an open breaker may stand a back-off, which is less bad."""
    table = fleet(2)
    settled(table, "reset", 1.0, "r1", times=5)
    settled(table, "backpressure", 8.0, "r1", retry_after=10.0)
    settled(table, "reset", 8.0, "r2", times=5)
    assert (ids(table, 10.0), ids(table, 11.0)) == (["r1", "r2"], ["r1"])


@pytest.mark.parametrize("change", [facts.Draining, facts.Removed])
def test_what_an_operator_took_out_is_never_tried(change: type) -> None:
    """Fail open does not open drained replicas."""
    table = fleet(1)
    table.apply(change("r1"), 1.0)
    assert table.candidates("m", 1.0) == ((), False)


def test_a_sleeping_engine_gets_nothing_although_its_health_is_fine() -> None:
    """Requests to a sleeping engine hang; it also has lost its cache."""
    table = fleet(1)
    forgotten: list[str] = []
    table.on_restart.append(lambda replica: forgotten.append(replica.id))
    server = r(table).server
    scrape(table, server, 1.0, running=0, waiting=0, asleep=True)
    probe(table, server, 2.0, ok=True)
    assert (table.candidates("m", 2.0), r(table).usable(2.0), forgotten) == (((), False), "asleep", ["r1"])
    scrape(table, server, 3.0, running=0, waiting=0, asleep=False)
    assert (ids(table, 3.0), server.share(3.0)) == (["r1"], 0.1)


def test_a_recovered_replica_ramps_up_over_half_a_minute() -> None:
    """Slow start: a cold cache is not hit with a full share."""
    table = fleet()
    server = r(table).server
    probe(table, server, 1.0, ok=False, times=3)
    probe(table, server, 10.0, ok=True)
    assert [round(server.share(now), 2) for now in (10.0, 25.0, 40.0, 99.0)] == [0.1, 0.5, 1.0, 1.0]


def test_servers_found_well_at_the_start_need_no_ramp_but_later_ones_do() -> None:
    """The gateway is new, the engines are not."""
    table = fleet()
    assert r(table).share(0.0) == 1.0
    table.reconfigure(settings(3), 50.0)
    bring_up(table, r(table, "r3").server, 51.0)
    assert (r(table, "r1").share(51.0), r(table, "r3").share(51.0)) == (1.0, 0.1)


def test_four_hundreds_never_open_the_breaker() -> None:
    """Bad requests are the client's fault."""
    table = fleet()
    for replica in ("r1", "r2"):
        settled(table, "client_error", 1.0, replica, times=50, status=400)
    assert ids(table, 1.0) == ["r1", "r2"]


def test_five_failures_open_the_breaker_and_one_probe_decides() -> None:
    """Passive health: out after five, back by a single real request after the cooldown."""
    table = fleet()
    settled(table, "server_error", 1.0, times=5, status=500)
    assert ids(table, 10.9) == ["r2"]
    assert ids(table, 11.0) == ["r1", "r2"]
    trial = table.book(r(table), uncached=1, prompt=1, streamed=True, now=11.0)
    assert ids(table, 11.0) == ["r2"]
    trial.release(12.0)
    settled(table, "ok", 12.0, duration=1.0)
    assert (ids(table, 12.0), r(table).share(12.0)) == (["r1", "r2"], 0.1)


def test_a_trial_without_a_verdict_lets_the_next_one_try() -> None:
    """A client that hung up says nothing about the replica."""
    table = fleet()
    settled(table, "server_error", 1.0, times=5)
    trial = table.book(r(table), uncached=1, prompt=1, streamed=True, now=11.0)
    assert ids(table, 11.5) == ["r2"]
    trial.release(12.0)
    settled(table, "cancelled", 12.0)
    assert ids(table, 12.0) == ["r1", "r2"]


def test_back_pressure_is_left_alone_for_as_long_as_it_asks_within_reason() -> None:
    """429 and 503 cause a short pause, a longer one where retry-after says so, never one of an hour."""
    table = fleet()
    settled(table, "backpressure", 1.0, status=503)
    assert (ids(table, 1.4), ids(table, 1.5)) == (["r2"], ["r1", "r2"])
    settled(table, "backpressure", 2.0, status=429, retry_after=3.0)
    assert (ids(table, 4.9), ids(table, 5.0)) == (["r2"], ["r1", "r2"])
    settled(table, "backpressure", 6.0, status=429, retry_after=3600.0)
    assert (ids(table, 15.9), ids(table, 16.0)) == (["r2"], ["r1", "r2"])
    assert r(table).server.breaker.state(16.0) == "closed"


def test_a_replica_that_refuses_our_key_is_left_alone_and_said_so() -> None:
    """A wrong api_key is the operator's to mend."""
    table = fleet()
    settled(table, "auth", 1.0, status=401)
    assert table.refused("m", 2.0) == [("r1", "refuses our key")]
    assert "refused the configured api_key" in table.snapshot(2.0)[0].warnings


def test_a_model_that_turned_out_missing_is_left_out_until_the_next_listing() -> None:
    """404 for a listed model: the list was out of date."""
    table = fleet()
    settled(table, "not_found", 1.0, status=404, model="m", missing=True)
    assert table.refused("m", 1.0) == [("r1", "model absent")]
    assert r(table).server.listed_at < 0.0
    table.apply(facts.Listed(r(table).server.key, listed("m")), 2.0)
    assert ids(table, 2.0) == ["r1", "r2"]


def test_a_path_that_is_not_there_does_not_remove_the_model() -> None:
    """A client asking for embeddings of a chat model must not take the model away from everybody."""
    table = fleet()
    settled(table, "not_found", 1.0, status=404, model="m", times=3)
    assert ids(table, 1.0) == ["r1", "r2"]


def test_a_replica_that_refuses_what_its_peers_accept_is_suspect() -> None:
    """A fast wrong answer must not draw traffic; after a while it gets another chance."""
    table = fleet()
    settled(table, "ok", 1.0, "r2", times=40)
    settled(table, "client_error", 1.0, "r1", times=25, status=400)
    assert ids(table, 1.0) == ["r2"]
    assert ids(table, 11.0) == ["r1", "r2"]


def test_bad_requests_spread_evenly_make_nobody_suspect() -> None:
    """When peers refuse as much, the requests are to blame."""
    table = fleet()
    for _ in range(40):
        settled(table, "client_error", 1.0, "r1")
        settled(table, "client_error", 1.0, "r2")
    assert ids(table, 1.0) == ["r1", "r2"]


@pytest.mark.parametrize(
    "after",
    [
        Signals(prefix_queries=10.0, start_time=1000.0),
        Signals(prompt_tokens=4.0, start_time=1000.0),
        Signals(prefix_queries=500.0, prompt_tokens=900.0, start_time=2000.0),
    ],
    ids=["counter fell", "other counter fell", "started later"],
)
def test_a_restarted_engine_has_forgotten_its_prefixes(after: Signals) -> None:
    """A counter that fell or another start time: the cache is empty."""
    table = fleet()
    forgotten: list[str] = []
    table.on_restart.append(lambda replica: forgotten.append(replica.id))
    server = r(table).server
    scrape(table, server, 1.0, prefix_queries=100.0, prompt_tokens=800.0, start_time=1000.0)
    scrape(table, server, 2.0, prefix_queries=200.0, prompt_tokens=900.0, start_time=1000.2)
    scrape(table, server, 3.0)
    assert forgotten == []
    table.apply(facts.Scraping(server.key), 4.0)
    table.apply(facts.Scraped(server.key, after), 4.0)
    assert forgotten == ["r1"]


def test_a_server_that_went_down_has_forgotten_its_prefixes() -> None:
    """Failed health is taken for a restart."""
    table = fleet()
    forgotten: list[str] = []
    table.on_restart.append(lambda replica: forgotten.append(replica.id))
    probe(table, r(table, "r2").server, 1.0, ok=False, times=3)
    assert forgotten == ["r2"]


def test_retry_after_tells_when_asking_again_may_help() -> None:
    """The nearest end of a back-off, else the next probe; at least a second."""
    table = fleet(1)
    settled(table, "backpressure", 1.0, retry_after=1.5)
    assert table.retry_after("m", 1.0) == 1.5
    assert table.retry_after("m", 2.4) == 1.0
    probe(table, r(table).server, 3.0, ok=False, times=3)
    assert table.retry_after("m", 9.0) == 2.0
