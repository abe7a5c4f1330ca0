"""Error answers in vLLM's shapes: nested OpenAI object with an integer code, Anthropic's on its routes."""

from __future__ import annotations

import orjson

ANTHROPIC = "/v1/messages"


class ApiError(Exception):
    """A refusal: HTTP status, message, vLLM's error type and the parameter at fault."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self, path: str) -> bytes:
        """The JSON body for an endpoint."""
        return orjson.dumps(self._object(path))

    def event(self, path: str) -> bytes:
        """The same inside an event stream."""
        name = b"event: error\n" if path.startswith(ANTHROPIC) else b""
        return b"%bdata: %b\n\n" % (name, self.body(path))

    def _object(self, path: str) -> dict[str, object]:
        if path.startswith(ANTHROPIC):
            return {"type": "error", "error": {"type": self.kind, "message": self.message}}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def bad_value(message: str, param: str | None = None) -> ApiError:
    """400 for a value out of range."""
    return ApiError(400, message, "BadRequestError", param)


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400 for a body that does not validate."""
    return ApiError(400, message, "Bad Request", param)


def unknown_model(name: str, known: list[str]) -> ApiError:
    """404 for a model this replica does not serve."""
    return ApiError(404, f"The model `{name}` does not exist. Valid models: {', '.join(known)}.", "NotFoundError", "model")
