"""Addresses that a server may call on behalf of others: those that the IANA registries list as
globally reachable.

`iana/` holds copies of the IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890) as of
2025-10-09: https://www.iana.org/assignments/iana-ipv4-special-registry/ and
https://www.iana.org/assignments/iana-ipv6-special-registry/. To update them, replace the files.
Python's `is_global` has a copy too, but its age and rules differ between Python releases.
"""

from __future__ import annotations

import csv
import functools
import io
import ipaddress
from importlib.resources import files

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

REGISTRIES = ("iana-ipv4-special-registry-1.csv", "iana-ipv6-special-registry-1.csv")
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # all space allocated for hosts (RFC 4291 2.4)
# RFC 6052: addresses through which an IPv6-only host reaches IPv4
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Report whether an address, and any IPv4 address embedded in it, is globally reachable. Every
    registry block that contains it must be marked globally reachable. `N/A` counts as no, and
    exceptions inside a blocked block are ignored."""
    if address.is_multicast or not all(
        reachable for network, reachable in special_blocks() if address in network
    ):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    carried = _carried(address)
    return is_public(carried) if carried is not None else address in GLOBAL_UNICAST


@functools.cache
def special_blocks() -> tuple[tuple[Network, bool], ...]:
    """Read both registries: each block, and True if it is globally reachable."""
    found = []
    for name in REGISTRIES:
        text = files("polynya.subscriptions").joinpath("iana", name).read_text(encoding="utf-8")
        for row in csv.DictReader(io.StringIO(text)):
            reachable = _without_note(row["Globally Reachable"]) == "True"
            found += [
                (ipaddress.ip_network(_without_note(block)), reachable)
                for block in row["Address Block"].split(",")
            ]
    return tuple(found)


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which a translator or tunnel forwards packets for this address."""
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _without_note(text: str) -> str:
    """Return a field without its footnote number, as in `False [1]`."""
    return text.partition("[")[0].strip()
