from __future__ import annotations

import pytest

from gateway.fleet import FleetError, ModelInfo, Table, facts
from gateway.settings import ReplicaSettings, Settings
from tests.unit.fleet.kit import bring_up, config, fleet, ids, listed, r, settings, url


def test_names_aliases_and_nothing_else_resolve() -> None:
    """A client may use a model's name or an alias."""
    table = fleet()
    assert [table.resolve(n) for n in ("m", "alias", "nope")] == ["m", "m", None]


def test_a_model_without_a_usable_replica_is_still_known() -> None:
    """Scaled to zero is not unknown."""
    table = Table(Settings.model_validate({"models": [{"name": "m"}]}), 0.0)
    assert (table.resolve("m"), table.candidates("m", 0.0)) == ("m", ((), False))


@pytest.mark.parametrize(
    ("names", "served"),
    [
        (("m",), "m"),
        (("alias", "x"), "alias"),
        (("org/Only-7B",), "org/Only-7B"),
        (("m", "alias"), "m"),
        (("x", "y"), None),
        ((), None),
    ],
)
def test_the_name_at_the_server_is_its_own_an_alias_or_the_only_one(names: tuple[str, ...], served: str | None) -> None:
    """Without served_model the list decides; two strangers are one too many."""
    table = Table(settings(1), 0.0)
    bring_up(table, table.servers()[0], models=listed(*names))
    assert r(table).served == served


def test_an_unresolved_name_is_explained() -> None:
    """`status` says why a replica cannot serve."""
    table = Table(settings(1), 0.0)
    bring_up(table, table.servers()[0], models=listed("x", "y"))
    row = table.snapshot(0.0)[0]
    assert (row.state, row.reason) == ("unusable", "lists x, y: set served_model")
    assert "cannot serve: lists x, y: set served_model" in row.warnings


def test_several_names_of_one_model_are_one_base_model() -> None:
    """vLLM lists each name it was started with; they share a root."""
    table = Table(settings(1), 0.0)
    models = (ModelInfo("a", root="/w"), ModelInfo("b", root="/w"), ModelInfo("lora", root="/l", parent="a"))
    bring_up(table, table.servers()[0], models=models)
    assert r(table).served == "a"


def test_served_model_must_be_listed_unless_the_engine_ignores_names() -> None:
    """A wrong served_model would be answered 404; where the engine ignores the name it does no harm."""
    table = Table(Settings.model_validate(config(1, served_model="special")), 0.0)
    server = table.servers()[0]
    bring_up(table, server)
    assert r(table).usable(0.0) == "does not list served_model 'special'"
    table.apply(facts.Identified(server.key, "sglang", None, facts.Traits(checks_model=False)), 1.0)
    assert (r(table).served, r(table).usable(1.0)) == ("special", None)


def test_a_server_without_a_model_list_serves_what_is_configured() -> None:
    """Not every server can be asked."""
    table = Table(settings(1), 0.0)
    server = table.servers()[0]
    table.apply(facts.Listed(server.key, None), 0.0)
    table.apply(facts.Probed(server.key, ok=True), 0.0)
    assert (r(table).served, ids(table, 0.0)) == ("m", ["r1"])


def test_a_failed_listing_keeps_the_last_one() -> None:
    """An error of the list is no change of the models."""
    table = fleet(1)
    table.apply(facts.ListingFailed(r(table).server.key, "/v1/models answers 500"), 1.0)
    assert ids(table, 1.0) == ["r1"]


def test_adapters_are_models_of_their_own_name() -> None:
    """A LoRA adapter is asked for by its name, at the replicas that list it."""
    table = fleet()
    lora = ModelInfo("m-lora", root="/lora", parent="m")
    table.apply(facts.Listed(r(table, "r2").server.key, (*listed("m"), lora)), 1.0)
    assert (table.resolve("m-lora"), ids(table, 1.0, "m-lora"), table.models()) == ("m-lora", ["r2"], ["m", "m-lora"])
    assert table.listing("m-lora") == lora


def test_an_adapter_has_the_context_of_its_base_model() -> None:
    """vLLM tells the length of base models only."""
    table = fleet(1)
    models = (ModelInfo("m", max_model_len=4096), ModelInfo("m-lora", parent="m"))
    table.apply(facts.Listed(r(table).server.key, models), 1.0)
    assert (table.replicas("m")[0].context_length, table.replicas("m-lora")[0].context_length) == (4096, 4096)


def test_an_adapter_with_a_configured_name_is_the_configured_model() -> None:
    """What the file says about a name is all there is about it."""
    both = config(2)
    both["models"].append({"name": "m-lora", "replicas": [{"id": "own", "url": url(1)}]})
    table = Table(Settings.model_validate(both), 0.0)
    for server in table.servers():
        bring_up(table, server, models=(*listed("m"), ModelInfo("m-lora", parent="m")))
    assert ids(table, 0.0, "m-lora") == ["own"]


