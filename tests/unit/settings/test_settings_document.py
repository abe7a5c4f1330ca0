"""Reading YAML: scalars as text, variables, merges."""

from __future__ import annotations

import pytest

from gateway.settings.document import Document


def read(text: str, **env: str) -> object:
    """The data of a text without faults."""
    document = Document(text, "f", env)
    assert document.faults == []
    return document.data


def fault(text: str, **env: str) -> str:
    """The one fault of a text."""
    (found,) = Document(text, "f", env).faults
    return str(found)


@pytest.mark.parametrize("text", ["0123", "1e3", "12:30", "yes", "off", "2026-12-01", "1_000", "true", ".5"])
def test_scalars_keep_their_spelling(text: str) -> None:
    """YAML guesses no types: a model may be named 1e3 and a key 0123."""
    assert {"a": text} == read(f"a: {text}")


@pytest.mark.parametrize("text", ["null", "~", ""])
def test_only_a_plain_null_is_nothing(text: str) -> None:
    """Quoted, it is text."""
    assert {"a": None, "b": text} == read(f"a: {text}\nb: '{text}'")


def test_an_empty_text_has_all_defaults() -> None:
    """Comments only, too."""
    assert {} == read("") == read("# nothing ${HERE}\n")


@pytest.mark.parametrize("text", ["a: ${X}", "a: '${X}'", "{a: ${X}}", "a: ${X:-y}", "a: ${X:-}"])
def test_a_variable_is_put_in_wherever_a_value_stands(text: str) -> None:
    """Also inside flow mappings, whose braces mean something to YAML."""
    assert read(text, X="v") == {"a": "v"}


def test_variables_are_put_in_inside_of_longer_text_and_lists() -> None:
    """Several in one value."""
    assert read("a: [http://${H}:${P}/x, ${N:-n}]", H="h", P="1") == {"a": ["http://h:1/x", "n"]}


def test_a_value_put_in_cannot_change_the_structure() -> None:
    """Whatever a secret consists of, it stays one value."""
    value = "x, b: [1]\nc: {d} # '\""
    assert {"a": value, "e": "f"} == read("{a: ${X}, e: f}", X=value)


@pytest.mark.parametrize(("env", "expected"), [({}, "d"), ({"X": ""}, "d"), ({"X": "v"}, "v")])
def test_a_default_stands_in_for_unset_and_empty(env: dict[str, str], expected: str) -> None:
    """As in a shell."""
    assert {"a": expected} == read("a: ${X:-d}", **env)


def test_an_empty_plain_value_is_nothing() -> None:
    """`token: ${TOKEN:-}` means no token when there is none."""
    assert read("a: ${X:-}\nb: '${X:-}'") == {"a": None, "b": ""}


def test_a_missing_variable_is_a_fault_with_its_line() -> None:
    """And no empty secret is used in its place."""
    assert fault("a: 1\nb: ${X}") == "f:2: b: environment variable X is not set; allowed: set it, or give a default as ${X:-default}"


@pytest.mark.parametrize("text", ["a: ${1X}", "a: ${}", "a: ${X-y}", "a: ${X", "a: '${X:y}'"])
def test_what_is_no_variable_is_a_fault(text: str) -> None:
    """Nothing that looks like a variable passes as text."""
    assert "${NAME}" in fault(text, X="v")


def test_two_dollars_stand_for_the_characters_themselves() -> None:
    """There is a way to write ${."""
    assert read("a: $${X} $Y $$") == {"a": "${X} $Y $$"}


def test_comments_need_no_variables() -> None:
    """A commented line is no reason to refuse a file."""
    assert read("a: 1 # ${GONE}\n# b: ${GONE}\n") == {"a": "1"}


def test_values_are_not_expanded_again() -> None:
    """A secret that contains ${ is only text."""
    assert read("a: ${X}", X="${Y}", Y="no") == {"a": "${Y}"}


def test_merge_keys_fill_in_what_is_not_given() -> None:
    """Anchors and << keep long files short."""
    text = "a: &x {engine: vllm, id: 1}\nb: {<<: *x, id: 2}\nc: {<<: [*x, {z: 3, id: 4}]}"
    assert read(text) == {
        "a": {"engine": "vllm", "id": "1"},
        "b": {"engine": "vllm", "id": "2"},
        "c": {"engine": "vllm", "id": "1", "z": "3"},
    }


def test_lines_are_known_for_keys_and_entries() -> None:
    """Faults point at the key they mean; a missing key at the mapping it is missing from."""
    document = Document("a:\n  b: 1\n  c:\n  - d: 1\n\n  - e: 2\n", "f", {})
    assert [
        document.line(path)
        for path in [("a",), ("a", "b"), ("a", "c"), ("a", "c", 0), ("a", "c", 1), ("a", "c", 1, "e"), ("a", "c", 1, "zzz")]
    ] == [1, 2, 3, 4, 6, 6, 6]
