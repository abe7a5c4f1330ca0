"""Reading a JSON request: what is refused, what is only forwarded, and where the splices go."""

import json
import sys
import tracemalloc
from typing import Any

import pytest

from gateway.openai.endpoints import Endpoint, EndpointTable
from gateway.openai.view import BadRequest, RequestView, view

TABLE = EndpointTable(["/v1/anything"])


def endpoint(path: str) -> Endpoint:
    found = TABLE.match(b"POST", path.encode())
    assert isinstance(found, Endpoint)
    return found


CHAT = endpoint("/v1/chat/completions")


def read(body: bytes | str | dict[str, Any], at: Endpoint = CHAT, nesting: int = 200) -> RequestView:
    data = json.dumps(body).encode() if isinstance(body, dict) else body.encode() if isinstance(body, str) else body
    return view(at, data, b"application/json", nesting=nesting)


def fault(body: bytes | str | dict[str, Any], nesting: int = 200) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(body, nesting=nesting)
    assert caught.value.status == 400
    return caught.value


def sent(request: RequestView, model: str | None = None, usage: bool = False) -> bytes:
    return b"".join(request.rewrite(model, usage))


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b'{"model"', b'{"model":"m"', b'{"model":"m"}}', b'{"model":"m"} x', b'{"model":"m",}', b"{'model':'m'}",
        b'[{"model":"m"}]', b'"model"', b"5", b"null", b"true", b"nonsense", b'{"model":"m","n":NaN}', b'{"model":"m","n":Infinity}',
        b'{"model":"m","n":-Infinity}', b'{"model":"m","n":01}', b'{"model":"m","n":+1}', b'{"model":"m","n":1.}', b'{"model":"m","n":0x1}',
        b'{"model":"m","a":"\n"}', b'{"model":"m","a":"\\q"}', b'{"model":"m","a":"\\u12"}', b'{"model":"m","a":[1,]}',
        b'{"model":"m" "a":1}',
        b'{"model":"m"/**/}', b'{"model":"m"}\x00', b"\x00", '{"model":"m"}'.encode("utf-16"), '{"model":"m"}'.encode("utf-32-le"),
        b'\xef\xbb\xbf{"model":"m"}', b'{"model":"m","a":"\xff"}', b'{"model":"m\xc3"}', b'{"\xff":1,"model":"m"}',
        b'{"model":"m","a":"\xed\xa0\x80"}', b'{"model":"m","a":"\xc0\x80"}', b'{"model":"m","a":"\xf5\x80\x80\x80"}',
        b'{"model":"m","a":"\\ud800","n":NaN}', b'{"model":"m","a":"\\ud800"', b'{"model":"m","a":"\\ud800"}}',
        b'{"model":"m","a":"\\ud800" 1}',
    ],
)  # fmt: skip
def test_bodies_that_are_not_a_json_object_are_refused(body: bytes) -> None:
    """Whatever strict JSON in UTF-8 with an object on top is not, is `invalid_json`."""
    assert fault(body).code == "invalid_json"


def test_a_byte_order_mark_is_named() -> None:
    """The message tells people who see nothing wrong in their editor."""
    assert "byte-order mark" in fault(b'\xef\xbb\xbf{"model":"m"}').message


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"a","model":"b"}',
        '{"model":"a","model":"a"}',
        '{"model": "a", "messages": [], "model": "a"}',
        '{"model":"a","mod\\u0065l":"b"}',
        '{"\\u006dodel":"a","model":"b"}',
        '{"\\u006dodel":"a","mode\\u006c":"b"}',
        '{ "model" : "a" ,\n"model" : "b" }',
        '{"model":{"model":"x"},"model":"b"}',
        '{"model":"a","x":"\\ud800","model":"b"}',
        '{"model":"m","model":"m","b":1 , "c":2     }',
    ],
)
def test_a_repeated_model_is_refused(body: str) -> None:
    """Two readers could take different ones, however the keys are written."""
    found = fault(body)
    assert (found.code, found.param) == ("invalid_json", "model")


