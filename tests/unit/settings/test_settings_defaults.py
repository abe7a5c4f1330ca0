"""The models: defaults, ids, names, immutability."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.settings import ModelSettings, Overrides, ReplicaSettings, Settings, load, parse

DOCUMENTED: dict[str, dict[str, object]] = {
    "server": {
        "host": "0.0.0.0", "port": 8080, "forward_auth": False, "max_body_bytes": 67108864, "max_inflight_bytes": 1073741824,
        "header_timeout_s": 10, "body_timeout_s": 60, "keepalive_s": 120, "write_stall_s": 60, "reveal": True, "workers": 1,
    },
    "routing": {
        "policy": "weighted", "gpu_source": "auto", "load_guard": 1.25, "block_bytes": 256, "index_mb": 128, "isolate": "tenant",
        "allow_pinning": False, "shadow": (), "hold": "off", "hold_aging": 0.1, "hold_max_s": 10,
    },
    "usage": {"inject": True},
    "admission": {"queue_size": 1000, "max_wait_s": 60, "wait_for_replica_s": 0, "priority_header": "x-kvgate-priority"},
    "limits": {"header_bytes": 65536, "headers": 200, "nesting": 200, "streams_per_key": None, "connections_per_address": None},
    "timeouts": {
        "connect_s": 2, "first_byte_s": 300, "idle_s": 120, "data_idle_s": 600, "unary_s": 900, "total_s": None, "queue_s": 30,
    },
    "retries": {"attempts": 2, "budget": 0.2, "on_timeout": False},
    "health": {"interval_s": 2, "timeout_s": 5, "unhealthy_after": 3, "healthy_after": 1},
    "scrape": {"interval_s": 1, "timeout_s": 1, "stale_after_s": 5},
    "breaker": {"failures": 5, "ratio": 0.5, "min_requests": 10, "window_s": 30, "cooldown_s": 10},
    "drain": {"timeout_s": 600},
    "log": {"format": "console", "level": "info"},
}  # fmt: skip


@pytest.mark.parametrize("section", DOCUMENTED)
def test_defaults_are_the_documented_ones(section: str) -> None:
    """Scripts rely on the defaults: changing one is a breaking change and must fail here."""
    actual = getattr(Settings(), section).model_dump()
    assert {name: actual[name] for name in DOCUMENTED[section]} == DOCUMENTED[section]


def test_nested_defaults_are_the_documented_ones() -> None:
    """The small sections inside others too."""
    settings = Settings()
    assert settings.server.tls.model_dump() == {"cert": None, "key": None}
    assert settings.server.admin.model_dump() == {"host": "127.0.0.1", "port": 9090, "token": None}
    assert settings.server.shutdown.model_dump() == {"grace_s": 0, "timeout_s": 600}
    assert settings.routing.weights.model_dump() == {"gpu": 0.1, "kv": 0.1, "prefix": 0.5, "queue": 0.3}


def test_settings_cannot_be_changed() -> None:
    """One frozen object: a reload builds another."""
    with pytest.raises(ValidationError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]


def test_replicas_without_an_id_are_numbered_in_order() -> None:
    """r1, r2 ... over all models, in the order of the file."""
    settings = parse({"models": [_model("m", {}, {}), _model("n", {})]})
    assert [r.id for m in settings.models for r in m.replicas] == ["r1", "r2", "r3"]


def test_numbering_steps_around_ids_that_are_taken() -> None:
    """A default id never collides with a given one, wherever that stands."""
    settings = parse({"models": [_model("m", {}, {"id": "r2"}, {}), _model("n", {"id": "r1"})]})
    assert [r.id for m in settings.models for r in m.replicas] == ["r3", "r2", "r4", "r1"]


def test_numbering_works_on_models_built_in_code() -> None:
    """Not only files get ids."""
    settings = Settings(models=(ModelSettings(name="m", replicas=(ReplicaSettings(url="http://h:1"),)),))
    assert settings.models[0].replicas[0].id == "r1"


def test_command_line_replicas_are_numbered() -> None:
    """Replicas without a model get ids as well."""
    settings = load(None, Overrides(replicas=("http://a:1", "http://b:1")), env={})
    assert [(r.id, r.url) for r in settings.discover] == [("r1", "http://a:1"), ("r2", "http://b:1")]


def test_keys_without_a_name_are_numbered() -> None:
    """Logs name keys, and never show them."""
    settings = parse({"server": {"api_keys": ["first-secret", {"key": "second-secret", "name": "ci"}, "third-secret"]}})
    assert [key.name for key in settings.server.api_keys] == ["key1", "ci", "key3"]


def test_a_model_takes_the_weights_it_does_not_set_from_routing() -> None:
    """Per-model weights are a change to the common ones, not a fresh start."""
    settings = parse({"routing": {"weights": {"kv": 0.4}}, "models": [{**_model("m", {}), "weights": {"prefix": 0.9}}, _model("n", {})]})
    weights = settings.models[0].weights
    assert weights is not None
    assert weights.model_dump() == {"gpu": 0.1, "kv": 0.4, "prefix": 0.9, "queue": 0.3}
    assert settings.models[1].weights is None


def test_one_server_may_serve_two_models() -> None:
    """The same address under two models is fine: it is one server with two replicas."""
    settings = parse({"models": [_model("m", {"url": "http://h:1"}), _model("n", {"url": "http://h:1/v1"})]})
    assert [r.id for m in settings.models for r in m.replicas] == ["r1", "r2"]


def _model(name: str, *replicas: dict[str, str]) -> dict[str, object]:
    return {"name": name, "replicas": [{"url": f"http://{name}{n}:1", **r} for n, r in enumerate(replicas)]}
