"""Parsing of server URLs, without an HTTP library."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import click

from polynya.cli.remote.targets import SERVER_DEFAULT

_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%[\w.-]+)?")  # a name, or an address with its zone


def server_url(server: str, origin: str = "--server") -> str:
    """Return the URL without a trailing slash; completes `HOST:PORT`. Raises click.UsageError."""
    url = server if "://" in server else f"http://{server}"
    try:
        parsed = urlsplit(url)
        good = (
            parsed.scheme in ("http", "https")
            and _HOST.fullmatch(parsed.hostname or "") is not None
            and not parsed.query
            and not parsed.fragment
        )
        _ = parsed.port  # raises ValueError for an invalid port
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise click.UsageError(
            f"{origin} {server!r} is not a URL; expected a form like {SERVER_DEFAULT}"
        )
    return url.rstrip("/")


def server_urls(servers: str, origin: str = "--server") -> list[str]:
    """Parse one or several URLs separated by commas. Raises click.UsageError."""
    found = list(
        dict.fromkeys(
            server_url(part.strip(), origin) for part in servers.split(",") if part.strip()
        )
    )
    if not found:
        raise click.UsageError(
            f"{origin} contains no server; expected a form like {SERVER_DEFAULT}"
        )
    if len({urlsplit(url).scheme for url in found}) > 1:
        raise click.UsageError(f"{origin}: the nodes of a cluster are all https or all http")
    return found


def is_loopback(url: str) -> bool:
    """Return True if the URL names this machine."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
