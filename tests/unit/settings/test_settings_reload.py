"""Comparing two settings, showing them, and warning about them."""

from __future__ import annotations

import pytest
import yaml

from gateway.settings import Overrides, changes, load, needs_restart, parse, public, secrets, show, warnings_for

KEYS = ["sk-client-1", {"key": "sk-client-2", "name": "ci"}]
REPLICA = {"id": "a", "url": "http://h:1", "api_key": "sk-replica", "headers": {"x-team": "sk-header"}}
SECRET = {"server": {"api_keys": KEYS, "admin": {"token": "sk-admin"}}, "models": [{"name": "m", "replicas": [REPLICA]}]}
VALUES = {"sk-client-1", "sk-client-2", "sk-admin", "sk-replica", "sk-header"}


def with_replica(**change: str) -> dict[str, object]:
    """The settings with secrets, their replica changed."""
    return {**SECRET, "models": [{"name": "m", "replicas": [{**REPLICA, **change}]}]}


def test_equal_settings_have_no_changes() -> None:
    """A reload of an untouched file does nothing."""
    assert changes(parse(SECRET), parse(SECRET)) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"server": {"reveal": False}}, ["server.reveal"]),
        ({}, {"server": {"api_keys": ["abcd"]}}, ["server.api_keys"]),
        ({}, {"routing": {"weights": {"kv": 1}}}, ["routing.weights.kv"]),
        ({}, {"models": [{"name": "m"}]}, ["models[m]"]),
        ({"models": [{"name": "m"}, {"name": "n"}]}, {"models": [{"name": "n"}]}, ["models[m]"]),
        ({"models": [{"name": "m"}, {"name": "n"}]}, {"models": [{"name": "n"}, {"name": "m"}]}, []),
        (SECRET, with_replica(api_key="other"), ["models[m].replicas[a].api_key"]),
        (SECRET, with_replica(id="b"), ["models[m].replicas[a]", "models[m].replicas[b]"]),
    ],
)  # fmt: skip
def test_changes_name_what_differs(old: dict[str, object], new: dict[str, object], expected: list[str]) -> None:
    """Entries are compared by their names, not by their places."""
    assert expected == changes(parse(old), parse(new))


def test_bound_sockets_need_a_restart() -> None:
    """And nothing that can be taken over does."""
    new = parse({"server": {"port": 1, "reveal": False, "admin": {"port": 2, "token": "abcd"}}, "routing": {"policy": "session"}})
    assert needs_restart(changes(parse({}), new)) == ["server.admin.port", "server.port"]


def test_switching_https_on_needs_a_restart_and_a_new_certificate_does_not() -> None:
    """Certificates are renewed while streams run."""
    off, one, two = (parse({}).model_copy(update={"server": parse({}).server.model_copy(update={"tls": tls})}) for tls in _tls())
    assert ["server.tls"] == needs_restart(changes(off, one)) == needs_restart(changes(two, off))
    assert changes(one, two) == ["server.tls.cert"]
    assert needs_restart(changes(one, two)) == []


def _tls() -> list[object]:
    tls = parse({}).server.tls
    return [tls, *(tls.model_copy(update={"cert": name, "key": "k"}) for name in ("a.pem", "b.pem"))]


def test_no_secret_is_shown() -> None:
    """Neither in the YAML, nor in the JSON, nor when someone prints the object."""
    settings = parse(SECRET)
    text = show(settings) + repr(public(settings)) + repr(settings) + str(settings)
    assert [value for value in VALUES if value in text] == []
    assert public(settings)["server"]["admin"]["token"] == "**********"
    assert public(settings)["models"][0]["replicas"][0]["headers"] == {"x-team": "**********"}


def test_all_secrets_are_known_for_masking() -> None:
    """Of keys, admin, replicas of models and of the command line."""
    assert secrets(parse(SECRET)) == VALUES
    assert frozenset() == secrets(load(None, Overrides(replicas=("http://h:1",)), env={}))


def test_what_is_shown_is_a_valid_file_of_the_same_settings() -> None:
    """`check --show` prints what could be written."""
    settings = parse({"server": {"tls": {}}, "models": [{"name": "m", "aliases": ["n"], "replicas": [{"url": "http://h:1"}]}]})
    assert changes(settings, parse(yaml.safe_load(show(settings)))) == []


def test_command_line_replicas_are_shown() -> None:
    """They are settings too."""
    assert "http://h:1" in show(load(None, Overrides(replicas=("http://h:1",)), env={}))


WELL = {"server": {"host": "127.0.0.1"}, "models": [{"name": "m", "replicas": [{"url": "http://h:1"}]}]}


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"server": {"host": "0.0.0.0"}}, "server.api_keys is empty"),
        ({"server": {"host": "127.0.0.1", "max_inflight_bytes": 1000}}, "server.max_inflight_bytes is below"),
        ({"server": {"host": "127.0.0.1", "trusted_proxies": ["0.0.0.0/0"]}}, "trusts every address"),
        ({"scrape": {"stale_after_s": 1}}, "scrape.stale_after_s is not above"),
        ({"models": []}, "no replicas are configured"),
        ({"models": [*WELL["models"], {"name": "n"}]}, "model n has no replicas"),
    ],
)
def test_what_is_probably_not_meant_is_warned_about(change: dict[str, object], warning: str) -> None:
    """Allowed, but said out loud."""
    (found,) = warnings_for(parse({**WELL, **change}))
    assert warning in found


def test_a_sound_configuration_has_no_warnings() -> None:
    """Warnings that always appear are not read."""
    assert warnings_for(parse(WELL)) == []
    assert warnings_for(parse({**WELL, "server": {"host": "0.0.0.0", "api_keys": ["abcd"]}})) == []
