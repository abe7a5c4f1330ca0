"""The configuration files that ship."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.settings import Settings, load, parse, public
from gateway.settings.schema import fields, sections

CONFIG = Path(__file__).parents[3] / "config"


def test_the_commented_example_states_every_default() -> None:
    """What the comments of the example say about defaults is what the models do."""
    example = public(load(CONFIG / "kvgate.yaml", env={}))
    expected = public(Settings())
    assert {**expected, "models": None} == {**example, "models": None}


def test_the_commented_example_has_every_key() -> None:
    """A key that exists is in the example, in its section, spelt out."""
    data = yaml.safe_load((CONFIG / "kvgate.yaml").read_text())
    missing = []
    for path, model in sections().items():
        if path in {("server", "api_keys", "*"), ("models", "*", "weights")}:
            continue
        node = data
        for part in path:
            node = node[0 if part == "*" else part]
        missing += [(*path, name) for name in fields(model) if name not in node]
    assert missing == [("models", "*", "weights")]


def test_replica_keys_of_the_example_are_at_their_defaults() -> None:
    """But for its id and address."""
    given = yaml.safe_load((CONFIG / "kvgate.yaml").read_text())["models"][0]["replicas"][0]
    plain = parse({"models": [{"name": "m", "replicas": [{"id": given["id"], "url": given["url"]}]}]})
    full = parse({"models": [{"name": "m", "replicas": [given]}]})
    assert plain == full


@pytest.mark.parametrize("file", sorted(CONFIG.glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_loads(file: Path) -> None:
    """An example that does not work is worse than none."""
    if "models" in yaml.safe_load(file.read_text()):
        assert load(file, env={}).models
