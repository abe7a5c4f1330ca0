"""Ordinary log events: one format, no secrets."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Literal

import pytest
import structlog

from gateway.settings import LogSettings
from gateway.telemetry import Mask, set_up_events

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRETS = ("sk-right-key", "sk-replica-key", 'quo"te\\d-key')
FORMATS: tuple[Literal["console", "json"], ...] = ("console", "json")
LEVELS: tuple[Literal["debug", "info", "warning", "error"], ...] = ("debug", "info", "warning", "error")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging is global: leave it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def set_up(form: Literal["console", "json"] = "json", level: Literal["debug", "info", "warning", "error"] = "info") -> io.StringIO:
    """Logging into memory."""
    out = io.StringIO()
    set_up_events(LogSettings(format=form, level=level), Mask(SECRETS), out)
    return out


def test_json_events_are_one_object_per_line() -> None:
    """With time, level, event and the event's own fields."""
    out = set_up()
    structlog.get_logger("x").info("replica down", replica="a", failures=3)
    event = json.loads(out.getvalue())
    assert event.pop("time").endswith("Z")
    assert event == {"level": "info", "event": "replica down", "replica": "a", "failures": 3}


def test_console_events_are_one_readable_line() -> None:
    """No colours where nobody sees them."""
    out = set_up("console")
    structlog.get_logger("x").warning("replica down", replica="a")
    line = out.getvalue()
    assert "replica down" in line
    assert "replica=a" in line
    assert "\x1b" not in line
    assert line.count("\n") == 1


def test_the_level_is_a_threshold_and_can_be_changed() -> None:
    """Setting up again, as a reload does, replaces what was there."""
    out = set_up(level="warning")
    log = structlog.get_logger("x")
    log.info("quiet")
    assert out.getvalue() == ""
    again = set_up(level="debug")
    log.debug("loud")
    assert "loud" in again.getvalue()
    assert out.getvalue() == ""


def test_libraries_log_in_the_same_format() -> None:
    """uvicorn and aiohttp use the standard library."""
    out = set_up()
    logging.getLogger("uvicorn.error").warning("port %d busy", 80)
    assert json.loads(out.getvalue())["event"] == "port 80 busy"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_gets_out(form: Literal["console", "json"], level: Literal["debug", "info", "warning", "error"], secret: str) -> None:
    """Not as a field, in nested data, in a message, in arguments, nor in a traceback, at any level."""
    out = set_up(form, level)
    log = structlog.get_logger("x")
    log.error("one", key=secret, headers={"authorization": [f"Bearer {secret}"]}, body=secret.encode())
    log.error(f"refused {secret}")
    logging.getLogger("aiohttp").error("sent %s", secret)
    try:
        raise ValueError(f"http://user:{secret}@host")
    except ValueError:
        log.exception("failed")
        logging.getLogger("aiohttp").exception("failed")
    text = out.getvalue()
    assert "failed" in text
    assert "***" in text
    assert [form for form in (secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret)[1:-1])[1:-1]) if form in text] == []


def test_masking_leaves_nothing_of_a_longer_secret() -> None:
    """When one secret is part of another."""
    assert Mask(["abcd", "abcd-efgh"])("x abcd-efgh abcd y") == "x *** *** y"


def test_new_secrets_are_added_and_old_ones_stay() -> None:
    """Requests of before a reload may still be logged."""
    mask = Mask(["old-secret"])
    mask.know(["new-secret"])
    assert mask("old-secret new-secret") == "*** ***"


def test_words_are_not_masked_for_the_sake_of_a_trivial_key() -> None:
    """A key `a` is no secret; a log without the letter is no log."""
    assert Mask(["a", ""])("a banana") == "a banana"