def test_an_adapter_that_is_unloaded_is_a_model_no_more() -> None:
    """The list decides; running requests end on the replica that had it."""
    table = fleet(1)
    server = r(table).server
    table.apply(facts.Listed(server.key, (*listed("m"), ModelInfo("m-lora", parent="m"))), 1.0)
    adapter = table.replicas("m-lora")[0]
    slot = table.book(adapter, uncached=1, prompt=1, streamed=True, now=1.0)
    table.apply(facts.Listed(server.key, listed("m")), 2.0)
    assert (table.resolve("m-lora"), adapter.usable(2.0)) == (None, "removed")
    slot.release(3.0)
    assert server.inflight == 0


def test_other_listed_models_are_not_served_where_a_file_names_the_models() -> None:
    """The configuration says what is served."""
    table = Table(settings(1), 0.0)
    bring_up(table, table.servers()[0], models=listed("m", "k"))
    assert table.models() == ["m"]


def test_a_discovered_server_serves_all_it_lists() -> None:
    """`--replica URL` alone is enough."""
    table = Table(Settings.model_validate({"discover": [{"url": url(1)}, {"url": url(2)}]}), 0.0)
    assert table.discovering()
    assert [(row.id, row.model, row.reason) for row in table.snapshot(0.0)] == [("r1", "", "not probed yet"), ("r2", "", "not probed yet")]
    first, second = table.servers()
    bring_up(table, first, models=listed("a", "b"))
    bring_up(table, second, models=listed("b"))
    assert (table.models(), ids(table, 0.0, "b"), table.discovering()) == (["a", "b"], ["r1", "r2"], False)
    assert {row.origin for row in table.snapshot(0.0)} == {"discovered"}


def test_a_listing_that_went_down_with_its_server_is_remembered() -> None:
    """A discovered model whose server is down is unavailable, not unknown."""
    table = Table(Settings.model_validate({"discover": [{"url": url(1)}]}), 0.0)
    bring_up(table, table.servers()[0], models=listed("a"))
    for now in (1.0, 2.0, 3.0):
        table.apply(facts.Probed(table.servers()[0].key, ok=False), now)
    assert table.resolve("a") == "a"


@pytest.mark.parametrize("address", ["http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/", "HTTP://H:8000"])
def test_spellings_of_one_address_are_one_server(address: str) -> None:
    """Health, load and drain are per address, not per spelling."""
    models = [{"name": "a", "replicas": [{"url": "http://h:8000"}]}, {"name": "b", "replicas": [{"url": address}]}]
    assert [s.key for s in Table(Settings.model_validate({"models": models}), 0.0).servers()] == ["http://h:8000"]


def test_path_prefixes_and_ipv6_stay_in_the_address() -> None:
    """Requests are appended to the key."""
    models = [{"name": "a", "replicas": [{"url": "http://h/pre/fix/v1/"}, {"url": "https://[::1]:443"}]}]
    assert [s.key for s in Table(Settings.model_validate({"models": models}), 0.0).servers()] == ["http://h/pre/fix", "https://[::1]"]


def test_a_replica_can_be_added_and_is_watched() -> None:
    """The admin API adds to a model that is there or to a new one."""
    table = fleet(1)
    table.apply(facts.Added("m", ReplicaSettings(id="x", url=url(9))), 5.0)
    table.apply(facts.Added("new", ReplicaSettings(url=url(8))), 5.0)
    for server in table.servers()[1:]:
        bring_up(table, server, 6.0, listed("m"))
    assert ids(table, 6.0) == ["r1", "x"]
    assert table.resolve("new") == "new"
    assert {(row.id, row.origin) for row in table.snapshot(6.0)} >= {("r1", "config"), ("x", "admin")}


def test_an_id_stands_for_one_replica() -> None:
    """A second one with the same id is refused and changes nothing."""
    table = fleet(1)
    with pytest.raises(FleetError, match="r1"):
        table.apply(facts.Added("m", ReplicaSettings(id="r1", url=url(9))), 1.0)
    with pytest.raises(FleetError, match="nope"):
        table.apply(facts.Draining("nope"), 1.0)
    assert len(table.servers()) == 1


def test_a_drained_replica_finishes_what_runs_and_says_when_it_is_done() -> None:
    """Nothing new, nothing cut."""
    table = fleet()
    slot = table.book(r(table), uncached=1, prompt=1, streamed=True, now=0.0)
    table.apply(facts.Draining("r1"), 1.0)
    assert (ids(table, 1.0), table.snapshot(1.0)[0].state) == (["r2"], "draining")
    slot.release(2.0)
    assert table.snapshot(2.0)[0].state == "drained"
    table.apply(facts.Undrained("r1"), 3.0)
    assert ids(table, 3.0) == ["r1", "r2"]