@pytest.mark.parametrize("key", ["Model", "MODEL", "mOdEl", "modeL", "M\\u006fdel"])
@pytest.mark.parametrize("also", ['"model":"m",', ""])
def test_a_differently_cased_model_is_refused(key: str, also: str) -> None:
    """Some engines ignore the case of keys, so such a key is a second model."""
    found = fault(f'{{{also}"{key}":"x"}}')
    assert (found.code, found.param) == ("invalid_json", "model")


@pytest.mark.parametrize("body", ["{}", '{"messages":[]}', '{"model":null}', '{"model":""}', '{"x":{"model":"m"}}', '{"models":"m"}'])
def test_a_missing_model_is_told_as_such(body: str) -> None:
    """Absent, null and empty are missing, wherever else the word appears."""
    found = fault(body)
    assert (found.code, found.param) == ("missing_model", "model")


@pytest.mark.parametrize("value", ["5", "true", '["m"]', '{"a":1}', "1.5", '"\\ud800"'])
def test_a_model_that_is_no_string_is_refused(value: str) -> None:
    """No name, no route."""
    found = fault(f'{{"model":{value}}}')
    assert (found.code, found.param) == ("invalid_request", "model")


def deep(levels: int, left: str = "[", right: str = "]") -> str:
    """A body of exactly `levels` levels, the outer object included."""
    return '{"model":"m","x":' + left * (levels - 1) + ("" if levels > 1 else "1") + right * (levels - 1) + "}"


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 50, 200])
def test_nesting_is_limited_exactly(limit: int) -> None:
    """The limit's own depth passes, one more is refused."""
    assert read(deep(limit), nesting=limit).model == "m"
    found = fault(deep(limit + 1), nesting=limit)
    assert found.code == "invalid_json"
    assert str(limit) in found.message


@pytest.mark.parametrize("levels", [300, 2000, 100_000, 2_000_000])
@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_any_depth_is_survived(levels: int, left: str, right: str) -> None:
    """Depth beyond the interpreter's stack is refused like any other."""
    body = '{"model":"m","x":' + left * levels + "1" + right * levels + "}"
    assert fault(body).code == "invalid_json"


@pytest.mark.parametrize("levels", [300, 450, 600, 800, 950])
@pytest.mark.parametrize("member", ['"x" :1', '"x":1,"x":2', '"x":"\\ud800"', '"x":"é"'])
def test_depth_is_judged_in_every_way_of_reading(levels: int, member: str) -> None:
    """Odd blanks, repeated keys and lone surrogates take the slower reading, with the same limit."""
    body = '{"model":"m",%s,"y":%s1%s}'
    assert fault(body % (member, "[" * levels, "]" * levels)).code == "invalid_json"
    assert read(body % (member, "[" * 199, "]" * 199)).model == "m"


def test_depth_in_long_fields_is_found_too() -> None:
    """Fields too long to build as objects are measured on their text."""
    padding = "x[{" * 300_000
    assert read({"model": "m", "messages": [padding, [[[1]]]]}, nesting=6).model == "m"
    assert fault({"model": "m", "messages": [padding, [[[[1]]]]]}, nesting=5).code == "invalid_json"


def test_brackets_in_texts_are_not_depth() -> None:
    """Code in a prompt is text."""
    assert read({"model": "m", "messages": [{"role": "user", "content": "[{" * 10_000}]}).model == "m"


def test_depth_beside_odd_numbers_is_judged() -> None:
    """A number no decoder holds does not hide the depth around it."""
    assert read('{"model":"m","x":[[[1e999, 1' + "0" * 5000 + "]]]}", nesting=4).model == "m"
    assert fault('{"model":"m","x":[[[1e999, 1' + "0" * 5000 + "]]]}", nesting=3).code == "invalid_json"


# -- forwarded ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [
        '"messages":"no list"', '"messages":null', '"messages":5', '"messages":[null,1,"x",[]]', '"stream":"true"', '"stream":1',
        '"stream":null',
        '"max_tokens":1.0', '"max_tokens":-1', '"max_tokens":"5"', '"max_tokens":1e999', '"max_tokens":' + "9" * 10_000, '"n":-0',
        '"user":5', '"user":"\\ud800"', '"prompt_cache_key":[]', '"previous_response_id":{}', '"stream_options":"x"', '"stream_options":[]',
        '"tools":{}', '"cache_salt":7', '"a":1,"a":2', '"x":"\\ud83d"', '"\\ud83d":1', '"":0', '"ключ":1', '"a\\"b":1', '"x":"\\u0000"',
    ],
)  # fmt: skip
def test_odd_types_are_the_engines_business(rest: str) -> None:
    """A readable body with a readable model passes, byte for byte, whatever else is in it."""
    body = f'{{"model":"m",{rest},"seed":9007199254740993}}'.encode()
    request = read(body)
    assert sent(request) == body
    assert sent(request, "other").replace(b'"other"', b'"m"') == body


