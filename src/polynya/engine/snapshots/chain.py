"""The metadata that a core keeps of its snapshots on disk, without their bodies."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct

import msgspec
from google_crc32c import value as crc32c

from polynya.stream.machine import Machine
from polynya.wal.snapshots import SnapshotLink

COUNT_BYTES = 4
LINK_BYTES = 24
_COUNT = Struct("<I")
_LINK = Struct("<IIQQ")  # CRC of the body, 1 if it is a delta, its length, index of its base
_HOT_BYTES = 12  # before each payload in a transfer: position, length


class SnapshotChain(msgspec.Struct):
    """The snapshot chain of one group, and values derived from it."""

    links: tuple[SnapshotLink, ...]
    needed: int | None  # the lowest journal position that the chain refers to, or None
    hot_bytes: int  # of the payload sent with the chain

    @property
    def index(self) -> int:
        return self.links[-1].index

    @property
    def bytes(self) -> int:
        return sum(link.length for link in self.links)

    @property
    def transfer(self) -> tuple[int, int]:
        """Return the size and the identity of the transfer (docs/formats/snapshots.md,
        Transfer)."""
        return len(transfer_head(self.links)) + self.bytes + self.hot_bytes, identity_of(self.links)


def transfer_head(links: Sequence[SnapshotLink]) -> bytes:
    """Return the head of a transfer. It holds the CRCs of the bodies; its own CRC is the
    identity."""
    return _COUNT.pack(len(links)) + b"".join(
        [_LINK.pack(link.crc, link.delta, link.length, link.base) for link in links]
    )


def identity_of(links: Sequence[SnapshotLink]) -> int:
    """Return the identity of a transfer of these links."""
    return int(crc32c(transfer_head(links)))


def links_of(count: bytes, links: bytes) -> list[SnapshotLink]:
    """Decode the links of a head. Raises struct.error."""
    found = [
        SnapshotLink(0, 0, 0, length, crc, bool(delta), base)
        for crc, delta, length, base in _LINK.iter_unpack(links)
    ]
    if _COUNT.unpack(count) != (len(found),):
        raise struct.error("the number of links differs from the header")
    return found


def hot_bytes_of(machine: Machine) -> int:
    """Return the bytes of hot payload in a transfer."""
    return (
        sum([len(hot) for _, hot in machine.directory.flush_candidates()]) * _HOT_BYTES
        + machine.directory.hot_bytes
    )
