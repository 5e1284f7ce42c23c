"""Ports of one node that its own settings give to two listeners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_ALL_HOSTS = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 (compared, not bound)


def port_problems(
    base: tuple[str, int], others: Mapping[str, tuple[str, int]], origins: Mapping[str, str]
) -> Iterable[str]:
    """Yield the settings in `others` whose port is that of `listen`, of the admin port behind it,
    or of an earlier setting. `base` is the host and port of `listen`; port 0 is any free one."""
    host, port = base
    taken = {}
    if port:
        taken = {port: ("the port of 'listen'", host)}
        taken[port + 1] = ("the node's admin port, the one after that of 'listen'", host)
    for key, (host, port) in others.items():
        if not port:
            continue
        whose, where = taken.get(port, ("", ""))
        if whose and (host == where or host in _ALL_HOSTS or where in _ALL_HOSTS):
            yield f"{key} ({origins[key]}): {port} is {whose}; choose another port"
        taken.setdefault(port, (f"the port of '{key}'", host))
