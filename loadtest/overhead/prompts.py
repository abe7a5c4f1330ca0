"""Chat requests of an exact size: a few shared conversations, each request with an end of its own, as a chat service sees them."""

from __future__ import annotations

import json
import random

from loadtest import client

CONVERSATIONS = 32
TAILS = 251
"""Prime against `CONVERSATIONS`, so that pairs repeat only after their product."""

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place "
    "case week company system program question work government number night point home water room mother area money story fact "
)
_WORDS = tuple(_TEXT.split())

PLAIN_HEADERS = "User-Agent: load\r\nAccept: */*\r\nAuthorization: Bearer none\r\n"
SDK_HEADERS = (
    "Accept: application/json\r\nAccept-Encoding: identity\r\nConnection: keep-alive\r\nUser-Agent: AsyncOpenAI/Python 3.57.0\r\n"
    "X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 3.57.0\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\n"
    "X-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.11.7\r\nX-Stainless-Async: async:asyncio\r\n"
    "x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\nAuthorization: Bearer none\r\n"
)


def words(source: random.Random, size: int) -> str:
    """Exactly `size` characters of plain words."""
    text = ""
    while len(text) < size:
        text += " ".join(source.choices(_WORDS, k=64)) + " "
    return text[:size]


class Requests:
    """Endless distinct requests whose bodies are all `size` bytes; the last quarter (at most 3 KB) of each is its own.

    They are written as the OpenAI clients write them, without blanks.
    `stream_events` asks for a stream of that many events instead of a plain answer.
    """

    def __init__(self, size: int, port: int, *, stream_events: int | None = None, headers: str = PLAIN_HEADERS, seed: int = 1) -> None:
        source = random.Random(seed)
        own = min(size // 4, 3000)
        tail = {"temperature": 0.7, "max_tokens": stream_events or 64, "stream": stream_events is not None}
        end = '"}],' + json.dumps(tail, separators=(",", ":"))[1:]
        heads = [self._conversation(source, size - own) for _ in range(CONVERSATIONS)]
        self._tails = [(" " + words(source, own - len("00000000 ") - len(end)) + end).encode() for _ in range(TAILS)]
        # The request head states the length, so it is written around a body that has it.
        self._heads = [client.request("POST", "/v1/chat/completions", port, head + bytes(own), headers)[:-own] for head in heads]
        self._count = seed * 1_000_000

    def next(self) -> tuple[bytes, bytes]:
        """A complete HTTP request and the nonce its answer must repeat."""
        count = self._count = self._count + 1
        nonce = b"%08d" % count
        return b"".join((self._heads[count % CONVERSATIONS], nonce, self._tails[count % TAILS])), nonce

    @staticmethod
    def _conversation(source: random.Random, size: int) -> bytes:
        """JSON of `size` bytes that stops where the number of the last message's nonce goes."""
        opening = '{"model":"raw","messages":[{"role":"system","content":"'
        closing = '"},{"role":"user","content":"nonce-'
        turns: list[str] = []
        room = size - len(opening) - len(closing)
        turn = '"},{"role":"%s","content":"'
        while room > 4000:
            turns.append(words(source, 1500) + turn % ("assistant" if len(turns) % 2 else "user"))
            room -= len(turns[-1])
        return (opening + "".join(turns) + words(source, room) + closing).encode()
