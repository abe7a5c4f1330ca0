"""The value types of the settings: numbers with their limits, addresses, names. Each error says what is allowed.

A message never repeats the value it refuses: it may be a secret that slipped into the wrong place.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

T = TypeVar("T")
MASK = "**********"  # what pydantic prints for a SecretStr; shown instead of any secret

_HOSTNAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_TOKEN = re.compile(r"[!-~]+", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*/?", re.ASCII)
# A base address that ends like this is the address of an endpoint, copied whole.
_ENDPOINT = re.compile(r"/(?:completions|chat|embeddings|responses|messages|models|rerank|score|metrics|health)$")
# Headers that frame or steer one hop; a replica's settings may not set them.
_OWN_HEADERS = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip


def listed(value: Any) -> Any:
    """A key with nothing under it (all lines commented out) is an empty list."""
    return () if value is None else value


def host(value: str) -> str:
    """An address or a host name to listen on."""
    try:
        return str(ip_address(value))
    except ValueError:
        if _HOSTNAME.fullmatch(value) and not value.replace(".", "").isdigit():
            return value
        raise ValueError("not a host; allowed: an IP address without brackets, or a host name") from None


def loopback(name: str) -> bool:
    """Is this listening address reachable from its own machine only?"""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower().rstrip(".") == "localhost"


def base_url(value: str) -> str:
    """The base address of a server: scheme, host, and perhaps a port and a path prefix."""
    if any(c.isspace() or not c.isprintable() for c in value):
        raise ValueError("contains white space; allowed: http://HOST:PORT or https://HOST:PORT")
    try:
        parts = urlsplit(value)
        name, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("not a URL: host or port cannot be read; allowed: http://HOST:PORT, ports 1 to 65535") from None
    if "@" in parts.netloc:
        raise ValueError("user name and password in a URL are refused; allowed: api_key or headers of this replica")
    if parts.scheme not in ("http", "https") or not name:
        raise ValueError("not an http URL; allowed: http://HOST:PORT or https://HOST:PORT")
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError("port is missing after the colon or 0; allowed: 1 to 65535")
    if parts.query or parts.fragment or value.endswith(("?", "#")):
        raise ValueError("query and fragment are refused; allowed: http://HOST:PORT, with a path prefix if the server has one")
    _check_path(parts.path)
    try:
        host(name)
    except ValueError:
        raise ValueError("host cannot be read; allowed: an IP address (IPv6 in brackets) or a host name") from None
    return value


def _check_path(path: str) -> None:
    if _ENDPOINT.search(path.rstrip("/")):
        raise ValueError("the address of one endpoint; allowed: the server's base address, such as http://HOST:PORT or http://HOST:PORT/v1")
    if not _PATH.fullmatch(path) or "/./" in f"{path}/" or "/../" in f"{path}/":
        raise ValueError("path cannot be used; allowed: plain segments such as /team-a, without //, . or ..")


def server_key(url: str) -> tuple[str, str, int, str]:
    """What makes two base addresses the same server: scheme, host, port and path prefix (a final /v1 does not count)."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").rstrip("."), port, parts.path.rstrip("/").removesuffix("/v1").rstrip("/")


def replica_id(value: str) -> str:
    """A replica's name, which travels in headers, paths and metric labels."""
    if not _ID.fullmatch(value):
        raise ValueError("not an id; allowed: up to 64 letters, digits, '.', '_', ':', '-', the first a letter or digit")
    return value


def model_name(value: str) -> str:
    """A model name: what clients put in `model`."""
    if not value or len(value) > 256 or value != value.strip() or not value.isprintable():
        raise ValueError("not a model name; allowed: 1 to 256 printable characters, no space at either end")
    return value


def secret(value: Any) -> Any:
    """A credential must fit on a header line."""
    text = value.get_secret_value() if hasattr(value, "get_secret_value") else value
    if isinstance(text, str) and not _TOKEN.fullmatch(text):
        raise ValueError("empty, or not usable in a header; allowed: printable ASCII without spaces")
    return value


def headers(value: dict[str, str]) -> dict[str, str]:
    """Header lines added to every request to one replica."""
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("a name is not a header name; allowed: letters, digits and '-'")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"{name} belongs to the connection and cannot be set; allowed: any other header")
        if text != text.strip() or not all(c == "\t" or " " <= c <= "~" for c in text):
            raise ValueError(f"the value of {name} does not fit on a header line; allowed: printable ASCII, no space at either end")
    return value


def origin(value: str) -> str:
    """A web origin as browsers send it."""
    parts = urlsplit(value)
    if value == "*" or (
        parts.scheme and parts.netloc and value == f"{parts.scheme}://{parts.netloc}" and "@" not in value and value.isprintable()
    ):
        return value
    raise ValueError("not an origin; allowed: '*' or SCHEME://HOST[:PORT] without a path or final '/'")


def relay_path(value: str) -> str:
    """One more path to relay by the `model` of the body."""
    if not value.startswith("/v1/") or not _PATH.fullmatch(value) or value.endswith("/") or "/../" in f"{value}/" or "/./" in f"{value}/":
        raise ValueError("not a path to relay; allowed: /v1/NAME of plain segments, no final '/'")
    if re.fullmatch(r"/v1/(?:models|realtime|responses)(?:/.*)?", value):
        raise ValueError("answered by the gateway itself; allowed: any other path under /v1/")
    return value


def network(value: Any) -> Any:
    """An address or a network in CIDR form."""
    if not isinstance(value, str):
        return value
    try:
        return ip_network(value)
    except ValueError:
        raise ValueError("not an address or network; allowed: 10.0.0.1 or 10.0.0.0/8 (no bits set after the prefix)") from None


def filename(value: str) -> str:
    """The path of a file; whether it can be read is checked when the settings are loaded."""
    if not value or "\0" in value:
        raise ValueError("not a file name; allowed: the path of a file")
    return value


Many = Annotated[tuple[T, ...], BeforeValidator(listed)]
Host = Annotated[str, AfterValidator(host)]
Url = Annotated[str, AfterValidator(base_url)]
ReplicaId = Annotated[str, AfterValidator(replica_id)]
ModelName = Annotated[str, AfterValidator(model_name)]
Origin = Annotated[str, AfterValidator(origin)]
RelayPath = Annotated[str, AfterValidator(relay_path)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(network), PlainSerializer(str)]
FileName = Annotated[str, AfterValidator(filename)]
Headers = Annotated[
    dict[str, str],
    BeforeValidator(lambda value: {} if value is None else value),
    AfterValidator(headers),
    PlainSerializer(lambda value: dict.fromkeys(value, MASK), when_used="json"),
]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Wait = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
