"""Ports of this machine that no process uses, for servers that a development command starts."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

_TRIES = 200
_LOW = 10_000


def free_port(host: str, offsets: Sequence[int]) -> int | None:
    """Return a port such that it is free with each of these offsets, or None."""
    end = ephemeral_from() - max(offsets)
    for _ in range(_TRIES):
        base = _LOW + secrets.randbelow(end - _LOW)
        if all(is_free(host, base + offset) for offset in offsets):
            return base
    return None


def ephemeral_from() -> int:
    """Return the first ephemeral port. A connection could take a port above it from a server that
    is down. Defaults to Linux's 32768."""
    with contextlib.suppress(OSError, ValueError):
        begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if begin > 2 * _LOW:
            return begin
    return 32_768


def is_free(host: str, port: int) -> bool:
    """Return True if the port can be bound."""
    with _socket(host) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def has_listener(host: str, port: int) -> bool:
    """Return True if a process listens on the port. Ignores connections in TIME_WAIT; the server
    reports other errors."""
    with _socket(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
