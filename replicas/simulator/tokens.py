"""A tokeniser without a vocabulary, and the text a replica "generates".

A token is a *cell* of `width` bytes. Every segment of a prompt (a role mark, one message's content) is cut into cells from
its own start and its last cell padded, so that an answer sent back in the next turn has the very cells it was generated
with, and equal prefixes always give equal blocks. A token sequence is simply its cells joined: `bytes`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from random import Random

from xxhash import xxh3_64_intdigest

PAD = b"\xff"  # occurs in no UTF-8 text
SEEDS = 1 << 64

WORDS = (
    "the", "sun", "set", "low", "and", "far", "out", "sea", "air", "was", "dim", "but", "one", "man", "had", "his", "old", "oar",
    "for", "bow", "new", "sky", "lit", "red", "ice", "got", "hot", "fog", "ran", "off", "our", "way", "few", "see", "can", "say",
    "why", "day", "cup", "tea", "cat", "dog", "fox", "owl", "bee", "ant", "hen", "cow", "pig", "ram", "elk", "cod", "eel", "oak",
    "ash", "fir", "elm", "nut", "fig", "yam", "rye", "oat", "bun", "pie", "jam",
)  # fmt: skip


def pack(segments: Iterable[bytes], width: int) -> bytes:
    """Segments as cells."""
    return b"".join(segment + PAD * (-len(segment) % width) for segment in segments)


def ids(cells: bytes, width: int) -> list[int]:
    """Token ids of cells: each cell read as a big-endian number."""
    return [int.from_bytes(cells[at : at + width]) for at in range(0, len(cells), width)]


def cells_of(tokens: Iterable[int], width: int) -> bytes:
    """The inverse of `ids`. ValueError: an id is no cell of this width."""
    limit = 1 << 8 * width
    out = []
    for token in tokens:
        if not 0 <= token < limit:
            raise ValueError(f"token id {token} is out of vocabulary")
        out.append(token.to_bytes(width))
    return b"".join(out)


def text_of(cells: bytes) -> str:
    """Text of cells; what is no UTF-8 becomes U+FFFD."""
    return cells.replace(PAD, b"").decode("utf-8", "replace")


def chain(cells: bytes, block_bytes: int, namespace: int = 0) -> list[int]:
    """One key per full block, each hashed over its cells and the key before it."""
    keys = []
    key = namespace
    for at in range(0, len(cells) - block_bytes + 1, block_bytes):
        key = xxh3_64_intdigest(cells[at : at + block_bytes], key)
        keys.append(key)
    return keys


def pieces(text: bytes, width: int) -> list[str]:
    """Text as it appears token by token; a character cut by a cell's edge shows up with the cell that completes it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    cuts = range(0, len(text), width)
    return [decoder.decode(text[at : at + width], final=at + width >= len(text)) for at in cuts]


class Writer:
    """Deterministic prose: the same prompt and seed give the same words, one token each."""

    def __init__(self, width: int, seed: int, mean: int) -> None:
        """`mean` is the natural length of an answer in tokens; single answers vary by half of it either way."""
        self.width = width
        self.mean = mean
        self._seed = seed
        self._words = [(" " + word * width)[:width] for word in WORDS]

    def random(self, prompt: bytes, *salts: int) -> Random:
        """A generator that depends on nothing but seed, prompt and salts."""
        state = xxh3_64_intdigest(prompt, self._seed % SEEDS)
        return Random(hash((state, *salts)))

    def length(self, random: Random) -> int:
        """A natural answer length in tokens."""
        return max(1, round(self.mean * random.uniform(0.5, 1.5)))

    def words(self, random: Random, count: int) -> list[str]:
        """`count` tokens of text."""
        return random.choices(self._words, k=count)

    def vector(self, text: bytes, dimensions: int) -> list[float]:
        """A unit-length embedding of `text`."""
        random = self.random(text)
        raw = [random.gauss(0.0, 1.0) for _ in range(dimensions)]
        norm = sum(value * value for value in raw) ** 0.5 or 1.0
        return [value / norm for value in raw]


def cells_of_pieces(parts: Sequence[str], width: int) -> bytes:
    """Cells of generated text, as they will be cut when the text comes back in a prompt."""
    return pack(("".join(parts).encode(),), width)
