"""What the simulator decides to answer."""

from __future__ import annotations

import orjson
import pytest

from replicas.simulator.errors import ApiError
from replicas.simulator.planning import Limits, Params, chosen_tool, plan, schema_of
from replicas.simulator.tokens import Writer

WRITER = Writer(4, seed=0, mean=20)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}


def test_answers_stop_by_themselves_around_the_natural_length() -> None:
    """Without a limit in the way, an answer takes half to one and a half times the mean and ends with `stop`."""
    plans = [plan(WRITER, bytes([seed]), Params(), 1000, 0) for seed in range(50)]
    assert {what.finish for what in plans} == {"stop"}
    assert all(10 <= len(what.pieces) <= 30 for what in plans)
    assert len({len(what.pieces) for what in plans}) > 5


def test_the_limit_ends_an_answer_with_length() -> None:
    """Exactly as many tokens as allowed."""
    what = plan(WRITER, b"x", Params(), 5, 0)
    assert (len(what.pieces), what.finish) == (5, "length")


def test_ignore_eos_uses_the_whole_limit() -> None:
    """As load generators ask for."""
    assert len(plan(WRITER, b"x", Params(ignore_eos=True), 500, 0).pieces) == 500


def test_min_tokens_lengthens_an_answer() -> None:
    """It does not end before."""
    assert len(plan(WRITER, b"x", Params(min_tokens=200), 1000, 0).pieces) >= 200


def test_choices_differ() -> None:
    """`n` answers to one prompt are not copies of one."""
    assert plan(WRITER, b"x", Params(), 20, 0).text != plan(WRITER, b"x", Params(), 20, 1).text


def test_a_stop_string_ends_the_answer_before_itself() -> None:
    """It is reported, and not part of the text; `min_tokens` postpones it."""
    whole = plan(WRITER, b"x", Params(ignore_eos=True), 100, 0)
    stop = whole.text[22:26]
    cut = plan(WRITER, b"x", Params(ignore_eos=True, stop=("never", stop)), 100, 0)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish, cut.stop_reason) == ("stop", stop)
    later = plan(WRITER, b"x", Params(ignore_eos=True, stop=(stop,), min_tokens=10), 100, 0)
    assert len(later.text) >= 40


@pytest.mark.parametrize(
    ("choice", "last", "called"),
    [
        ("required", "hi", True),
        ("auto", "hi", False),
        (None, "use the tool", True),
        ("none", "use the tool", False),
        ({"type": "any"}, "hi", True),
    ],
)
def test_when_a_tool_is_called(choice: object, last: str, *, called: bool) -> None:
    """On demand, or when the last message speaks of a tool."""
    assert (chosen_tool([TOOL], choice, last) is not None) == called


def test_a_named_tool_is_the_one_called() -> None:
    """Not merely the first."""
    other = {"type": "function", "function": {"name": "clock"}}
    named = {"type": "function", "function": {"name": "clock"}}
    assert chosen_tool([TOOL, other], named, "") == {"name": "clock"}


def test_tool_arguments_fit_their_schema() -> None:
    """The plan's text is the JSON of the arguments."""
    what = plan(WRITER, b"x", Params(tool=TOOL["function"]), 100, 0)
    assert orjson.loads(what.text) == {"city": "text"}
    assert (what.tool, what.finish) == ("weather", "tool_calls")


def test_json_is_cut_by_the_limit_like_any_text() -> None:
    """A schema is no licence to exceed `max_tokens`."""
    what = plan(WRITER, b"x", Params(schema={"properties": {"name": {"type": "string"}}}), 2, 0)
    assert (what.text, what.finish) == ('{"name":', "length")


def test_response_formats() -> None:
    """Chat's nested and responses' flat form name the same schema; plain text has none."""
    schema = {"type": "object"}
    assert schema_of({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}) == schema
    assert schema_of({"type": "json_schema", "name": "x", "schema": schema}) == schema
    assert schema_of({"type": "json_object"}) == {}
    assert schema_of({"type": "text"}) is None
    assert schema_of(None) is None


@pytest.mark.parametrize(
    ("prompt", "asked", "param", "words"),
    [
        (101, None, "input_tokens", "maximum context length is 100 tokens"),
        (101, 1, "input_tokens", "maximum context length is 100 tokens"),
        (100, None, "max_tokens", "must be at least 1"),
        (90, 101, "max_tokens", "cannot be greater than max_model_len=100"),
    ],
)
def test_what_does_not_fit_the_context_is_refused(prompt: int, asked: int | None, param: str, words: str) -> None:
    """With the parameter at fault and the words clients look for."""
    with pytest.raises(ApiError, match=words) as caught:
        Limits(100).output(prompt, asked)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_output_limits() -> None:
    """What was asked, else the endpoint's default, else the room there is; never more than the room."""
    assert Limits(100).output(90, 10) == 10
    assert Limits(100).output(90, 100) == 10
    assert Limits(100).output(90, None) == 10
    assert Limits(100, 16).output(50, None) == 16
    assert Limits(100, 16).output(90, None) == 10
