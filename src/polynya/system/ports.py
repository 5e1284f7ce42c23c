"""Taking ports: an exclusive probe first, then a placeholder that all cores of the node share (F6, F7)."""

from __future__ import annotations

import errno
import socket

from polynya.base.errors import ConfigError

BACKLOG = 1024  # connections that wait to be accepted


def take_port(host: str, port: int, *, name: str, change: str = "--listen") -> socket.socket:
    """A bound socket that does not listen: it keeps the port for this node while cores come and go. Port 0 takes a free one.

    `host` is a numeric address. Raises `ConfigError` when a stranger holds the port, also one that would share it; `change` is where
    another one is chosen.
    """
    with _socket(host) as probe:
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigError(f"{name}: {_why(error, host, port, change)}") from None
        port = probe.getsockname()[1]
    placeholder = _socket(host)
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    placeholder.bind((host, port))
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # else another's probe passes until the first core listens
    return placeholder


def shared_listener(host: str, port: int) -> socket.socket:
    """A core's own listening socket on a port that the node has taken; the kernel shares out the connections."""
    listener = _socket(host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setblocking(False)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def spelled(host: str, port: int) -> str:
    """`127.0.0.1:4437`, `[::1]:4437`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _why(error: OSError, host: str, port: int, change: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another process; stop it, or choose another port with {change}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine; choose one with {change}"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}; choose a port above 1023 with {change}"
    return f"cannot listen on {spelled(host, port)}: {error.strerror}"
