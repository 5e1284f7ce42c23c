"""Check the `Host` of requests on a node without access control.

A web page can point its own host name at this node's address (DNS rebinding). To the browser the
node is then part of that page's site. Such requests carry the page's host name in `Host`, so the
node accepts only its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from polynya.front.http.protocol.errors import Failure
from polynya.wire.http.hosts import address_of, bare_host, is_this_machine
from polynya.wire.http.http1 import Head

ANY = "*"
SHOWN_CHARACTERS_MAX = 100  # of client input echoed in an error
_EXEMPT = frozenset(("/livez", "/readyz"))  # probes may use any name for the node


class Hosts:
    """The accepted hosts. `allowed`: host names, `*` for any. `nodes` returns the present hosts of
    the cluster's nodes, without ports."""

    def __init__(
        self, allowed: Iterable[str] = (ANY,), nodes: Callable[[], Collection[str]] = tuple
    ) -> None:
        known = tuple(allowed)
        self._any = ANY in known
        self._named = frozenset(map(bare_host, known)) - {""}
        self._nodes = nodes

    def check(self, head: Head) -> bool:
        """Raise `Failure` when the node does not serve the request's Host. Return False if it
        serves only this path to it."""
        value = head.headers.get("host")
        if value is None or self._any:  # HTTP/1.0; browsers always send it
            return True
        host = bare_host(value)
        # no page has an address as its host name unless it comes from there
        if host and (address_of(host) is not None or self.is_own(host)):
            return True
        if head.target.partition("?")[0] in _EXEMPT:
            return False
        raise Failure(
            "HOST_NOT_ALLOWED",
            f"this node does not serve the host {value[:SHOWN_CHARACTERS_MAX]!r}; add it to "
            "allowed_hosts, or use the IP address",
        )

    def is_own(self, host: str) -> bool:
        """Report whether a host is this machine, a node of the cluster, or allowed by the
        settings."""
        return self._any or is_this_machine(host) or host in self._named or host in self._nodes()
