"""Whatever a client sends as a request: a well-formed error of the documented kind or an untouched request, and no harm done."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from tests.integration.toolkit import CHAT, Client, ask, refused

if TYPE_CHECKING:
    from tests.integration.toolkit import Stand

pytestmark = pytest.mark.asyncio(loop_scope="module")

# -- JSON ----------------------------------------------------------------------------------------------------------------

UNREADABLE = [
    ("empty", b""),
    ("blank", b" \r\n"),
    ("cut short", b'{"model":"m"'),
    ("cut in a string", b'{"model":"m'),
    ("list", b'[{"model":"m"}]'),
    ("string", b'"m"'),
    ("number", b"1"),
    ("null", b"null"),
    ("something behind it", b'{"model":"m"} x'),
    ("two objects", b'{"model":"m"}{"model":"m"}'),
    ("NaN", b'{"model":"m","temperature":NaN}'),
    ("Infinity", b'{"model":"m","temperature":-Infinity}'),
    ("byte-order mark", b'\xef\xbb\xbf{"model":"m"}'),
    ("latin-1", b'{"model":"m","user":"\xe9"}'),
    ("overlong", b'{"model":"m","user":"\xc0\x80"}'),
    ("encoded surrogate", b'{"model":"m","user":"\xed\xa0\x80"}'),
    ("utf-16", '{"model":"m"}'.encode("utf-16-le")),
    ("raw control character", b'{"model":"m","user":"\x01"}'),
    ("raw line end in a string", b'{"model":"m","user":"a\nb"}'),
    ("single quotes", b"{'model':'m'}"),
    ("comment", b'{"model":"m" /* hello */}'),
    ("comma too many", b'{"model":"m",}'),
    ("bare key", b'{model:"m"}'),
    ("bad escape", b'{"model":"m","user":"\\x41"}'),
    ("half an escape", b'{"model":"m","user":"\\u00"}'),
    ("leading zero", b'{"model":"m","seed":007}'),
    ("model twice", b'{"model":"m","model":"other"}'),
    ("model twice, once escaped", b'{"model":"m","mod\\u0065l":"other"}'),
    ("model in another case", b'{"model":"m","Model":"other"}'),
    ("lists too deep", b'{"model":"m","x":' + b"[" * 201 + b"]" * 201 + b"}"),
    ("objects too deep", b'{"model":"m","x":' + b'{"a":' * 201 + b"1" + b"}" * 201 + b"}"),
    ("a hundred thousand brackets", b'{"model":"m","x":' + b"[" * 100_000),
    ("a tar of brackets", b"[" * 500_000 + b"]" * 500_000),
    ("form data", b"model=m&stream=true"),
    ("binary", bytes(range(256))),
]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in UNREADABLE])
async def test_a_body_that_is_no_json_object_is_refused(stand: Stand, body: bytes) -> None:
    """400 invalid_json with the reason, on every kind of body that two readers could read differently or not at all."""
    refused(await ask(stand.gateway, body), 400, "invalid_json")
    assert stand.replica.requests == []


@pytest.mark.parametrize("body", [b"{}", b'{"model":null}', b'{"model":""}', b'{"messages":[{"model":"m"}]}'])
async def test_a_request_without_a_model_says_which_field_is_missing(stand: Stand, body: bytes) -> None:
    """400 missing_model, `param` naming the field."""
    assert refused(await ask(stand.gateway, body), 400, "missing_model")["param"] == "model"


@pytest.mark.parametrize("model", [5, 0.5, True, ["m"], {"name": "m"}, -1])
async def test_a_model_that_is_no_string_is_refused(stand: Stand, model: Any) -> None:
    """400 invalid_request, `param` naming the field."""
    assert refused(await ask(stand.gateway, {**CHAT, "model": model}), 400, "invalid_request")["param"] == "model"


@pytest.mark.parametrize("model", ["nope", "M", " m", "m ", "m\0", "m" * 100_000, "../m", "m\r\nx-evil: 1", "\uff4d"])
async def test_an_unknown_model_is_404_however_odd_its_name(stand: Stand, model: str) -> None:
    """404 model_not_found naming the model; names match exactly, and a long one is not echoed whole."""
    error = refused(await ask(stand.gateway, {**CHAT, "model": model}), 404, "model_not_found")
    assert error["param"] == "model"
    assert len(error["message"]) < 1000


ODD = [
    ("messages is a number", b'{"model":"m","messages":5}'),
    ("messages is missing", b'{"model":"m"}'),
    ("messages of odd things", b'{"model":"m","messages":[null,1,"a",[],{"role":7,"content":{"x":[]}}]}'),
    ("stream is a string", b'{"model":"m","messages":[],"stream":"true"}'),
    ("stream is null", b'{"model":"m","messages":[],"stream":null}'),
    ("stream_options is a list", b'{"model":"m","messages":[],"stream":true,"stream_options":[1]}'),
    ("stream_options is a string", b'{"model":"m","messages":[],"stream":true,"stream_options":"yes"}'),
    ("max_tokens negative", b'{"model":"m","messages":[],"max_tokens":-5}'),
    ("max_tokens huge", b'{"model":"m","messages":[],"max_tokens":' + b"9" * 400 + b"}"),
    ("max_tokens a string", b'{"model":"m","messages":[],"max_tokens":"12"}'),
    ("a number beyond a double", b'{"model":"m","messages":[],"temperature":1e999}'),
    ("five thousand digits", b'{"model":"m","messages":[],"seed":' + b"1" * 5000 + b"}"),
    ("minus zero", b'{"model":"m","messages":[],"seed":-0}'),
    ("user is an object", b'{"model":"m","messages":[],"user":{"a":1},"prompt_cache_key":[2],"previous_response_id":3}'),
    ("lone surrogates", b'{"model":"m","messages":[{"role":"user","content":"\\ud83d x \\udc00"}]}'),
    ("escaped nul", b'{"model":"m","messages":[{"role":"user","content":"\\u0000"}]}'),
    ("line separators", '{"model":"m","messages":[{"role":"user","content":"\u2028\u2029\x85"}]}'.encode()),
    ("other keys twice", b'{"model":"m","messages":[],"seed":1,"seed":2}'),
    ("empty key", b'{"":1,"model":"m","messages":[]}'),
    ("blanks everywhere", b' \n{ "model" :\t"m" , "messages" : [ ] } \r\n'),
    ("escaped key", b'{"mod\\u0065l":"m","messages":[]}'),
    ("as deep as allowed", b'{"model":"m","x":' + b"[" * 199 + b"]" * 199 + b"}"),
    ("a hundred thousand keys", b'{"model":"m",' + b",".join(b'"k%d":0' % i for i in range(60_000)) + b"}"),
    ("tools of odd types", b'{"model":"m","messages":[],"tools":{"a":1},"functions":"x","response_format":[]}'),
]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in ODD])
async def test_odd_fields_are_the_replica_s_to_judge(stand: Stand, body: bytes) -> None:
    """A JSON object with a known model is forwarded byte for byte, whatever its other fields hold."""
    assert (await ask(stand.gateway, body)).status == 200
    assert [r.body for r in stand.replica.requests] == [body]


# -- content-encoding ----------------------------------------------------------------------------------------------------

PLAIN = json.dumps({**CHAT, "x": "y" * 3000}).encode()
ZSTD = zstandard.ZstdCompressor()
BOMB = b'{"model":"m","x":"' + b"y" * (20 << 20) + b'"}'


def raw_deflate(data: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return squeezer.compress(data) + squeezer.flush()


def streamed_zstd(data: bytes, window_log: int) -> bytes:
    """A frame that does not tell its size, and asks for a window."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    squeezer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return squeezer.compress(data) + squeezer.flush()


