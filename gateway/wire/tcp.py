"""What the kernel knows of a client connection and asyncio does not tell. Exact on Linux; elsewhere these functions know nothing."""

from __future__ import annotations

import socket
import struct
from typing import Any

# Clients that vanish without a word (a closed laptop, a dropped NAT entry) are noticed after about two minutes.
_KEEPALIVE = [
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
]
_OPTIONS = [(level, getattr(socket, name), value) for level, name, value in _KEEPALIVE if hasattr(socket, name)]

# struct tcp_info of linux/tcp.h, as far as it is wanted: tcpi_state, tcpi_bytes_acked and tcpi_notsent_bytes (since Linux 4.6).
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_INFO = struct.Struct("=B119xQ16xI")
_UNKNOWN = (0, None, 0)
_CLOSE, _CLOSE_WAIT = 7, 8
_LINGER_ZERO = struct.pack("ii", 1, 0)


def watch(sock: Any) -> None:
    """Have the kernel probe a silent peer. `sock` is a transport's socket, here and below; None is let pass."""
    for level, option, value in _OPTIONS:
        _set(sock, level, option, value)


def peer_left(sock: Any) -> bool:
    """Has the peer closed or reset? True also while its last bytes are still unread, which a paused transport never reports."""
    return _info(sock)[0] in (_CLOSE, _CLOSE_WAIT)


def acknowledged(sock: Any) -> int | None:
    """Bytes the peer has taken since the connection began; None where the kernel does not tell."""
    return _info(sock)[1]


def unsent(sock: Any) -> int:
    """Bytes in the kernel that wait for room at the peer. Bytes still waiting above it imply some here."""
    return _info(sock)[2]


def reset_on_close(sock: Any) -> None:
    """Make the coming close a reset: the peer sees a broken connection, not the end of a message."""
    _set(sock, socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)


def _set(sock: Any, level: int, option: int, value: int | bytes) -> None:
    if sock is not None:
        try:
            sock.setsockopt(level, option, value)
        except (OSError, ValueError):
            pass  # the connection is gone already, and its descriptor with it


def _info(sock: Any) -> tuple[int, int | None, int]:
    """State, bytes acknowledged, bytes not sent."""
    if sock is not None and _TCP_INFO is not None:
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size)
        except (OSError, ValueError):
            return _UNKNOWN
        if len(info) == _INFO.size:
            state, acked, waiting = _INFO.unpack(info)
            return state, acked, waiting
    return _UNKNOWN
