"""The simulated tokeniser and its texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicas.simulator.prompts import example, render
from replicas.simulator.tokens import Writer, cells_of, cells_of_pieces, chain, ids, pack, pieces, text_of

WIDTH = 4


@given(st.text())
def test_tokens_turn_back_into_their_text(text: str) -> None:
    """Tokenise and detokenise are inverse for any text."""
    cells = pack((text.encode("utf-8", "replace"),), WIDTH)
    assert cells_of(ids(cells, WIDTH), WIDTH) == cells
    assert text_of(cells) == text.encode("utf-8", "replace").decode()


@given(st.text(min_size=1), st.integers(2, 6))
def test_streamed_pieces_add_up_to_the_text(text: str, width: int) -> None:
    """Characters cut by a token's edge are neither lost nor broken."""
    raw = text.encode("utf-8", "ignore")
    assert "".join(pieces(raw, width)) == raw.decode()
    assert len(pieces(raw, width)) == -(-len(raw) // width)


def test_equal_prefixes_give_equal_keys() -> None:
    """Keys agree up to the block in which prompts first differ, and nowhere after."""
    first = chain(pack((b"x" * 640,), WIDTH), 64)
    second = chain(pack((b"x" * 300 + b"y" + b"x" * 339,), WIDTH), 64)
    assert len(first) == 10
    assert first[:4] == second[:4]
    assert not set(first[4:]) & set(second[4:])


def test_a_namespace_separates_equal_prompts() -> None:
    """Adapters and salts share nothing."""
    cells = pack((b"x" * 640,), WIDTH)
    assert not set(chain(cells, 64)) & set(chain(cells, 64, 1))


def test_an_answer_sent_back_has_the_tokens_it_was_generated_with() -> None:
    """The next turn's prompt starts with this turn's prompt and answer, token for token."""
    writer = Writer(WIDTH, seed=0, mean=50)
    turns = [{"role": "user", "content": "Odd length!"}]
    prompt = pack(render(turns, None), WIDTH)
    words = writer.words(writer.random(prompt), 40)
    later = pack(render([*turns, {"role": "assistant", "content": "".join(words)}, {"role": "user", "content": "go on"}], None), WIDTH)
    assert later.startswith(prompt + cells_of_pieces(words, WIDTH))


def test_text_is_a_function_of_seed_and_prompt() -> None:
    """Same seed and prompt, same words; either differs, other words."""
    words = {
        (seed, prompt): tuple(Writer(WIDTH, seed, 50).words(Writer(WIDTH, seed, 50).random(prompt), 20))
        for seed in (1, 2)
        for prompt in (b"a", b"b")
    }
    assert len(set(words.values())) == 4
    assert words[1, b"a"] == tuple(Writer(WIDTH, 1, 50).words(Writer(WIDTH, 1, 50).random(b"a"), 20))


def test_every_generated_word_is_one_token() -> None:
    """Each takes exactly the bytes of a token, at any width."""
    for width in (2, 3, 4, 5, 6):
        writer = Writer(width, 0, 10)
        assert {len(word.encode()) for word in writer.words(writer.random(b""), 100)} == {width}


def test_images_cost_the_same_whatever_their_encoding_weighs() -> None:
    """A megabyte of base64 is no megabyte of tokens."""

    def cells(url: str) -> bytes:
        return pack(render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}], None), WIDTH)

    small, large = cells("data:a"), cells("data:" + "b" * 1_000_000)
    assert len(small) == len(large)
    assert small != large


def test_examples_satisfy_the_usual_parts_of_a_schema() -> None:
    """Objects, arrays, enums, references and alternatives give small values of the right kind."""
    schema = {
        "type": "object",
        "$defs": {"unit": {"enum": ["m", "ft"]}},
        "properties": {
            "name": {"type": "string", "minLength": 6},
            "age": {"type": "integer", "minimum": 18},
            "unit": {"$ref": "#/$defs/unit"},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
            "maybe": {"anyOf": [{"type": "null"}, {"type": "number"}]},
            "fixed": {"const": 7},
        },
    }
    assert example(schema) == {"name": "textxx", "age": 18, "unit": "m", "tags": ["text", "text"], "maybe": None, "fixed": 7}


def test_a_schema_that_refers_to_itself_ends() -> None:
    """Recursion is cut, not followed for ever."""
    assert isinstance(example({"$ref": "#"}), dict)
