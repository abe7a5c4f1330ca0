"""Finding the model in a multipart form, and changing nothing else."""

import random
import tracemalloc

import pytest

from gateway.openai.endpoints import Endpoint, EndpointTable
from gateway.openai.view import BadRequest, RequestView, view

TABLE = EndpointTable(["/v1/anything"])
FILE = random.Random(3).randbytes(200_000) + b"\r\n--\r\n--bound\0\r\n\r\n--\r\n"
TYPE = b"multipart/form-data; boundary=boundary1"


def endpoint(path: bytes) -> Endpoint:
    found = TABLE.match(b"POST", path)
    assert isinstance(found, Endpoint)
    return found


AUDIO = endpoint(b"/v1/audio/transcriptions")


def part(name: str, value: bytes, extra: str = "", boundary: bytes = b"boundary1") -> bytes:
    return b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (boundary, name.encode(), extra.encode(), value)


def form(*parts: bytes, boundary: bytes = b"boundary1") -> bytes:
    return b"".join(parts) + b"--%b--\r\n" % boundary


def upload(model: bytes = b"m") -> bytes:
    return form(part("file", FILE, '; filename="a.wav"\r\nContent-Type: audio/wav'), part("model", model), part("response_format", b"json"))


def read(body: bytes, content_type: bytes = TYPE, at: Endpoint = AUDIO) -> RequestView:
    return view(at, body, content_type, nesting=200)


def fault(body: bytes, content_type: bytes = TYPE) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(body, content_type)
    return caught.value


def test_the_model_is_found_and_the_body_untouched() -> None:
    """A form with a binary file is routed by its model and forwarded as the same object."""
    body = upload()
    request = read(body)
    assert (request.model, request.stream, request.injectable) == ("m", False, False)
    assert request.rewrite(None, True)[0] is body


def test_another_model_goes_exactly_where_the_old_was() -> None:
    """The splice replaces the value without quoting it as JSON."""
    assert b"".join(read(upload(b"alias")).rewrite("org/Näme", False)) == upload("org/Näme".encode())


@pytest.mark.parametrize(
    ("value", "stream"), [(b"true", True), (b"True", True), (b"1", True), (b"false", False), (b"", False), (b"maybe", False)]
)
def test_form_streams_are_known(value: bytes, stream: bool) -> None:
    """Transcriptions stream on a form field."""
    assert read(form(part("model", b"m"), part("stream", value))).stream is stream


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data; boundary=boundary1",
        b'Multipart/Form-Data;boundary="boundary1"',
        b"multipart/form-data ; charset=utf-8 ; BOUNDARY=boundary1 ;",
    ],
)
def test_boundaries_are_read_in_every_spelling(content_type: bytes) -> None:
    """Quotes, case, blanks and other parameters do not matter."""
    assert read(upload(), content_type).model == "m"


def test_boundaries_may_hold_blanks_and_signs() -> None:
    """A quoted boundary of legal characters is taken as it is."""
    boundary = b"=_gc0p4Jq0M2Yt08j(34 c0p)+/:?'"
    body = form(part("model", b"m", boundary=boundary), boundary=boundary)
    assert read(body, b'multipart/form-data; boundary="%b"' % boundary).model == "m"


@pytest.mark.parametrize(
    "body",
    [
        form(part("model", b"m"))[:-2],
        b"\r\n" + form(part("model", b"m")),
        b"--boundary1\r\ncontent-disposition:form-data;name=model\r\n\r\nm\r\n--boundary1--",
        b"--boundary1\r\nX-A: b\r\nContent-Disposition: FORM-DATA ; Name=model ;\r\nContent-Type: a/b\r\n\r\nm\r\n--boundary1--\r\n",
        b"--boundary1\r\nContent-Disposition: form-data; name=model\r\nContent-Transfer-Encoding: 8bit\r\n\r\nm\r\n--boundary1--\r\n",
    ],
)  # fmt: skip
def test_legal_variations_are_read(body: bytes) -> None:
    """What form writers really send is understood."""
    assert read(body).model == "m"


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=a; boundary=a",
        b'multipart/form-data; boundary="boundary1 "',
        b"multipart/form-data; boundary=" + b"b" * 71,
        b'multipart/form-data; boundary="boundary1',
        b"multipart/form-data; boundary*=utf-8''boundary1",
        b"multipart/form-data; boundary=bound\xe9",
        b"multipart/form-data boundary=boundary1",
        b"multipart/mixed; boundary=boundary1",
        b"multipart/form-datax; boundary=boundary1",
        b"application/json",
        b"application/x-www-form-urlencoded",
        b"",
    ],
)
def test_other_content_types_are_refused(content_type: bytes) -> None:
    """Without one valid boundary there is no form."""
    assert fault(upload(), content_type).code == "invalid_request"


