"""The paths of the public port: which are relayed, which the gateway answers, and what to say about all others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gateway.openai.errors import ERRORS, Shape

_GET = (b"GET", b"HEAD")
_POST = (b"POST",)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One known path.

    `body` is how the model is found: in JSON, in a multipart form, in whichever of the two the content type says, or not at all.
    `shape` is the dialect of errors and streams. `injects`: streams here can be asked for usage with `stream_options`.
    `routed`: relayed to a replica; otherwise the gateway answers. `path` ends with `{id}` or has it inside where the path varies.
    """

    name: str
    path: str
    methods: tuple[bytes, ...] = _POST
    body: Literal["json", "multipart", "either", "none"] = "json"
    shape: Shape = "openai"
    injects: bool = False
    routed: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request line leads nowhere. `allow` is the value of the `allow` header of a 405."""

    code: str
    message: str
    allow: str | None = None

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return ERRORS[self.code][0]


_FIXED = (
    Endpoint("chat_completions", "/v1/chat/completions", injects=True),
    Endpoint("completions", "/v1/completions", injects=True),
    Endpoint("embeddings", "/v1/embeddings"),
    Endpoint("responses", "/v1/responses", shape="responses"),
    Endpoint("messages", "/v1/messages", shape="anthropic"),
    Endpoint("count_tokens", "/v1/messages/count_tokens", shape="anthropic"),
    Endpoint("rerank", "/v1/rerank"),
    Endpoint("score", "/v1/score"),
    Endpoint("transcriptions", "/v1/audio/transcriptions", body="multipart"),
    Endpoint("translations", "/v1/audio/translations", body="multipart"),
    Endpoint("speech", "/v1/audio/speech"),
    Endpoint("images", "/v1/images/generations"),
    Endpoint("tokenize", "/tokenize"),
    Endpoint("detokenize", "/detokenize"),
    Endpoint("models", "/v1/models", _GET, body="none", routed=False),
    Endpoint("probe", "/livez", _GET, body="none", routed=False),
    Endpoint("probe", "/readyz", _GET, body="none", routed=False),
    Endpoint("probe", "/health", _GET, body="none", routed=False),
)

# An id may not start with a dot: `..` would climb in the replica's path.
_RESPONSE_ID = rb"/v1/responses/[A-Za-z0-9_~:=-][A-Za-z0-9_.~:=-]{0,511}"
_VARYING = (
    (re.compile(rb"/v1/models/.+", re.DOTALL), Endpoint("model", "/v1/models/{id}", _GET, body="none", routed=False)),
    (re.compile(_RESPONSE_ID), Endpoint("response", "/v1/responses/{id}", (b"GET", b"DELETE"), body="none", shape="responses")),
    (re.compile(_RESPONSE_ID + rb"/cancel"), Endpoint("response", "/v1/responses/{id}/cancel", body="none", shape="responses")),
)

# Everything an exchange can be counted under.
ENDPOINT_NAMES = frozenset({"relay", *(e.name for e in _FIXED), *(e.name for _, e in _VARYING)})

_REALTIME = Refusal("not_implemented", "Realtime sessions are not available through this gateway.")


class EndpointTable:
    """All endpoints of one configuration; `relay_paths` are further POST paths relayed by their body's model."""

    def __init__(self, relay_paths: Iterable[str] = ()) -> None:
        relayed = (Endpoint("relay", path, body="either") for path in relay_paths)
        self._fixed = {e.path.encode(): e for e in (*relayed, *_FIXED)}

    def match(self, method: bytes, path: bytes) -> Endpoint | Refusal:
        """The endpoint of a request line, `path` without its query; or why there is none."""
        endpoint = self._fixed.get(path) or next((e for pattern, e in _VARYING if pattern.fullmatch(path)), None)
        if endpoint is None:
            return _REALTIME if path == b"/v1/realtime" else self._unknown(path)
        if method in endpoint.methods:
            return endpoint
        allow = b", ".join(endpoint.methods).decode()
        return Refusal("method_not_allowed", f"{endpoint.path} takes {allow}, not {_shown(method)}.", allow)

    def _unknown(self, path: bytes) -> Refusal:
        meant = self._meant(path)
        hint = f"Did you mean {meant.decode()}?" if meant else "Check the base URL: it should end in /v1."
        return Refusal("unknown_path", f"There is nothing at {_shown(path)}. {hint}")

    def _meant(self, path: bytes) -> bytes | None:
        """The known path that remains after mending what base URLs get wrong: slashes, a missing or doubled /v1, a foreign prefix."""
        segments = [s for s in path.split(b"/") if s]
        for start in range(min(len(segments), 8)):
            tail = b"/".join(segments[start:])
            for candidate in (b"/" + tail, b"/v1/" + tail):
                if candidate in self._fixed:
                    return candidate
        return None


def _shown(raw: bytes) -> str:
    text = raw[:200].decode("ascii", "backslashreplace")
    return text if len(raw) <= 200 else text + "…"
