"""Chained block hashes of prompts, and rendezvous hashing over replica names.

Block i of a prompt is hashed with the hash of block i-1 as its seed, so one number stands for a whole prefix: two
prompts share their first n blocks exactly when their n-th hashes are equal. The chain starts from a secret seed: without
it nobody can make prompts that collide. A partial block at the end is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeVar

from xxhash import xxh3_64_intdigest

T = TypeVar("T")

SLICE_BYTES: Final = 512 * 1024  # about half a millisecond of hashing
LEADING_BLOCKS: Final = 4  # blocks that place a cold prompt; a later turn of the same conversation leads with the same ones


def chain(data: bytes, seed: int, block_bytes: int) -> tuple[int, ...]:
    """Return the chained 64-bit hash of every whole block of `data`; about 1.5 µs per KB."""
    hashes: list[int] = []
    append = hashes.append
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        seed = xxh3_64_intdigest(data[start : start + block_bytes], seed)
        append(seed)
    return tuple(hashes)


def chain_slices(data: bytes, seed: int, block_bytes: int, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, ...]]:
    """Yield the same chain in pieces, so that the caller can let others run between them."""
    step = max(slice_bytes // block_bytes, 1) * block_bytes
    for start in range(0, len(data), step):
        piece = chain(data[start : start + step], seed, block_bytes)
        if piece:
            seed = piece[-1]
            yield piece


def leading(hashes: tuple[int, ...]) -> int:
    """Return the hash that names the first blocks of a non-empty chain."""
    return hashes[LEADING_BLOCKS - 1] if len(hashes) >= LEADING_BLOCKS else hashes[-1]


def rendezvous(names: Iterable[tuple[str, T]], key: int) -> T:
    """Return the item whose name hashes lowest under `key`.

    Everyone with the same names and key gets the same one, and a name that comes or goes moves only its own keys.
    """
    return min([(xxh3_64_intdigest(_encoded(name), key), name, item) for name, item in names])[2]


@lru_cache(maxsize=4096)
def _encoded(name: str) -> bytes:
    return name.encode()