DECODABLE = [
    ("gzip", gzip.compress(PLAIN)),
    ("GZIP", gzip.compress(PLAIN)),
    ("x-gzip", gzip.compress(PLAIN)),
    ("deflate", zlib.compress(PLAIN)),
    ("deflate", raw_deflate(PLAIN)),
    ("zstd", ZSTD.compress(PLAIN)),
    ("zstd", streamed_zstd(PLAIN, 20)),
    ("identity", PLAIN),
]


@pytest.mark.parametrize(("encoding", "body"), DECODABLE)
async def test_a_compressed_body_is_forwarded_plain(stand: Stand, encoding: str, body: bytes) -> None:
    """The replica gets what the client compressed, with its length and no word of a coding."""
    reply = await ask(stand.gateway, body, headers=f"content-encoding: {encoding}\r\n")
    assert reply.status == 200
    [seen] = stand.replica.requests
    assert seen.body == PLAIN
    assert seen.header("content-encoding") is None


UNDECODABLE = [
    ("gzip", b"", 400, "invalid_request"),
    ("gzip", PLAIN, 400, "invalid_request"),
    ("gzip", gzip.compress(PLAIN)[:-9], 400, "invalid_request"),
    ("gzip", gzip.compress(PLAIN)[:-4] + b"\0\0\0\0", 400, "invalid_request"),
    ("gzip", gzip.compress(PLAIN) + b"x", 400, "invalid_request"),
    ("gzip", gzip.compress(PLAIN) * 2, 400, "invalid_request"),
    ("gzip", zlib.compress(PLAIN), 400, "invalid_request"),
    ("deflate", gzip.compress(PLAIN), 400, "invalid_request"),
    ("deflate", zlib.compress(PLAIN)[:50], 400, "invalid_request"),
    ("zstd", PLAIN, 400, "invalid_request"),
    ("zstd", ZSTD.compress(PLAIN)[:-3], 400, "invalid_request"),
    ("zstd", ZSTD.compress(PLAIN) + b"x", 400, "invalid_request"),
    ("zstd", streamed_zstd(PLAIN * 20, 27), 400, "invalid_request"),
    ("gzip", gzip.compress(gzip.compress(PLAIN)), 400, "invalid_json"),
    ("gzip, gzip", gzip.compress(gzip.compress(PLAIN)), 415, "unsupported_encoding"),
    ("br", PLAIN, 415, "unsupported_encoding"),
    ("compress", PLAIN, 415, "unsupported_encoding"),
    ("", PLAIN, 415, "unsupported_encoding"),
    ("gzip;q=1", gzip.compress(PLAIN), 415, "unsupported_encoding"),
    ("gzip", gzip.compress(BOMB), 413, "body_too_large"),
    ("deflate", zlib.compress(BOMB), 413, "body_too_large"),
    ("zstd", ZSTD.compress(BOMB), 413, "body_too_large"),
    ("zstd", streamed_zstd(BOMB, 20), 413, "body_too_large"),
]


