from __future__ import annotations

import msgspec

from gateway.fleet import STATES, Table, facts
from tests.unit.fleet.kit import bring_up, fleet, r, scrape, settings, settled


def test_each_signal_has_its_age_and_unknown_is_none() -> None:
    """Metrics and people can tell fresh from stale from never seen."""
    table = fleet(2)
    scrape(table, r(table).server, 1.0, running=3, waiting=0)
    first, second = table.snapshot(3.5)
    assert (first.signals["running"].value, first.signals["running"].age_s) == (3, 2.5)
    assert (first.signals["kv_usage"].value, first.signals["kv_usage"].age_s) == (None, 2.5)
    assert (second.signals["running"].value, second.signals["running"].age_s) == (None, None)


def test_a_stale_signal_shows_its_age_but_no_value() -> None:
    """What is too old to use is not shown as if it were true."""
    table = fleet(1)
    scrape(table, r(table).server, 1.0, running=3, waiting=0, kv_usage=0.5)
    reading = table.snapshot(11.0)[0].signals["kv_usage"]
    assert (reading.value, reading.age_s) == (None, 10.0)


def test_rows_are_plain_data() -> None:
    """The admin API can send them as they are, with one of the known states."""
    table = fleet(1)
    row = msgspec.json.decode(msgspec.json.encode(table.snapshot(1.0)[0]))
    assert (row["id"], row["model"], row["state"], row["engine"], row["version"]) == ("r1", "m", "up", "vllm", "0.12.0")
    assert row["state"] in STATES


def test_missing_metrics_and_signals_are_warned_about() -> None:
    """An engine that tells nothing is routed to blindly: say so."""
    table = fleet(1)
    table.apply(facts.ScrapeFailed(r(table).server.key, "/metrics answers 404"), 1.0)
    assert any("/metrics answers 404" in w for w in table.snapshot(1.0)[0].warnings)
    scrape(table, r(table).server, 2.0, running=1, waiting=0)
    assert table.snapshot(2.0)[0].warnings == ("KV cache usage is unknown: the metrics lack it",)
    scrape(table, r(table).server, 3.0, running=1, waiting=0, kv_usage=0.1)
    assert table.snapshot(3.0)[0].warnings == ()


def test_usage_without_cached_tokens_names_the_flag_that_is_missing() -> None:
    """Predictions cannot be checked without it; a few answers without it may be cold prompts, and embeddings never have it."""
    table = fleet(1)
    warning = ("usage has no cached_tokens, predictions go unchecked (hint)",)
    scrape(table, r(table).server, 1.0, running=1, waiting=0, kv_usage=0.1)
    settled(table, "ok", 1.0, prompt=100, times=30)
    settled(table, "ok", 1.0, prompt=100, completion=5, times=19)
    assert table.snapshot(1.0)[0].warnings == ()
    settled(table, "ok", 1.0, prompt=100, completion=5)
    assert table.snapshot(1.0)[0].warnings == warning
    settled(table, "ok", 2.0, prompt=100, cached=64, completion=5)
    settled(table, "ok", 2.0, prompt=100, completion=5, times=30)
    assert table.snapshot(2.0)[0].warnings == ()


def test_an_engine_that_hits_nothing_may_well_say_nothing() -> None:
    """Zero cached tokens are left out by some engines: that is no missing flag."""
    table = fleet(1)
    for now in (1.0, 2.0):
        scrape(table, r(table).server, now, running=1, waiting=0, kv_usage=0.1, prefix_queries=now * 100, prefix_hits=0.0)
    settled(table, "ok", 2.0, prompt=100, completion=5, times=30)
    assert table.snapshot(2.0)[0].warnings == ()


def test_prefix_caching_off_and_sleep_are_warned_about() -> None:
    """Both make cache-aware routing pointless there."""
    table = fleet(1)
    scrape(table, r(table).server, 1.0, running=1, waiting=0, kv_usage=0.1, prefix_caching=False, asleep=True)
    warnings = table.snapshot(1.0)[0].warnings
    assert [w.split(":")[0] for w in warnings] == ["prefix caching is switched off in the engine", "asleep"]


def test_an_engine_without_metrics_is_named_as_such() -> None:
    """That is no fault to mend, but a limit to know."""
    table = fleet(1)
    table.apply(facts.Identified(r(table).server.key, "openai", None, facts.Traits(has_metrics=False)), 1.0)
    assert table.snapshot(1.0)[0].warnings == ("load of others is unknown: this engine has no metrics",)


def test_tpot_and_mean_prompt_are_learned() -> None:
    """Smoothed over answers."""
    table = fleet(1)
    settled(table, "ok", 1.0, prompt=1000, tpot=0.02)
    settled(table, "ok", 2.0, prompt=2000, tpot=0.04)
    server = r(table).server
    assert (server.mean_prompt, round(server.tpot or 0, 4)) == (1100, 0.022)


def test_the_hit_rate_is_that_of_the_last_readings() -> None:
    """Counters since the start of the engine hide what happens now."""
    table = fleet(1)
    server = r(table).server
    scrape(table, server, 1.0, prefix_queries=1000.0, prefix_hits=0.0)
    scrape(table, server, 2.0, prefix_queries=1100.0, prefix_hits=75.0)
    assert table.snapshot(2.0)[0].signals["hit_rate"].value == 0.75
    scrape(table, server, 3.0, prefix_queries=10.0, prefix_hits=1.0)
    assert table.snapshot(3.0)[0].signals["hit_rate"].value is None


def test_every_state_of_a_replica_has_its_name() -> None:
    """The state a replica shows is the one it is in."""
    table = fleet(1)
    server = r(table).server
    seen = [table.snapshot(0.0)[0].state]
    settled(table, "backpressure", 1.0)
    seen.append(table.snapshot(1.0)[0].state)
    settled(table, "reset", 2.0, times=5)
    seen.append(table.snapshot(2.0)[0].state)
    for now in (3.0, 4.0, 5.0):
        table.apply(facts.Probed(server.key, ok=False), now)
    seen.append(table.snapshot(5.0)[0].state)
    table.apply(facts.Probed(server.key, ok=False, starting=True), 6.0)
    seen.append(table.snapshot(6.0)[0].state)
    bring_up(table, server, 20.0)
    seen.append(table.snapshot(20.0)[0].state)
    assert seen == ["up", "backing_off", "broken", "down", "starting", "up"]


def test_a_server_that_was_never_reached_is_down() -> None:
    """That its models are unknown is only what follows from it."""
    table = Table(settings(1), 0.0)
    table.apply(facts.Probed(table.servers()[0].key, ok=False, detail="cannot be reached"), 1.0)
    row = table.snapshot(1.0)[0]
    assert (row.state, row.reason, row.health_detail, row.warnings) == ("down", "down", "cannot be reached", ())
