"""Requests of the overhead benchmark."""

import json

import pytest

from loadtest.overhead.prompts import PLAIN_HEADERS, SDK_HEADERS, Requests


@pytest.mark.parametrize("size", [2048, 61440])
@pytest.mark.parametrize("headers", [PLAIN_HEADERS, SDK_HEADERS], ids=["plain", "sdk"])
def test_bodies_are_valid_json_of_the_exact_size(size: int, headers: str) -> None:
    """What content-length says is what follows, and it is a chat request whose last message holds the nonce."""
    requests = Requests(size, 8000, headers=headers)
    for _ in range(40):
        request, nonce = requests.next()
        head, body = request.split(b"\r\n\r\n", 1)
        assert size == len(body)
        assert f"Content-Length: {size}".encode() in head
        chat = json.loads(body)
        assert f"nonce-{nonce.decode()}" in chat["messages"][-1]["content"]
        assert chat["stream"] is False


def test_every_request_is_new_but_shares_its_opening() -> None:
    """Nonces never repeat; a conversation comes back with the same first three quarters."""
    requests = Requests(2048, 8000)
    made = [requests.next() for _ in range(33)]
    assert len({nonce for _, nonce in made}) == 33
    bodies = [request.split(b"\r\n\r\n", 1)[1] for request, _ in made]
    assert bodies[0][:1500] == bodies[32][:1500]
    assert bodies[0][:1500] != bodies[1][:1500]


def test_streams_ask_for_their_number_of_events() -> None:
    """`stream_events` becomes a streamed request of that many tokens."""
    body = json.loads(Requests(2048, 8000, stream_events=600).next()[0].split(b"\r\n\r\n", 1)[1])
    assert body["stream"] is True
    assert body["max_tokens"] == 600
