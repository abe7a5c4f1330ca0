"""The control plane's HTTP client: one session for all servers, answers read whole, but never more of them than is wanted.

Proxy variables of the environment, cookies and redirects are ignored: a probe must reach the server that traffic reaches.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

if TYPE_CHECKING:
    from types import TracebackType

    from gateway.fleet import ServerState

_CONCURRENT = 64
_LARGEST_ANSWER = 8 << 20


class Answer(NamedTuple):
    """A whole answer, of whatever status."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Did it succeed (2xx)?"""
        return 200 <= self.status < 300


class Unreachable(Exception):  # noqa: N818  # reads as what it says about the server
    """No answer: the server could not be reached, was too slow, or said more than anyone wants to hear."""


class Client:
    """Asks servers things. Use as an async context manager; at most 64 questions are open at once."""

    def __init__(self) -> None:
        self._limit = asyncio.Semaphore(_CONCURRENT)
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, server: ServerState, path: str, timeout_s: float) -> Answer:
        """GET a path below the server's base address, with the key and headers that its traffic carries. Raises `Unreachable`."""
        async with self._limit:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._get(server, path)
            except TimeoutError:
                raise Unreachable(f"no answer within {timeout_s:g} s") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise Unreachable(_why(error)) from None

    async def _get(self, server: ServerState, path: str) -> Answer:
        assert self._session is not None
        settings = server.settings
        headers = {"accept": "*/*", "accept-encoding": "identity", **settings.headers}
        if settings.api_key is not None:
            headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        url = server.key + path
        async with self._session.get(url, headers=headers, ssl=self._context(settings.ca_file), allow_redirects=False) as answer:
            body = bytearray()
            async for data in answer.content.iter_any():
                body += data
                if len(body) > _LARGEST_ANSWER:
                    raise Unreachable(f"{path} answers with more than {_LARGEST_ANSWER >> 20} MiB")
            return Answer(answer.status, bytes(body))

    def _context(self, ca_file: str | None) -> ssl.SSLContext | bool:
        if ca_file is None:
            return True
        context = self._contexts.get(ca_file)
        if context is None:
            context = self._contexts[ca_file] = ssl.create_default_context(cafile=ca_file)
        return context


def _why(error: Exception) -> str:
    """One short line without the address, which is known and must not reach clients."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "host name not found"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connection refused" if isinstance(error.os_error, ConnectionRefusedError) else "cannot connect"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return "connection closed without an answer"
    return type(error).__name__
