"""Canonical prompts: equal for equal text, growing at the end, and never ambiguous."""

import json
from typing import Any

import pytest

from gateway.openai.endpoints import Endpoint, EndpointTable
from gateway.openai.prompt import canonical, namespace
from gateway.openai.view import view

TABLE = EndpointTable(["/v1/anything"])
CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": 'Grüße\n"quoted" \\ 漢 😀'}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"b": {}, "a": {"minimum": 0.5}}}}}


def prompt(body: dict[str, Any] | str, path: str = CHAT, tenant: bytes = b"", adapter: str = "") -> bytes | None:
    endpoint = TABLE.match(b"POST", path.encode())
    assert isinstance(endpoint, Endpoint)
    text = body if isinstance(body, str) else json.dumps({"model": "m", **body})
    request = view(endpoint, text.encode(), None, nesting=200)
    return canonical(request, namespace(request, tenant, adapter))


def chat(*messages: Any, **fields: Any) -> bytes:
    found = prompt({"messages": list(messages), **fields})
    assert found is not None
    return found


@pytest.mark.parametrize("indent", [None, 0, 3])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
def test_the_same_text_gives_the_same_bytes(indent: int | None, ascii_only: bool, separators: tuple[str, str]) -> None:
    """Escapes, blanks and the order of keys are the client's habits, not the prompt's."""
    body = {
        "messages": [{"content": USER["content"], "role": "user"}, SYSTEM, {"tool_calls": [CALL], "content": None, "role": "assistant"}],
        "model": "m",
    }
    written = json.dumps({"temperature": 1, "tools": [TOOL], **body}, indent=indent, ensure_ascii=ascii_only, separators=separators)
    calls = [{"function": {"arguments": '{"a": 1}', "name": "f"}, "type": "function", "id": "c1"}]
    assert prompt(written) == chat(USER, SYSTEM, {"role": "assistant", "tool_calls": calls}, tools=[TOOL])


def test_what_does_not_reach_the_prompt_is_left_out() -> None:
    """Sampling, streaming and user ids share a cache."""
    plain = chat(SYSTEM, USER)
    assert (
        chat(SYSTEM, USER, temperature=0.3, user="u", stream=True, seed=5, max_tokens=9, n=2, logprobs=True, metadata={"a": "b"}) == plain
    )


@pytest.mark.parametrize(
    "turns",
    [
        [SYSTEM, USER, {"role": "assistant", "content": "Hi"}, USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "4"}, USER],
        [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}]}, USER, USER],
        [{"role": "user", "name": "bob", "content": "x"}, {"role": "assistant", "reasoning": "hm", "content": "y"}, 5, "odd", None, USER],
    ],
)  # fmt: skip
def test_a_growing_conversation_only_appends(turns: list[Any]) -> None:
    """Each turn's prompt starts with all of the turn before."""
    for count in range(1, len(turns)):
        before, after = chat(*turns[:count], tools=[TOOL]), chat(*turns[: count + 1], tools=[TOOL])
        assert after.startswith(before)
        assert len(after) > len(before)


def test_a_growing_text_only_appends() -> None:
    """Continuing the last message extends it."""
    assert chat(SYSTEM, {"role": "user", "content": "abcdef"}).startswith(chat(SYSTEM, {"role": "user", "content": "abc"}))


def test_moving_cache_markers_change_nothing() -> None:
    """Clients move `cache_control` forward from turn to turn; no template shows it."""
    marked = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    plain = prompt(
        {"system": [{"type": "text", "text": "long"}], "tools": [TOOL], "messages": [{"role": "user", "content": [result]}]}, "/v1/messages"
    )
    assert plain == prompt(
        {
            "system": [marked],
            "tools": [TOOL | {"cache_control": {}}],
            "messages": [{"role": "user", "content": [result | {"cache_control": {"type": "ephemeral"}}]}],
        },
        "/v1/messages",
    )


def test_one_text_part_is_the_text() -> None:
    """Both spellings of a plain message render alike."""
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert chat(SYSTEM, parts) == chat(SYSTEM, {"role": "user", "content": "hello"})


