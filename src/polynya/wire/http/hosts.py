"""Normalization of hosts from `Host`, `Origin` and URLs, so that they can be compared."""

from __future__ import annotations

import ipaddress
import re

_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[^\]]*)?)\]|([^:\[\]@/]+))(?::[0-9]*)?", re.ASCII)
_ORIGIN = re.compile(r"https?://([^/?#@\\]+)", re.ASCII | re.IGNORECASE)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def bare_host(value: str) -> str:
    """Return the host of `HOST` or `HOST:PORT`: lower case, no brackets, no trailing dot. Empty if
    there is none."""
    match = _HOST_PORT.fullmatch(value)
    if match is None:
        return ""
    bracketed, plain = match.groups()
    host = (bracketed or plain.removesuffix(".")).lower()
    address = address_of(host)
    if bracketed and (address is None or ":" not in host):
        return ""
    return host if address is None else str(address)


def origin_address(origin: str) -> str:
    """Return `HOST` or `HOST:PORT` of an origin, in lower case. Empty for an origin without a host,
    such as `null` or an extension."""
    match = _ORIGIN.fullmatch(origin)
    return match[1].lower() if match else ""


def address_of(host: str) -> Address | None:
    """Return the IP address that a bare host represents; None for a name. IPv4-mapped IPv6
    addresses become IPv4."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_this_machine(host: str) -> bool:
    """Return whether browsers resolve a bare host only to their own machine: `localhost`, its
    subdomains, or a loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = address_of(host)
    return address is not None and address.is_loopback