@pytest.mark.parametrize(
    ("value", "stream"), [("true", True), ("false", False), ("null", False), ('"true"', False), ("1", False), ("[true]", False)]
)
def test_only_true_is_a_stream(value: str, stream: bool) -> None:
    """Engines read it so."""
    assert read(f'{{"model":"m","stream": {value} }}').stream is stream


def test_hints_are_read() -> None:
    """What routing uses is there with its own type."""
    request = read(
        {"model": "m", "user": "u\u00e9", "prompt_cache_key": 'k"', "previous_response_id": "resp_1", "max_tokens": 77, "stream": True}
    )
    assert (request.user, request.cache_key, request.previous_response_id) == ("ué", 'k"', "resp_1")
    assert (request.max_tokens, request.stream, request.include_usage) == (77, True, False)


@pytest.mark.parametrize(
    ("metadata", "user"), [('{"user_id":"u_session_1"}', "u_session_1"), ("{}", None), ('{"user_id":5}', None), ("[]", None), ("5", None)]
)
def test_anthropic_clients_name_their_user_in_the_metadata(metadata: str, user: str | None) -> None:
    """It is read on `/v1/messages` and nowhere else."""
    body = f'{{"model":"m","metadata":{metadata}}}'
    assert read(body, endpoint("/v1/messages")).user == user
    assert read(body).user is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize(
    ("value", "hint"), [("12", 12), ("0", 0), ("null", None), ("true", None), ("1.5", None), ("1e3", None), ("-3", None)]
)
def test_token_limits_are_plain_counts(name: str, value: str, hint: int | None) -> None:
    """Every spelling of the limit counts, as long as it is a count."""
    assert read(f'{{"model":"m","{name}":{value}}}').max_tokens == hint


# -- splices -----------------------------------------------------------------------------------------------------------

LAYOUTS = [
    '{"model":@,"messages":[{"role":"user","content":"\\"model\\":\\"old\\""}],"seed":9007199254740993}',
    '{"messages": [{"role": "user", "content": "model"}], "model": @, "x": {"model": "old"}}',
    '{"x":{"model":"inner"},"model":@}',
    '{"model":@}',
    '{"model": @}',
    '  {\r\n\t"model"  :\t@\n}\n ',
    '{"mod\\u0065l":@,"x":{"model":"inner"}}',
    '{"a":1,"a":{"model":"inner"},"model":@}',
    '{"a":{"model":"inner"},"model":@,"a":1}',
    '{"é漢":"ü","model":@,"z":"漢"}',
    '{"é漢" :"ü","model" :@,"z":"漢"}',
    '{"z":"\\ud800 é","model":@,"y":"\\u00e9"}',
    '{"n":123456789012345678901234567890.10e-5,"model":@,"t":[ ],"u":{ }}',
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("old", ['"old"', '"o\\u006cd"'])
def test_only_the_models_bytes_change(layout: str, old: str) -> None:
    """Another name goes exactly where the top-level value was; everything else keeps its bytes."""
    body = layout.replace("@", old).encode()
    request = read(body)
    assert request.model == "old"
    assert sent(request) == body
    assert sent(request, 'new "é"') == layout.replace("@", '"new \\"é\\""').encode()


def test_the_same_name_is_not_spliced() -> None:
    """A body that needs no change is passed on as the object it is."""
    body = b'{"model":"o\\u006cd"}'
    assert read(body).rewrite("old", False) == [body]
    assert read(body).rewrite("old", False)[0] is body


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", '{"model":"m","stream_options":{"include_usage":true},"stream":true}'),
        (',"stream_options":null', '{"model":"m","stream":true,"stream_options":{"include_usage":true}}'),
        (',"stream_options":{}', '{"model":"m","stream":true,"stream_options":{"include_usage":true}}'),
        (',"stream_options": { }', '{"model":"m","stream":true,"stream_options": {"include_usage":true }}'),
        (',"stream_options":{"x":1}', '{"model":"m","stream":true,"stream_options":{"include_usage":true,"x":1}}'),
        (',"stream_options":{ "a":{} }', '{"model":"m","stream":true,"stream_options":{"include_usage":true, "a":{} }}'),
        (',"stream_opt\\u0069ons":{}', '{"model":"m","stream":true,"stream_opt\\u0069ons":{"include_usage":true}}'),
    ],
)  # fmt: skip
def test_usage_is_asked_for_by_a_splice(options: str, expected: str) -> None:
    """The option is added where the client gave none, with all other bytes kept."""
    request = read(f'{{"model":"m","stream":true{options}}}')
    assert request.injectable
    assert sent(request, None, True) == expected.encode()
    assert sent(request, "other", True) == expected.encode().replace(b'"m"', b'"other"')
    assert sent(request, None, False) == request.body


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ('{"include_usage":true}', True),
        ('{"include_usage":false}', False),
        ('{"include_usage":null}', False),
        ('{"include_usage":1}', False),
        ('{"incl\\u0075de_usage":true}', True),
        ('{"x":[],"include_usage":true}', True),
        ('"yes"', False),
        ("[]", False),
        ("true", False),
        ("0", False),
        ('{},"stream_options":{}', False),
        ('{},"stream_option\\u0073":null', False),
    ],
)
def test_a_client_that_decided_is_left_alone(options: str, asked: bool) -> None:
    """An answer either way, an odd type or a repeated option: nothing is added."""
    request = read(f'{{"model":"m","stream":true,"stream_options":{options}}}')
    assert (request.injectable, request.include_usage) == (False, asked)
    assert sent(request, None, True) == request.body


