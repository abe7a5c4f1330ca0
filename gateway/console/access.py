"""Who may use the admin port: the token's holder, or without a token whoever is on this machine, but no web page in a browser there."""

from __future__ import annotations

import base64
import hmac
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import HTTPException, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import SecretStr

_READS = ("GET", "HEAD")
_WANTED = "The admin token is missing or wrong; send it as 'Authorization: Bearer TOKEN'."
_ASK = {"www-authenticate": 'Basic realm="kvgate admin: any user name, the token as password"'}


def guard(token: Callable[[], SecretStr | None]) -> Callable[[Request], Awaitable[None]]:
    """A dependency that raises HTTPException 401, 403 or 415 for requests that may not pass. `token` gives the one in force."""

    async def check(request: Request) -> None:
        expected = token()
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if expected is None:
            if request.method not in _READS:
                _check_host(request)
                _check_type(request)
            return
        basic = scheme.lower() == "basic"
        presented = _password(given) if basic else given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        if not hmac.compare_digest(presented, expected.get_secret_value().encode()):
            raise HTTPException(401, _WANTED, headers=_ASK)
        if basic and request.method not in _READS:
            _check_type(request)  # a browser sends the password along with any page's form

    return check


def _password(credentials: str) -> bytes:
    """The password of `Basic` credentials: how a browser, which knows no bearer tokens, can show the token."""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _check_host(request: Request) -> None:
    """A page of another site, whose name was made to lead here (DNS rebinding), must not change anything."""
    try:
        host = urlsplit("//" + request.headers.get("host", "")).hostname or ""
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise HTTPException(403, "Without server.admin.token, changes are accepted only from a loopback Host.")


def _check_type(request: Request) -> None:
    """Pages of other sites can post forms without asking, JSON they cannot (CSRF)."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Changes need 'content-type: application/json'.")
