"""URLs of servers as users write them. No HTTP library is loaded for this."""

from __future__ import annotations

from urllib.parse import urlsplit

import click

from polynya.cli.remote.targets import SERVER_DEFAULT


def server_url(server: str, origin: str = "--server") -> str:
    """The URL without a slash at its end; `HOST:PORT` is completed. Raises click.UsageError."""
    url = server if "://" in server else f"http://{server}"
    try:
        parsed = urlsplit(url)
        good = parsed.scheme in ("http", "https") and bool(parsed.hostname) and not parsed.query and not parsed.fragment
        _ = parsed.port  # raises ValueError for one that is none
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise click.UsageError(f"{origin} {server!r} is no URL; it looks like {SERVER_DEFAULT}")
    return url.rstrip("/")


def server_urls(servers: str, origin: str = "--server") -> list[str]:
    """The same of one or several, with commas between them. Raises click.UsageError."""
    found = list(dict.fromkeys(server_url(part.strip(), origin) for part in servers.split(",") if part.strip()))
    if not found:
        raise click.UsageError(f"{origin} names no server; it looks like {SERVER_DEFAULT}")
    if len({urlsplit(url).scheme for url in found}) > 1:
        raise click.UsageError(f"{origin}: nodes that act as one are all https, or all http")
    return found


def is_loopback(url: str) -> bool:
    """Whether the URL names this machine."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
