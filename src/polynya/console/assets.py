"""The console's files, by the path below `/console/`: content types, ETags and the
Content-Security-Policy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files

import msgspec

from polynya.wire.headers import none_match

INDEX = "index.html"
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_ALWAYS = (
    ("Content-Security-Policy", POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    (
        "Cache-Control",
        "no-cache",
    ),  # cached but revalidated: an upgraded server's page must not run on old modules
)


class AssetResponse(msgspec.Struct, frozen=True):
    """A response for a front to send; `body` is empty for 304, 308 and 405."""

    status: int
    content_type: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""


class Asset(msgspec.Struct, frozen=True):
    """One file of the console."""

    content_type: str
    etag: str
    body: bytes


class Assets:
    """All files of the console, in memory. Only names in this table are served, whatever the
    path."""

    def __init__(self) -> None:
        folder = files("polynya.console") / "static"
        self._assets = {
            file.name: _asset(file.name, file.read_bytes())
            for file in folder.iterdir()
            if _ending(file.name) in TYPES
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._assets)

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> AssetResponse | None:
        """Return the response for a file, or None if it does not exist. `path` follows `/console/`;
        `headers` are in lower case."""
        asset = self._assets.get(path or INDEX)
        if asset is None:
            return None
        if method not in ("GET", "HEAD"):
            return AssetResponse(405, "", (("Allow", "GET, HEAD"),))
        shown = (*_ALWAYS, ("ETag", asset.etag))
        if none_match(headers.get("if-none-match"), asset.etag):
            return AssetResponse(304, "", shown)
        return AssetResponse(200, asset.content_type, shown, asset.body)


def to_folder() -> AssetResponse:
    """Redirect `/console` to `/console/`, to which the page's links are relative. The target is
    relative for proxies that add a path."""
    return AssetResponse(308, "", (("Location", "console/"), ("Cache-Control", "no-cache")))


def _asset(name: str, body: bytes) -> Asset:
    return Asset(TYPES[_ending(name)], f'"{hashlib.sha256(body).hexdigest()[:32]}"', body)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
