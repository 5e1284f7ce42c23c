"""Hosts as `Host`, `Origin` and URLs spell them, in the one spelling in which they can be compared."""

from __future__ import annotations

import ipaddress
import re

_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[^\]]*)?)\]|([^:\[\]@/]+))(?::[0-9]*)?", re.ASCII)
_ORIGIN = re.compile(r"https?://([^/?#@\\]+)", re.ASCII | re.IGNORECASE)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def bare_host(value: str) -> str:
    """The host of `HOST` or `HOST:PORT`: lower case, no brackets, no dot at the end. Empty when there is none."""
    match = _HOST_PORT.fullmatch(value)
    if match is None:
        return ""
    bracketed, plain = match.groups()
    host = (bracketed or plain.removesuffix(".")).lower()
    address = address_of(host)
    if bracketed and (address is None or ":" not in host):
        return ""
    return host if address is None else str(address)


def origin_place(origin: str) -> str:
    """`HOST` or `HOST:PORT` of a page's origin, in lower case. Empty when the page came from no host: `null`, an extension."""
    match = _ORIGIN.fullmatch(origin)
    return match[1].lower() if match else ""


def address_of(host: str) -> Address | None:
    """The IP address that a bare host spells; None for a name. An IPv4 address inside an IPv6 one is the former."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_this_machine(host: str) -> bool:
    """Whether browsers look for a bare host on their own machine alone: `localhost`, a name below it, a loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = address_of(host)
    return address is not None and address.is_loopback
