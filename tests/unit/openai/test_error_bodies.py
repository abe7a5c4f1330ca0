"""Error bodies and events in each client dialect."""

import json

import pytest

from gateway.openai.errors import ERRORS, BadRequest, body, event

DOCUMENTED = {
    400: {"invalid_json", "missing_model", "invalid_request"},
    401: {"invalid_api_key"},
    404: {"model_not_found", "unknown_path", "response_not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    413: {"body_too_large"},
    415: {"unsupported_encoding"},
    417: {"expectation_failed"},
    429: {"rate_limited", "queue_full", "queue_timeout"},
    431: {"headers_too_large"},
    500: {"internal_error"},
    501: {"not_implemented"},
    502: {"upstream_connect", "upstream_protocol", "upstream_reset", "upstream_auth"},
    503: {"no_replica_ready", "draining", "starting", "overloaded"},
    504: {"first_byte_timeout", "idle_timeout", "total_timeout"},
    505: {"http_version"},
}


def test_the_table_has_the_documented_codes() -> None:
    """Every documented code has its documented status, and there is no other."""
    by_status: dict[int, set[str]] = {}
    for code, (status, _type, _retry) in ERRORS.items():
        by_status.setdefault(status, set()).add(code)
    assert by_status == DOCUMENTED


def test_waiting_helps_only_where_it_does() -> None:
    """Back-pressure invites a retry; the client's own mistakes and rejected keys do not."""
    assert {code for code, (_s, _t, retry) in ERRORS.items() if retry} == {
        "rate_limited", "queue_full", "queue_timeout", "no_replica_ready", "draining", "starting", "overloaded",
    }  # fmt: skip
    assert all(retry is False for status, _t, retry in ERRORS.values() if status in (400, 401, 404, 405, 413, 415, 431, 501))


@pytest.mark.parametrize("shape", ["openai", "responses"])
@pytest.mark.parametrize("code", ERRORS)
def test_openai_errors_have_exactly_four_fields(shape: str, code: str) -> None:
    """The error object is what OpenAI SDKs read."""
    assert json.loads(body(shape, code, "why", "model")) == {
        "error": {"message": "why", "type": ERRORS[code][1], "param": "model", "code": code}
    }


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_json", "invalid_request_error"),
        ("invalid_api_key", "authentication_error"),
        ("model_not_found", "not_found_error"),
        ("body_too_large", "request_too_large"),
        ("queue_full", "rate_limit_error"),
        ("upstream_reset", "api_error"),
        ("no_replica_ready", "overloaded_error"),
        ("first_byte_timeout", "timeout_error"),
    ],
)
def test_anthropic_errors_use_anthropic_types(code: str, kind: str) -> None:
    """`/v1/messages` clients get their own error object."""
    assert json.loads(body("anthropic", code, "why")) == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_model_not_found_is_an_invalid_request_to_openai_clients() -> None:
    """SDKs tell an unknown model by type and code."""
    assert ERRORS["model_not_found"][:2] == (404, "invalid_request_error")


def test_chat_streams_end_with_an_error_object() -> None:
    """One data event holding `error`, which stock SDKs raise."""
    text = event("openai", "upstream_reset", "gone")
    assert text.startswith(b"data: ")
    assert text.endswith(b"\n\n")
    assert json.loads(text[6:])["error"]["type"] == "upstream_error"


def test_messages_streams_end_with_a_named_error_event() -> None:
    """Anthropic streams name their events."""
    name, data = event("anthropic", "idle_timeout", "gone").rstrip(b"\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["error"]["type"] == "timeout_error"


def test_responses_streams_end_with_an_error_event() -> None:
    """The event has the documented flat fields and the nested object SDKs raise on."""
    name, data = event("responses", "upstream_reset", "gone").rstrip(b"\n").split(b"\n")
    told = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: error"
    assert (told["type"], told["code"], told["message"], told["error"]["code"]) == ("error", "upstream_reset", "gone", "upstream_reset")


@pytest.mark.parametrize("message", ["line\nbreak", 'quote"', "\ud800 lone", "ünï 漢", "\x00\u2028"])
@pytest.mark.parametrize("shape", ["openai", "anthropic", "responses"])
def test_any_message_stays_one_event(shape: str, message: str) -> None:
    """Whatever a client put into a name, the event keeps its framing and the text survives."""
    text = event(shape, "upstream_reset", message)
    assert text.count(b"\n\n") == 1
    assert text.isascii()
    data = json.loads(text.split(b"data: ", 1)[1])
    assert data["error"]["message"] == message


def test_bad_requests_know_their_status() -> None:
    """The exception carries what the answer needs."""
    fault = BadRequest("body_too_large", "big", "x")
    assert (fault.status, fault.code, fault.message, fault.param) == (413, "body_too_large", "big", "x")
