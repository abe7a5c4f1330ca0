"""The endpoint table: what is relayed, what is answered, what is refused and how."""

import pytest

from gateway.openai.endpoints import Endpoint, EndpointTable, Refusal

TABLE = EndpointTable(["/v1/rerank2", "/v1/audio/extra"])


def endpoint(method: bytes, path: bytes) -> Endpoint:
    found = TABLE.match(method, path)
    assert isinstance(found, Endpoint), found
    return found


def refusal(method: bytes, path: bytes) -> Refusal:
    found = TABLE.match(method, path)
    assert isinstance(found, Refusal), found
    return found


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/v1/chat/completions", "chat_completions"),
        (b"/v1/completions", "completions"),
        (b"/v1/embeddings", "embeddings"),
        (b"/v1/responses", "responses"),
        (b"/v1/messages", "messages"),
        (b"/v1/messages/count_tokens", "count_tokens"),
        (b"/v1/rerank", "rerank"),
        (b"/v1/score", "score"),
        (b"/v1/audio/transcriptions", "transcriptions"),
        (b"/v1/audio/translations", "translations"),
        (b"/v1/audio/speech", "speech"),
        (b"/v1/images/generations", "images"),
        (b"/tokenize", "tokenize"),
        (b"/detokenize", "detokenize"),
        (b"/v1/rerank2", "relay"),
    ],
)
def test_posts_are_relayed(path: bytes, name: str) -> None:
    """Every documented POST path and every configured relay path leads to a replica."""
    found = endpoint(b"POST", path)
    assert (found.name, found.routed) == (name, True)


def test_usage_is_asked_for_only_where_streams_have_stream_options() -> None:
    """Chat and completions take the injection; nothing else does."""
    paths = [b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/v1/embeddings", b"/v1/audio/speech"]
    assert [endpoint(b"POST", p).injects for p in paths] == [True, True, False, False, False, False]


@pytest.mark.parametrize("method", [b"GET", b"DELETE"])
def test_a_stored_response_is_reached_by_id(method: bytes) -> None:
    """Reading and deleting a response have an endpoint of their own without a body."""
    found = endpoint(method, b"/v1/responses/resp_0123-abc.x")
    assert (found.name, found.body, found.shape) == ("response", "none", "responses")


def test_cancel_is_a_post_without_a_body_to_read() -> None:
    """Cancelling a response is relayed by id, not by model."""
    assert endpoint(b"POST", b"/v1/responses/resp_1/cancel").body == "none"


@pytest.mark.parametrize(
    "path", [b"/v1/responses/..", b"/v1/responses/../x", b"/v1/responses/a%2f..", b"/v1/responses/", b"/v1/responses/a/b"]
)
def test_response_ids_cannot_climb(path: bytes) -> None:
    """An id is one plain segment; anything else is unknown."""
    assert refusal(b"GET", path).code == "unknown_path"


@pytest.mark.parametrize("path", [b"/v1/models/m", b"/v1/models/org/Name-7B:q4", b"/v1/models/org%2FName-7B:q4", b"/v1/models/%C3%BC"])
def test_models_are_looked_up_under_any_spelling(path: bytes) -> None:
    """Names with slashes reach the lookup, encoded or not."""
    assert (endpoint(b"GET", path).name, endpoint(b"GET", path).routed) == ("model", False)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (b"/chat/completions", "/v1/chat/completions"),
        (b"//v1/chat/completions", "/v1/chat/completions"),
        (b"/v1//chat/completions", "/v1/chat/completions"),
        (b"/v1/chat/completions/", "/v1/chat/completions"),
        (b"/v1/v1/chat/completions", "/v1/chat/completions"),
        (b"/openai/v1/embeddings", "/v1/embeddings"),
        (b"/v1/tokenize", "/tokenize"),
        (b"/models", "/v1/models"),
        (b"/v1/models/", "/v1/models"),
    ],
)
def test_near_misses_tell_the_right_path(path: bytes, meant: str) -> None:
    """A wrong base URL gets a 404 that names the path it should have been."""
    found = refusal(b"POST", path)
    assert (found.status, found.code) == (404, "unknown_path")
    assert f"Did you mean {meant}?" in found.message


@pytest.mark.parametrize("path", [b"/v1/xyz", b"/", b"*", b"", b"/V1/CHAT/COMPLETIONS", b"/v1/files", b"/%", b"/" + b"a/" * 5000])
def test_other_paths_are_unknown(path: bytes) -> None:
    """No path outside the table leads anywhere, and the message stays short."""
    found = refusal(b"POST", path)
    assert found.code == "unknown_path"
    assert len(found.message) < 400


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        (b"GET", b"/v1/chat/completions", "POST"),
        (b"POST", b"/v1/models", "GET, HEAD"),
        (b"PUT", b"/v1/responses/x", "GET, DELETE"),
        (b"GET", b"/v1/responses/x/cancel", "POST"),
        (b"OPTIONS", b"/v1/embeddings", "POST"),
        (b"POST", b"/livez", "GET, HEAD"),
    ],
)
def test_wrong_methods_are_told_the_right_ones(method: bytes, path: bytes, allow: str) -> None:
    """405 carries what is allowed."""
    found = refusal(method, path)
    assert (found.status, found.code, found.allow) == (405, "method_not_allowed", allow)


def test_realtime_is_not_implemented() -> None:
    """Websocket sessions get an honest 501 under any method."""
    assert {refusal(m, b"/v1/realtime").status for m in (b"GET", b"POST")} == {501}