def test_a_drain_that_takes_too_long_is_forced_once() -> None:
    """After drain.timeout_s whoever still runs there is cut."""
    table = fleet(drain={"timeout_s": 60})
    forced: list[str] = []
    table.on_forced.append(lambda replica: forced.append(replica.id))
    table.book(r(table), uncached=1, prompt=1, streamed=True, now=0.0)
    table.apply(facts.Draining("r1"), 1.0)
    for now in (30.0, 60.9, 61.0, 62.0):
        table.tick(now)
    assert forced == ["r1"]


def test_a_removed_replica_drains_first_and_is_then_forgotten() -> None:
    """DELETE takes effect on new requests at once, on running ones never."""
    table = fleet()
    gone: list[str] = []
    forgotten: list[str] = []
    table.on_removed.append(lambda replica: gone.append(replica.id))
    table.on_restart.append(lambda replica: forgotten.append(replica.id))
    slot = table.book(r(table), uncached=1, prompt=1, streamed=True, now=0.0)
    table.apply(facts.Removed("r1"), 1.0)
    table.tick(2.0)
    assert (ids(table, 2.0), gone, [row.state for row in table.snapshot(2.0)]) == (["r2"], [], ["up", "draining"])
    slot.release(3.0)
    table.tick(4.0)
    assert (gone, forgotten, [s.key for s in table.servers()], len(table.snapshot(4.0))) == (["r1"], ["r1"], [url(2)], 1)


def test_reload_keeps_what_did_not_change() -> None:
    """Untouched replicas keep health, load and everything learned."""
    table = fleet(2)
    kept = r(table, "r2")
    kept.server.learn_prefill(1000, 1.0)
    table.book(kept, uncached=5, prompt=5, streamed=True, now=0.0)
    changed = config(3)
    del changed["models"][0]["replicas"][0]
    changed["models"][0]["replicas"][0]["max_inflight"] = 7
    table.reconfigure(Settings.model_validate(changed), 10.0)
    assert r(table, "r2") is kept
    assert (kept.settings.max_inflight, kept.server.prefill_rate, kept.server.inflight) == (7, 1000.0, 1)
    assert ids(table, 10.0) == ["r2"]
    bring_up(table, r(table, "r3").server, 11.0)
    assert ids(table, 11.0) == ["r2", "r3"]


def test_reload_drains_what_is_no_longer_there() -> None:
    """A stream on a removed replica ends by itself."""
    table = fleet(2)
    old = r(table, "r1")
    slot = table.book(old, uncached=5, prompt=5, streamed=True, now=0.0)
    changed = config(2)
    del changed["models"][0]["replicas"][0]
    table.reconfigure(Settings.model_validate(changed), 1.0)
    table.tick(2.0)
    assert old.server in table.servers()
    slot.release(3.0)
    table.tick(4.0)
    assert old.server not in table.servers()


def test_reload_keeps_replicas_that_were_added_by_hand() -> None:
    """They end with the process, not with a file."""
    table = fleet(1)
    table.apply(facts.Added("m", ReplicaSettings(id="x", url=url(9))), 1.0)
    bring_up(table, r(table, "x").server, 1.0)
    table.reconfigure(settings(2), 2.0)
    assert ids(table, 2.0) == ["r1", "x"]


def test_a_reload_that_would_use_an_id_twice_changes_nothing() -> None:
    """A bad new file leaves the old state alone."""
    table = fleet(1)
    table.apply(facts.Added("m", ReplicaSettings(id="r2", url=url(9))), 1.0)
    bring_up(table, r(table, "r2").server, 1.0)
    with pytest.raises(FleetError, match="r2"):
        table.reconfigure(settings(2), 2.0)
    assert (ids(table, 2.0), len(table.servers())) == (["r1", "r2"], 2)


def test_a_replica_that_moves_to_another_address_starts_anew_there() -> None:
    """The same id at a new address is another server; the old one finishes its requests."""
    table = fleet(1)
    old = r(table).server
    moved = config(1)
    moved["models"][0]["replicas"][0]["url"] = url(7)
    table.reconfigure(Settings.model_validate(moved), 1.0)
    assert (r(table).server.key, ids(table, 1.0)) == (url(7), [])
    table.apply(facts.Settled(replica="r1", outcome="ok", server=old.key), 1.5)
    assert (old.alive_at, r(table).server.alive_at < 0) == (1.5, True)


def test_facts_about_what_is_gone_are_ignored() -> None:
    """An answer may arrive after its replica left."""
    table = fleet(1)
    table.apply(facts.Probed("http://gone", ok=True), 1.0)
    table.apply(facts.Settled(replica="gone", outcome="reset"), 1.0)
    assert ids(table, 1.0) == ["r1"]


def test_breaker_rules_follow_a_reload() -> None:
    """New limits hold for the replicas that stay."""
    table = fleet(1)
    table.reconfigure(settings(1, breaker={"failures": 1}), 1.0)
    table.apply(facts.Settled(replica="r1", outcome="connect"), 2.0)
    assert r(table).usable(2.0) == "breaker open"