GOOD = part("model", b"m")
HEAD = b'Content-Disposition: form-data; name="model"'


def with_head(head: bytes) -> bytes:
    return form(b"--boundary1\r\n%b\r\n\r\nm\r\n" % head)


FRAMING = {
    "empty": b"",
    "only a boundary": b"--boundary1",
    "only a boundary line": b"--boundary1\r\n",
    "no closing boundary": GOOD,
    "closing boundary cut": GOOD + b"--boundary1-",
    "plain boundary at the end": GOOD + b"--boundary1",
    "no line end before the boundary": GOOD[:-2] + b"--boundary1--\r\n",
    "preamble": b"preamble\r\n" + form(GOOD),
    "line feed before": b"\n" + form(GOOD),
    "epilogue": form(GOOD) + b"epilogue",
    "two forms": form(GOOD) + form(GOOD),
    "bare line feeds": form(GOOD).replace(b"\r\n", b"\n"),
    "boundary prefix in a file": form(part("file", b"x\r\n--boundary1x\r\n"), GOOD),
    "boundary and blank in a file": form(part("file", b"x\r\n--boundary1 \r\n"), GOOD),
    "closing boundary in a file": form(part("file", b"x\r\n--boundary1--x"), GOOD),
    "head runs into the boundary": b"--boundary1\r\n" + HEAD + b"\r\n\r\n--boundary1--\r\n",
    "no empty line after the head": b"--boundary1\r\n" + HEAD + b"\r\n--boundary1--\r\n\r\n",
    "too many parts": form(*[part("x", b"")] * 1001, GOOD),
}
HEADS = {
    "no head": b"",
    "no disposition": b"Content-Type: a",
    "two dispositions": HEAD + b"\r\n" + HEAD,
    "folded": HEAD + b"\r\n folded",
    "blank before the colon": HEAD.replace(b":", b" :"),
    "attachment": HEAD.replace(b"form-data", b"attachment"),
    "form-data with a tail": HEAD.replace(b"form-data", b"form-data2"),
    "no name": b"Content-Disposition: form-data",
    "two names": HEAD + b'; name="other"',
    "extended name": b"Content-Disposition: form-data; name*=utf-8''model",
    "both names": HEAD + b"; name*=utf-8''other",
    "odd escape": b'Content-Disposition: form-data; name="mo\\del"',
    "open quote": b'Content-Disposition: form-data; name="model',
    "text behind a quote": HEAD + b"x",
    "base64": HEAD + b"\r\nContent-Transfer-Encoding: base64",
    "long": b"X: " + b"y" * 9000 + b"\r\n" + HEAD,
    "carriage return": HEAD + b"\rX: y",
    "nul": HEAD + b"\r\nX: \0",
}


def test_the_heads_above_differ_from_a_good_one_only_by_their_fault() -> None:
    """The frame around them is read."""
    assert read(with_head(HEAD)).model == "m"


@pytest.mark.parametrize("body", [*FRAMING.values(), *map(with_head, HEADS.values())], ids=[*FRAMING, *HEADS])
def test_sloppy_forms_are_refused(body: bytes) -> None:
    """Anything two form readers could read differently is refused rather than guessed about."""
    found = fault(body)
    assert (found.status, found.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (form(part("file", b"x")), "missing_model"),
        (form(part("model", b"")), "missing_model"),
        (b"--boundary1--\r\n", "missing_model"),
        (form(GOOD, GOOD), "invalid_request"),
        (form(GOOD, part("Model", b"n")), "invalid_request"),
        (form(part("MODEL", b"n")), "invalid_request"),
        (form(part("model", b"n", '; filename="x"')), "invalid_request"),
        (form(part("model", b"n", "; filename*=utf-8''x")), "invalid_request"),
        (form(part("model", b"\xff")), "invalid_request"),
    ],
)
def test_the_model_must_be_one_plain_field(body: bytes, code: str) -> None:
    """Missing, repeated, differently cased or uploaded as a file: no route."""
    found = fault(body)
    assert (found.code, found.param) == (code, "model")


def test_fields_that_only_look_like_the_model_are_others() -> None:
    """A file holding a form, and names containing the word, change nothing."""
    inner = part("model", b"evil", boundary=b"boundary2")
    assert read(form(part("file", inner, '; filename="f"'), part("model_name", b"x"), part("submodel", b"y"), GOOD)).model == "m"


def test_relayed_paths_take_both_kinds() -> None:
    """Where the endpoint is only configured, the content type says how to read it."""
    at = endpoint(b"/v1/anything")
    assert read(upload(), TYPE, at).model == "m"
    assert read(b'{"model":"j"}', b"application/json", at).model == "j"


def test_files_are_not_copied() -> None:
    """Reading a large form takes no memory to speak of."""
    body = form(part("file", bytes(20_000_000), '; filename="f"'), GOOD)
    tracemalloc.start()
    read(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
