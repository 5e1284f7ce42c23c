"""Payload to and from clients that name their zone, by zone."""

from __future__ import annotations

ZONES_MAX = 64  # names that clients may choose freely; further ones are not counted


class ClientTraffic:
    """The bytes of one front. `came` and `went` only grow."""

    def __init__(self) -> None:
        self.came: dict[str, int] = {}  # from clients
        self.went: dict[str, int] = {}  # to clients

    def receive(self, zone: str, size: int) -> None:
        """Count payload from a client of a zone."""
        _add(self.came, zone, size)

    def send(self, zone: str, size: int) -> None:
        """Count payload to a client of a zone."""
        _add(self.went, zone, size)


def _add(counts: dict[str, int], zone: str, size: int) -> None:
    if zone in counts or len(counts) < ZONES_MAX:
        counts[zone] = counts.get(zone, 0) + size