@pytest.mark.parametrize("body", ['{"model":"m"}', '{"model":"m","stream":false}', '{"model":"m","stream":"true"}'])
def test_unstreamed_requests_are_not_asked(body: str) -> None:
    """The option is an error without a stream."""
    assert not read(body).injectable
    assert sent(read(body), None, True) == body.encode()


@pytest.mark.parametrize(
    ("path", "injectable"),
    [("/v1/completions", True), ("/v1/responses", False), ("/v1/messages", False), ("/v1/audio/speech", False), ("/v1/anything", False)],
)
def test_usage_is_asked_for_where_the_option_exists(path: str, injectable: bool) -> None:
    """Only chat and completions streams know `stream_options`."""
    assert read('{"model":"m","stream":true}', endpoint(path)).injectable is injectable


def test_long_bodies_are_read_in_linear_time() -> None:
    """A 20 MB image passes with its model found behind it."""
    body = b'{"messages":[{"role":"user","content":"data:' + b"A" * 20_000_000 + b'"}],"model":"m","stream":true}'
    request = read(body)
    assert (request.model, request.injectable) == ("m", True)
    assert sent(request, "n", False) == body[: -len(b'"m","stream":true}')] + b'"n","stream":true}'


@pytest.mark.parametrize("at", [0, 100, 512 * 1024 - 2, 512 * 1024 - 1, 512 * 1024, 1_200_000])
def test_utf8_is_checked_across_slices(at: int) -> None:
    """A character cut by a slice is whole, and half a character is found wherever it is."""
    good = b'{"model":"m","x":"' + b"x" * at + "😀".encode() + b"x" * 600_000 + b'"}'
    assert read(good).model == "m"
    assert fault(good.replace(b"\x80", b"")).code == "invalid_json"


def test_fields_of_tiny_pieces_cost_no_objects() -> None:
    """A body of a million brackets takes memory in proportion to its length."""
    body = b'{"model":"m","x":[' + b"[]," * 1_000_000 + b"[]]}"
    tracemalloc.start()
    read(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(body)


def test_a_deep_caller_does_not_break_reading() -> None:
    """A body is judged by its own depth as long as the stack allows at all."""

    def call(levels: int) -> str:
        return call(levels - 1) if levels else read(deep(100)).model

    assert call(sys.getrecursionlimit() // 3) == "m"
