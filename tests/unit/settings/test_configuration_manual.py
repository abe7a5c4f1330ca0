"""The manual's tables are the models."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import SettingsError, parse
from gateway.settings.manual import reference, updated
from gateway.settings.schema import fields, sections

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_manual_is_up_to_date() -> None:
    """If this fails: python -m gateway.settings.manual docs/configuration.md"""
    text = PAGE.read_text()
    assert updated(text) == text


def test_every_key_has_a_meaning() -> None:
    """A key nobody explained is not finished."""
    assert [
        (path, name) for path, model in sections().items() for name, field in fields(model).items() if path and not field.description
    ] == []


def test_the_tables_name_key_default_and_limits() -> None:
    """In one row."""
    assert "| `port` | `8080` | a whole number from 0 up to 65535 | public port; 0: any free port |" in reference()


def test_a_page_without_marks_is_refused() -> None:
    """Rather than losing its text."""
    with pytest.raises(ValueError, match="settings: begin"):
        updated("# Configuration\n")


@pytest.mark.parametrize("key", ["kv_events", "gpu_metrics_url"])
def test_what_the_manual_calls_unavailable_is_refused(key: str) -> None:
    """The page and the program agree."""
    assert f"`{key}`" in PAGE.read_text()
    with pytest.raises(SettingsError, match="not available in this version"):
        parse({"models": [{"name": "m", "replicas": [{"url": "http://h:1", key: "x"}]}]})
