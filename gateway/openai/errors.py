"""The gateway's own errors: one table of codes, one renderer per client dialect."""

from __future__ import annotations

import json
from typing import Literal

Shape = Literal["openai", "anthropic", "responses"]

# code: (status, OpenAI error type, may the client's own retry help; None: let its SDK decide)
ERRORS: dict[str, tuple[int, str, bool | None]] = {
    "invalid_json": (400, "invalid_request_error", False),
    "missing_model": (400, "invalid_request_error", False),
    "invalid_request": (400, "invalid_request_error", False),
    "invalid_api_key": (401, "invalid_request_error", False),
    "model_not_found": (404, "invalid_request_error", False),
    "response_not_found": (404, "invalid_request_error", False),
    "unknown_path": (404, "invalid_request_error", False),
    "method_not_allowed": (405, "invalid_request_error", False),
    "request_timeout": (408, "timeout_error", None),
    "body_too_large": (413, "invalid_request_error", False),
    "unsupported_encoding": (415, "invalid_request_error", False),
    "expectation_failed": (417, "invalid_request_error", False),
    "headers_too_large": (431, "invalid_request_error", False),
    "rate_limited": (429, "rate_limit_error", True),
    "queue_full": (429, "rate_limit_error", True),
    "queue_timeout": (429, "rate_limit_error", True),
    "internal_error": (500, "server_error", None),
    "not_implemented": (501, "invalid_request_error", False),
    "upstream_connect": (502, "upstream_error", None),
    "upstream_protocol": (502, "upstream_error", None),
    "upstream_reset": (502, "upstream_error", None),
    "upstream_auth": (502, "upstream_error", False),
    "no_replica_ready": (503, "service_unavailable_error", True),
    "draining": (503, "service_unavailable_error", True),
    "starting": (503, "service_unavailable_error", True),
    "overloaded": (503, "service_unavailable_error", True),
    "first_byte_timeout": (504, "timeout_error", None),
    "idle_timeout": (504, "timeout_error", None),
    "total_timeout": (504, "timeout_error", False),
    "http_version": (505, "invalid_request_error", False),
}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class BadRequest(Exception):  # noqa: N818  # reads as the answer it becomes
    """A request whose bytes cannot be read; it becomes one of the errors above. `param` names the field at fault."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = ERRORS[code][0]
        self.code = code
        self.message = message
        self.param = param


def body(shape: str, code: str, message: str, param: str | None = None) -> bytes:
    """The JSON body of an error answer in the endpoint's own dialect. `code` must be a key of ERRORS."""
    return _json(_anthropic(code, message) if shape == "anthropic" else {"error": _openai(code, message, param)})


def event(shape: str, code: str, message: str) -> bytes:
    """One SSE event telling a client that its started stream failed. Written at an event boundary only."""
    if shape == "anthropic":
        return b"event: error\ndata: %b\n\n" % _json(_anthropic(code, message))
    error = _openai(code, message, None)
    if shape == "responses":
        # The API reference has the fields at the top, the service nests them, and stock SDKs raise on the nested ones.
        flat = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0, "error": error}
        return b"event: error\ndata: %b\n\n" % _json(flat)
    return b"data: %b\n\n" % _json({"error": error})


def _openai(code: str, message: str, param: str | None) -> dict[str, str | None]:
    return {"message": message, "type": ERRORS[code][1], "param": param, "code": code}


def _anthropic(code: str, message: str) -> dict[str, object]:
    kind = _ANTHROPIC_TYPES.get(ERRORS[code][0], "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _json(value: object) -> bytes:
    # ASCII output: a lone surrogate in a client's string must not break the answer that complains about it.
    return json.dumps(value, separators=(",", ":")).encode()
