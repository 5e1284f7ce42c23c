"""Which origins a browser lets read the answers: all of them, or those of a list (the Fetch standard's CORS protocol)."""

from __future__ import annotations

from collections.abc import Iterable

from polynya.front.http.responses import CORS

ANY = "*"
_EXPOSE = CORS.partition(b"\r\n")[2]
_VARY = b"Vary: Origin\r\n"


class Cors:
    """`origins`: as browsers send them, `https://app.example.com`; `*` among them is any, none of them is none."""

    def __init__(self, origins: Iterable[str] = (ANY,)) -> None:
        known = tuple(origins)
        self._any = ANY in known
        self._lines = {origin: b"Access-Control-Allow-Origin: %b\r\n" % origin.encode("ascii") + _EXPOSE + _VARY for origin in known}

    def lines(self, origin: str | None) -> bytes:
        """The header lines of an answer to a request from this origin. An answer that depends on the origin says so to caches."""
        if self._any:
            return CORS
        return self._lines.get(origin or "", _VARY) if self._lines else b""
