"""Where a replica listens, parsed once from its configured URL."""

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """One replica address.

    `authority` is the value for `Host`; `prefix` the path in front of the API paths (`b""` or `b"/pre/fix"`), without a trailing `/v1`.
    """

    host: str
    port: int
    ssl: ssl.SSLContext | None
    authority: bytes
    prefix: bytes

    @classmethod
    def parse(cls, url: str, ca_file: str | None = None) -> "Target":
        """From `http[s]://host[:port][/prefix][/v1][/]`; IPv6 hosts in brackets. `ca_file`: PEM file of authorities to trust for https.

        Raises ValueError with a reason for anything else, user names and passwords included.
        """
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("only printable ASCII without blanks is allowed")
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS:
            raise ValueError("must start with http:// or https://")
        if "@" in parts.netloc:
            raise ValueError("must not contain a user name or password; use api_key")
        if "?" in url or "#" in url:
            raise ValueError("must not contain a query or fragment")
        host = parts.hostname
        if not host:
            raise ValueError("has no host")
        default = _DEFAULT_PORTS[parts.scheme]
        port = default if parts.port is None else parts.port
        if port == 0:
            raise ValueError("port 0 cannot be dialled")
        name = f"[{host}]" if ":" in host else host
        authority = name if port == default else f"{name}:{port}"
        prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        context = _context(ca_file) if parts.scheme == "https" else None
        return cls(host, port, context, authority.encode("ascii"), prefix.encode("ascii"))


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ValueError(f"cannot use ca_file {ca_file}: {error.strerror or error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context