@pytest.mark.parametrize(("encoding", "body", "status", "code"), UNDECODABLE)
async def test_a_body_that_does_not_decode_is_refused(stand: Stand, encoding: str, body: bytes, status: int, code: str) -> None:
    """Corrupt, cut, doubled, unknown or exploding codings never reach a replica."""
    refused(await ask(stand.gateway, body, headers=f"content-encoding: {encoding}\r\n"), status, code)
    assert stand.replica.requests == []


async def test_two_content_encodings_are_refused(stand: Stand) -> None:
    """A repeated header could be read as either."""
    headers = "content-encoding: gzip\r\ncontent-encoding: identity\r\n"
    refused(await ask(stand.gateway, gzip.compress(PLAIN), headers=headers), 400, "invalid_request")


# -- paths and methods ---------------------------------------------------------------------------------------------------

NOWHERE = [
    ("/", None),
    ("/v1", None),
    ("/v2/chat/completions", "/v1/chat/completions"),
    ("/v1/chat/completions/", "/v1/chat/completions"),
    ("//v1/chat/completions", "/v1/chat/completions"),
    ("/v1/v1/chat/completions", "/v1/chat/completions"),
    ("/chat/completions", "/v1/chat/completions"),
    ("/openai/v1/chat/completions?a=b", "/v1/chat/completions"),
    ("/v1/chat%2Fcompletions", None),
    ("/v1/../v1/chat/completions", "/v1/chat/completions"),
    ("/v1/Chat/Completions", None),
    ("/metrics", None),
    ("/admin/replicas", None),
    ("/docs", None),
    ("/v1/responses/../../metrics", None),
    ("/v1/responses/..", None),
    ("/v1/" + "x" * 5000, None),
]


