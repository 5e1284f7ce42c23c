"""Decide which web pages may read responses (the Fetch standard's CORS protocol), and which may
send requests with side effects.

CORS alone only hides responses: a browser still sends a foreign page's `POST`. So the node rejects
such requests by their `Origin`. Access to private networks (`Access-Control-Allow-Private-Network`)
is never granted.
"""

from __future__ import annotations

from collections.abc import Iterable

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.hosts import ANY, SHOWN_CHARACTERS_MAX, Hosts
from polynya.front.http.protocol.responses import CORS
from polynya.wire.http.hosts import bare_host, origin_address
from polynya.wire.http.http1 import Head

LOCAL = "local"
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_EXPOSE = CORS.partition(b"\r\n")[2]
_VARY = b"Vary: Origin\r\n"


class Cors:
    """The allowed origins, spelled as browsers send them: `https://app.example.com`. `*` allows any
    origin, `local` those whose host `hosts` knows. `credentials`: pages of the origins that are
    spelled out may send cookies and read the responses."""

    def __init__(
        self,
        origins: Iterable[str] = (ANY,),
        hosts: Hosts | None = None,
        *,
        credentials: bool = False,
    ) -> None:
        known = tuple(origins)
        self._any = ANY in known
        self._local = hosts if LOCAL in known else None
        self._listed = frozenset(known) - {ANY, LOCAL}
        self._varies = bool(known)
        self._with_cookies = self._listed if credentials else frozenset()

    def lines(self, origin: str | None, host: str | None) -> bytes:
        """Return the CORS header lines for a page of `origin` that requested `host`. `Vary` tells
        caches that the response depends on the origin."""
        if origin in self._with_cookies:
            return b"Access-Control-Allow-Credentials: true\r\n" + _lines_for(str(origin))
        if self._any:
            return CORS if not self._with_cookies else CORS + _VARY
        if origin is None or not self._allows(origin, host):
            return _VARY if self._varies else b""
        return _lines_for(origin)

    def check(self, head: Head) -> None:
        """Raise `Failure` when a page of another origin requests more than a read."""
        origin = head.headers.get("origin")
        if origin is None or head.method in SAFE_METHODS:
            return
        host = head.headers.get("host")
        if not (self._allows(origin, host) or is_same_site(origin, host)):
            raise Failure(
                "ORIGIN_NOT_ALLOWED",
                f"pages of the origin {origin[:SHOWN_CHARACTERS_MAX]!r} may not do this; add the "
                "origin to cors_origins",
            )

    def may_use_cookies(self, origin: str, base_url: str) -> bool:
        """Report whether a page may act by a cookie: one of the node itself, by scheme, host and
        port, or of an origin that is spelled out. `*` and `local` are many pages, also foreign
        ones: cookies do not tell ports apart."""
        return origin in self._with_cookies or origin.lower() == base_url.lower()

    def _allows(self, origin: str, host: str | None) -> bool:
        if self._any or origin in self._listed:
            return True
        return self._local is not None and _is_local(origin, host, self._local)


def _lines_for(origin: str) -> bytes:
    return b"Access-Control-Allow-Origin: %b\r\n" % origin.encode("latin-1") + _EXPOSE + _VARY


def is_same_site(origin: str, host: str | None) -> bool:
    """Report whether the page comes from the host and port that it requests."""
    return bool(host) and origin_address(origin) == (host or "").lower()


def _is_local(origin: str, host: str | None, hosts: Hosts) -> bool:
    """Report whether the origin's host is this node. Any page can come from an IP address, so an IP
    address must equal the requested one."""
    address = origin_address(origin)
    found = bare_host(address) if address else ""
    if not found:
        return False
    return hosts.is_own(found) or found == bare_host(host or "")
