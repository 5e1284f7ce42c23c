"""Decide which web pages may read answers (the Fetch standard's CORS protocol), and which may send requests that change something.

CORS alone only hides answers: a browser still sends a foreign page's `POST`. So the node refuses such requests by their `Origin`.
Access to private networks (`Access-Control-Allow-Private-Network`) is never granted.
"""

from __future__ import annotations

from collections.abc import Iterable

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.hosts import ANY, SHOWN_CHARACTERS_MAX, Hosts
from polynya.front.http.protocol.responses import CORS
from polynya.wire.hosts import bare_host, origin_place
from polynya.wire.http1 import Head

LOCAL = "local"
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_EXPOSE = CORS.partition(b"\r\n")[2]
_VARY = b"Vary: Origin\r\n"


class Cors:
    """`origins` as browsers send them, `https://app.example.com`. `*` among them is any origin, `local` those whose host `hosts` knows."""

    def __init__(self, origins: Iterable[str] = (ANY,), hosts: Hosts | None = None) -> None:
        known = tuple(origins)
        self._any = ANY in known
        self._local = hosts if LOCAL in known else None
        self._listed = frozenset(known) - {ANY, LOCAL}
        self._varies = bool(known)

    def lines(self, origin: str | None, host: str | None) -> bytes:
        """The header lines of an answer to a page of `origin` that asked for `host`. An answer that depends on the origin says so to caches."""
        if self._any:
            return CORS
        if origin is None or not self._allows(origin, host):
            return _VARY if self._varies else b""
        return b"Access-Control-Allow-Origin: %b\r\n" % origin.encode("latin-1") + _EXPOSE + _VARY

    def check(self, head: Head) -> None:
        """Raises `Failure` when a page of another origin asks for more than to read."""
        origin = head.headers.get("origin")
        if origin is None or head.method in SAFE_METHODS:
            return
        host = head.headers.get("host")
        if not (self._allows(origin, host) or is_same_site(origin, host)):
            raise Failure(
                "ORIGIN_NOT_ALLOWED",
                f"pages of the origin {origin[:SHOWN_CHARACTERS_MAX]!r} may not do this; add the origin to cors_origins",
            )

    def _allows(self, origin: str, host: str | None) -> bool:
        if self._any or origin in self._listed:
            return True
        return self._local is not None and _is_local(origin, host, self._local)


def is_same_site(origin: str, host: str | None) -> bool:
    """Whether the page was served under the very host and port that it asks."""
    return bool(host) and origin_place(origin) == (host or "").lower()


def _is_local(origin: str, host: str | None, hosts: Hosts) -> bool:
    """A host that is the node's own. Anybody can serve a page at an IP address, so one counts only if the node was asked by it too."""
    place = origin_place(origin)
    found = bare_host(place) if place else ""
    if not found:
        return False
    return hosts.is_own(found) or found == bare_host(host or "")
