"""Reserve ports: an exclusive probe first, then a placeholder socket that all cores of the node
share."""

from __future__ import annotations

import errno
import socket

from polynya.base.errors import ConfigError

BACKLOG = 1024  # connections that wait to be accepted


def take_port(host: str, port: int, *, name: str, change: str = "--listen") -> socket.socket:
    """Return a bound socket that does not listen. It reserves the port while cores start and stop.
    Port 0 takes a free one.

    `host` is a numeric address. Raises ConfigError when another process holds the port, even with
    SO_REUSEPORT. `change` names the setting for another port."""
    with _socket(host) as probe:
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigError(f"{name}: {_why(error, host, port, change)}") from None
        port = probe.getsockname()[1]
        # bound while the probe has the port: the kernel gives a free one to others at once
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        placeholder = _socket(host)
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        placeholder.bind((host, port))
    # else another process's probe succeeds until the first core listens
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return placeholder


def shared_listener(host: str, port: int) -> socket.socket:
    """Return a core's own listening socket on a reserved port; the kernel distributes the
    connections."""
    listener = _socket(host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setblocking(False)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def spelled(host: str, port: int) -> str:
    """Return `127.0.0.1:4437` or `[::1]:4437`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _why(error: OSError, host: str, port: int, change: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use by another process; stop it, or choose another port "
            f"with {change}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; choose one with {change}"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}; choose a port above 1023 with {change}"
    return f"cannot listen on {spelled(host, port)}: {error.strerror}"