@pytest.mark.parametrize(("path", "meant"), NOWHERE)
async def test_an_unknown_path_is_404_and_tells_the_right_one(stand: Stand, path: str, meant: str | None) -> None:
    """404 unknown_path; where a base URL is nearly right the message has the path that was meant. Never a redirect, never a replica."""
    error = refused(await ask(stand.gateway, path=path), 404, "unknown_path")
    assert meant is None or f"Did you mean {meant}?" in error["message"]
    assert len(error["message"]) < 1000
    assert stand.replica.requests == []


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/embeddings", "POST"),
        ("PATCH", "/v1/responses", "POST"),
        ("DELETE", "/v1/models/m", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/responses/resp_1", "GET, DELETE"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405_and_lists_the_right_ones(stand: Stand, method: str, path: str, allow: str) -> None:
    """405 method_not_allowed with an allow header; an answer to HEAD has no body."""
    async with Client(stand.gateway.ports[0]) as client:
        await client.get(path, method=method)
        status, headers = await client.head()
        assert (status, headers["x-kvgate-error"], headers["allow"]) == (405, "method_not_allowed", allow)
        if method != "HEAD":
            await client.reader.readexactly(int(headers["content-length"]))
        await client.get("/livez")
        assert (await client.reply()).status == 200


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        ("GET /v1/realtime HTTP/1.1", 501, "not_implemented"),
        ("CONNECT example.com:443 HTTP/1.1", 501, "not_implemented"),
        ("BREW /v1/chat/completions HTTP/1.1", 501, "not_implemented"),
        ("TRACE / HTTP/1.1", 501, "not_implemented"),
        ("GET /v1/models HTTP/2.0", 505, "http_version"),
        ("GET /v1/models HTTP/0.9", 505, "http_version"),
        ("GET  /v1/models HTTP/1.1", 400, "invalid_request"),
        ("hello", 400, "invalid_request"),
    ],
)
async def test_a_request_line_that_is_not_served(stand: Stand, line: str, status: int, code: str) -> None:
    """501, 505 and 400 have an error object too."""
    async with Client(stand.gateway.ports[0]) as client:
        await client.send(f"{line}\r\nhost: gw\r\nconnection: close\r\n\r\n".encode())
        refused(await client.reply(), status, code)
        assert await client.reader.read() == b""


# -- Anthropic's dialect -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "kind"),
    [
        (b"{", "", 400, "invalid_json", "invalid_request_error"),
        (b"{}", "", 400, "missing_model", "invalid_request_error"),
        (b'{"model":"nope"}', "", 404, "model_not_found", "not_found_error"),
        (b"x" * (1_000_001), "", 413, "body_too_large", "request_too_large"),
        (b"{}", "content-encoding: br\r\n", 415, "unsupported_encoding", "invalid_request_error"),
        (b"{}", "expect: 200-ok\r\n", 417, "expectation_failed", "invalid_request_error"),
        (b"{}", "x: y\r\n" * 200, 431, "headers_too_large", "invalid_request_error"),
        (b"{}", "transfer-encoding: chunked\r\n", 400, "invalid_request", "invalid_request_error"),
    ],
)
async def test_errors_on_the_messages_endpoint_speak_anthropic(
    stand: Stand, body: bytes, headers: str, status: int, code: str, kind: str
) -> None:
    """`/v1/messages` clients get their own error object for the same faults."""
    assert refused(await ask(stand.gateway, body, "/v1/messages", headers), status, code, shape="anthropic")["type"] == kind
