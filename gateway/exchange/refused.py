"""A request that gets one of the gateway's own errors."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818  # reads as what happened
    """`code` is a key of the error table; `param` names the field at fault, `retry_after` (seconds) is set where waiting helps."""

    def __init__(
        self, code: str, message: str, param: str | None = None, *, retry_after: float | None = None, allow: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.allow = allow
