"""Commands that talk to the admin port of a running gateway."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any

from gateway.cli import CommandError
from gateway.cli.tables import explain_text, status_text

_TIMEOUT_S = 10
# The proxies of the environment are for the internet, not for an admin port.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(admin: str, token: str | None, path: str, method: str = "GET") -> Any:
    """JSON from the admin port. Raises CommandError with the gateway's own words."""
    base = (admin if "://" in admin else f"http://{admin}").rstrip("/")
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    data = b"{}" if method == "POST" else None
    try:
        request = urllib.request.Request(base + path, data, headers, method=method)  # noqa: S310  # the operator's choice
        with _opener.open(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise CommandError(f"kvgate: {_detail(error)}") from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise CommandError(f"kvgate: no gateway answers at {admin} ({reason}); is it running, and is --admin right?") from None


def status(admin: str, token: str | None, *, as_json: bool) -> None:
    """Print every replica."""
    answer = call(admin, token, "/admin/replicas")
    print(json.dumps(answer, indent=2) if as_json else status_text(answer))


def explain(request_id: str, admin: str, token: str | None, *, as_json: bool) -> None:
    """Print why a request went where it went."""
    answer = call(admin, token, f"/admin/explain/{urllib.parse.quote(request_id, safe='')}")
    print(json.dumps(answer, indent=2) if as_json else explain_text(answer))


def set_draining(replica_id: str, admin: str, token: str | None, *, draining: bool) -> None:
    """Drain a replica or take it back."""
    action = "drain" if draining else "undrain"
    call(admin, token, f"/admin/replicas/{urllib.parse.quote(replica_id, safe='')}/{action}", "POST")
    print(f"{replica_id}: {'draining; running requests finish' if draining else 'in service'}")


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        body = json.load(error)
        return str(body.get("detail") or body)
    except ValueError:
        return f"{error.code} {error.reason}"