def test_every_dialect_writes_a_message_alike() -> None:
    """The same words over another endpoint find the same cache."""
    expected = chat(SYSTEM, {"role": "user", "content": "hello"})
    user = {"role": "user", "content": "hello"}
    assert prompt({"instructions": "Be brief.", "input": "hello"}, "/v1/responses") == expected
    assert (
        prompt(
            {"instructions": "Be brief.", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
            "/v1/responses",
        )
        == expected
    )
    assert prompt({"system": "Be brief.", "messages": [user]}, "/v1/messages") == expected
    assert prompt({"system": [{"type": "text", "text": "Be brief."}], "messages": [user]}, "/v1/messages") == expected


DIFFERENT = [
    {"messages": [USER]},
    {"messages": [USER, USER]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    {"messages": [{"role": "user", "content": "ab"}]},
    {"messages": [{"role": "user", "content": ["a", "b"]}]},
    {"messages": [{"role": "usera", "content": "b"}]},
    {"messages": [{"role": "user", "content": "a\ufffdb"}]},
    {"messages": [{"role": "user", "content": "ÿuserþb"}]},
    {"messages": [{"role": "user", "content": "ab", "name": "c"}]},
    {"messages": [{"role": "user", "content": "ab", "name": "cd"}]},
    {"messages": [{"role": "user", "content": "abname", "tool_call_id": "c"}]},
    {"messages": [{"role": "system", "content": "ab"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": {"type": "text"}}]},
    {"messages": [{"role": "user", "content": [{"type": "refusal", "text": "ab"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://b"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]}]},
    {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
    {"messages": [{"role": "assistant", "tool_calls": [CALL, CALL]}]},
    {"messages": [USER], "tools": [TOOL]},
    {"messages": [USER], "tools": [TOOL, TOOL]},
    {"messages": [USER], "cache_salt": "s"},
    {"messages": [USER], "cache_salt": "t"},
    {"messages": "ab"},
    {"messages": ["ab"]},
    {"messages": {"role": "user", "content": "ab"}},
    {"messages": [["ab"]]},
    {"messages": 5},
]


def test_different_prompts_differ() -> None:
    """No text can imitate a boundary, and nothing that reaches the prompt is lost."""
    prompts = [prompt(body) for body in DIFFERENT]
    assert len(set(prompts)) == len(DIFFERENT)


def test_tool_schemas_keep_their_key_order() -> None:
    """Templates print schemas in the client's order, so another order is another prompt."""
    swapped = json.loads(json.dumps(TOOL))
    swapped["function"]["parameters"]["properties"] = {"a": {"minimum": 0.5}, "b": {}}
    assert chat(USER, tools=[TOOL]) != chat(USER, tools=[swapped])


@pytest.mark.parametrize("url", ["http://x/y.png", "data:image/png;base64," + "A" * 1_000_000])
def test_an_image_weighs_the_same_however_it_is_sent(url: str) -> None:
    """An engine spends hundreds of tokens on an image, not one per byte of its URL."""
    with_image = chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})
    assert 1500 < len(with_image) < 3000


def test_namespaces_keep_prompts_apart() -> None:
    """Tenant, adapter and salt each separate from the first byte, and none can pose as another."""
    body = {"messages": [USER]}
    salted = {"messages": [USER], "cache_salt": "a"}
    prompts = {
        prompt(body),
        prompt(body, tenant=b"a"),
        prompt(body, adapter="a"),
        prompt(salted),
        prompt(salted, tenant=b"a"),
        prompt(body, tenant=b"b"),
    }
    assert len(prompts) == 6
    assert prompt({"messages": [USER], "cache_salt": None}) == prompt(body)
    suffix = chat(USER)[1:]
    assert all(p is not None and p.endswith(suffix) for p in prompts)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_plain_prompts(path: str) -> None:
    """Texts and token ids, alone or in lists, each have their form; text prompts grow at the end."""
    field = "prompt" if path == "/v1/completions" else "input"
    values = [
        "ab",
        "abc",
        ["a", "b"],
        ["ab", ""],
        [1, 2],
        [1, 2, 3],
        [[1, 2]],
        [[1], [2]],
        [258],
        [-1],
        [2**40],
        [1, "x"],
        [],
        "",
        {"a": 1},
        True,
    ]
    prompts = [prompt({field: value}, path) for value in values]
    assert prompts[values.index([1, 2])] == prompts[values.index([[1, 2]])]
    assert len(set(prompts)) == len(values) - 1
    assert str(prompts[1]).startswith(str(prompts[0])[:-1])
    tokens = prompt({field: [1, 2, 3]}, path)
    assert tokens is not None
    assert tokens.startswith(prompt({field: [1, 2]}, path) or b"-")


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score", "/tokenize", "/v1/messages/count_tokens", "/v1/audio/speech", "/v1/anything"])
def test_endpoints_without_a_prompt_cache_have_none(path: str) -> None:
    """No prompt, no hash."""
    assert prompt({"messages": [USER], "input": "x", "prompt": "x"}, path) is None


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"])
def test_a_body_without_a_prompt_has_none(path: str) -> None:
    """A missing or null field is no prompt."""
    assert prompt({}, path) is None


ODD = [
    None,
    5,
    1.5,
    True,
    "x",
    [],
    {},
    [None],
    [[]],
    [{}],
    [{"role": 5}],
    [{"role": None, "content": [None, 5, []]}],
    [{"content": "x"}],
    {"role": "user"},
]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("name", ["messages", "tools", "functions", "documents", "system", "instructions", "input", "prompt", "cache_salt"])
def test_odd_shapes_never_fail(path: str, name: str) -> None:
    """Whatever a field holds, there is a prompt or none."""
    for value in ODD:
        body = {"messages": [USER], "input": "x", "prompt": "x", name: value}
        assert prompt(body, path) is None or isinstance(prompt(body, path), bytes)


def test_lone_surrogates_and_odd_numbers_are_taken() -> None:
    """Texts cut in half by a client and numbers beyond any type have their bytes too."""
    cut = '{"model":"m","messages":[{"role":"user","content":"\\ud83d"},{"role":"user","content":[{"type":"x","y":"\\ud83d"}]}]}'
    assert prompt(cut) != prompt(cut.replace("\\ud83d", "\\ud83e"))
    numbers = '{"model":"m","messages":[{"role":"user","content":[1e999,1' + "0" * 5000 + "]}]}"
    assert prompt(numbers) is not None


def test_long_conversations_are_read_message_by_message_with_the_same_result() -> None:
    """Beyond the size at which fields are sliced, a prompt continues the shorter one."""
    turns = [{"role": "user", "content": f"{n} " + "some words in a row " * 900} for n in range(40)]
    short, long = chat(*turns[:20]), chat(*turns)
    assert len(short) < 512 * 1024 < len(long)
    assert long.startswith(short)


def test_fields_of_tiny_pieces_are_hashed_as_written() -> None:
    """A long field of nothing but commas costs no objects."""
    body = '{"model":"m","messages":[' + "[]," * 400_000 + "[]]}"
    found = prompt(body)
    assert found is not None
    assert found.endswith(b",[],[]]")
