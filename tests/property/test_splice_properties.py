"""Splices on arbitrary JSON: exact positions, untouched surroundings, and agreement with Python's own reader."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.endpoints import Endpoint, EndpointTable
from gateway.openai.nesting import text_deeper, value_deeper
from gateway.openai.prompt import canonical, namespace
from gateway.openai.splice import Edit, apply, locate, scan
from gateway.openai.view import BadRequest, view

CHAT = EndpointTable().match(b"POST", b"/v1/chat/completions")
assert isinstance(CHAT, Endpoint)
CHAT_ENDPOINT: Endpoint = CHAT

KEYS = st.sampled_from(
    ["model", "stream", "stream_options", "messages", "a", "", "é", 'q"', "\\", "Model", "include_usage", '": 1, "model']
) | st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)
PAIRS = st.lists(st.tuples(KEYS, VALUES), max_size=6)
BLANKS = st.sampled_from(["", "", "", " ", "\n  ", "\t\r\n"])
STYLES = st.sampled_from([("", ",", ":"), ("", ", ", ": "), ("\n", " ,\n", " : ")])


def escaped(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text) + '"'


@st.composite
def objects(draw: st.DrawFn, pairs: st.SearchStrategy[list[tuple[str, Any]]] = PAIRS) -> bytes:
    """JSON text of an object: repeated keys, escaped keys, any blanks."""
    blank, comma, colon = draw(STYLES)
    members = []
    for key, value in draw(pairs):
        name = escaped(key) if draw(st.integers(0, 9)) == 0 else json.dumps(key, ensure_ascii=draw(st.booleans()))
        text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])))
        members.append(name + colon + text)
    text = blank + "{" + comma.join(members) + blank + "}" + draw(BLANKS)
    return text.encode("utf-8", "surrogatepass")


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Objects with exactly one `model`, somewhere."""
    others = draw(PAIRS.map(lambda pairs: [p for p in pairs if p[0].lower() != "model"]))
    at = draw(st.integers(0, len(others)))
    stream = draw(st.sampled_from([[], [("stream", True)]]))
    pairs = [*others[:at], ("model", draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5))), *others[at:], *stream]
    return draw(objects(st.just(pairs)))


@given(objects())
def test_the_scanner_agrees_with_pythons_reader(body: bytes) -> None:
    """Same keys in the same order, and each span holds exactly its value."""
    pairs = json.loads(body, object_pairs_hook=lambda found: found)
    members = scan(body)
    assert [m.key for m in members] == [key for key, _ in pairs]
    for member, (_, value) in zip(members, pairs, strict=True):
        text = body[member.start : member.end]
        assert json.loads(text, object_pairs_hook=lambda found: found) == value
        assert text == text.strip()


@given(
    st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | objects().flatmap(lambda b: st.integers(0, len(b)).map(lambda n: b[:n]))
)
def test_the_scanner_refuses_what_python_refuses(body: bytes) -> None:
    """Nothing but a strict object passes."""

    def constant(_name: str) -> None:
        raise ValueError

    try:
        ours = {m.key for m in scan(body)}
    except ValueError:
        ours = None
    try:
        whole = json.loads(body.decode(), parse_constant=constant)
        theirs = set(whole) if type(whole) is dict else None
    except ValueError:
        theirs = None
    assert ours == theirs


@given(objects())
def test_located_values_are_where_the_scanner_finds_them(body: bytes) -> None:
    """The proof by length or by equality never claims a wrong place, and never overlooks a repeated key."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return
    spans = locate(body, fields)
    if spans is None:
        return
    members = scan(body)
    assert len({m.key for m in members}) == len(members)
    assert spans == {m.key: (m.start, m.end) for m in members if m.key in ("model", "stream_options")}


@given(requests(), st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), st.booleans())
@settings(max_examples=300)
def test_a_splice_changes_the_model_and_the_option_only(body: bytes, model: str, inject: bool) -> None:
    """The result decodes to the same members but for the two, and has the client's bytes everywhere else."""
    request = view(CHAT_ENDPOINT, body, None, nesting=200)
    pieces = request.rewrite(model, inject)
    before = json.loads(body, object_pairs_hook=lambda found: found)
    after = json.loads(b"".join(pieces), object_pairs_hook=lambda found: found)
    assert [value for key, value in after if key == "model"] == [model]
    others = [(k, v) for k, v in before if k not in ("model", "stream_options")]
    assert [(k, v) for k, v in after if k not in ("model", "stream_options")] == others
    options = [v for k, v in before if k == "stream_options"]
    added = [v for k, v in after if k == "stream_options"]
    if inject and request.injectable:
        assert added == [[("include_usage", True), *(options[0] or [])]] if options else added == [[("include_usage", True)]]
    else:
        assert added == options
    kept = b"".join(pieces[::2])
    assert kept == body or len(pieces) > 1
    at = 0
    for piece in pieces[::2]:
        at = body.index(piece, at) + len(piece)
    assert at == len(body)


@given(objects())
def test_reading_never_fails_otherwise(body: bytes) -> None:
    """A view or a refusal, and a prompt or none: no other exception."""
    try:
        request = view(CHAT_ENDPOINT, body, None, nesting=3)
    except BadRequest as fault:
        if fault.code not in ("invalid_json", "missing_model", "invalid_request"):
            raise
        return
    canonical(request, namespace(request))
    members = scan(body)
    assert [m.value for m in members if m.key == "model"] == [request.model]


@given(VALUES, st.integers(0, 4))
def test_depth_of_text_and_value_agree(value: Any, levels: int) -> None:
    """Both ways to measure nesting say the same."""
    for ascii_only in (True, False):
        assert text_deeper(json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"), levels) == value_deeper(
            value, levels
        )


@given(st.binary(max_size=30), st.lists(st.integers(0, 30), min_size=2, max_size=2, unique=True), st.binary(max_size=5))
def test_edits_keep_the_rest(body: bytes, ends: list[int], new: bytes) -> None:
    """One edit is the plain slice expression."""
    start, end = sorted(min(e, len(body)) for e in ends)
    assert b"".join(apply(body, [Edit(start, end, new)])) == body[:start] + new + body[end:]


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "x"]), "content": st.text(max_size=12)}),
    min_size=1,
    max_size=5,
)


def prompt(messages: list[Any], ascii_only: bool, separators: tuple[str, str]) -> bytes:
    body = json.dumps({"messages": messages, "model": "m"}, ensure_ascii=ascii_only, separators=separators)
    request = view(CHAT_ENDPOINT, body.encode("utf-8", "surrogatepass"), None, nesting=200)
    found = canonical(request, namespace(request))
    assert found is not None
    return found


@given(MESSAGES, MESSAGES)
def test_equal_conversations_have_equal_prompts_and_only_those(one: list[Any], other: list[Any]) -> None:
    """Canonical bytes are equal exactly for equal messages, and prefixes exactly for shared first messages."""
    first, second = prompt(one, True, (",", ":")), prompt(other, True, (", ", ": "))
    assert (first == second) == (one == other)
    assert prompt([*one, *other], True, (" ,", ":\t")).startswith(first)
