"""What a core remembers of the snapshots that are on its disk, without their bodies."""

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
_LINK = Struct("<IIQQ")  # CRC of the body, 1 if it is a delta, its length, index of what it builds on
_HOT_BYTES = 12  # before each payload in a transfer: place, length


class SnapshotChain(msgspec.Struct):
    """Of one group. What follows from the links and the machine at their time."""

    links: tuple[SnapshotLink, ...]
    needed: int | None  # the lowest place in the journal that the chain names; None: none
    hot_bytes: int  # that travel beside it

    @property
    def index(self) -> int:
        return self.links[-1].index

    @property
    def bytes(self) -> int:
        return sum(link.length for link in self.links)

    @property
    def transfer(self) -> tuple[int, int]:
        """Size and identity of what is sent to a member that is far behind (docs/formats/snapshots.md, Transfer)."""
        return len(transfer_head(self.links)) + self.bytes + self.hot_bytes, identity_of(self.links)


def transfer_head(links: Sequence[SnapshotLink]) -> bytes:
    """What a transfer begins with: its CRC is its identity, and it has those of the bodies."""
    return _COUNT.pack(len(links)) + b"".join([_LINK.pack(link.crc, link.delta, link.length, link.base) for link in links])


def identity_of(links: Sequence[SnapshotLink]) -> int:
    """Of a transfer of these."""
    return int(crc32c(transfer_head(links)))


def links_of(count: bytes, links: bytes) -> list[SnapshotLink]:
    """Those of a head. Raises struct.error."""
    found = [SnapshotLink(0, 0, 0, length, crc, bool(delta), base) for crc, delta, length, base in _LINK.iter_unpack(links)]
    if _COUNT.unpack(count) != (len(found),):
        raise struct.error("another number of links than it says")
    return found


def hot_bytes_of(machine: Machine) -> int:
    """Of the hot payload of a transfer."""
    return sum([len(hot) for _, hot in machine.flush_candidates()]) * _HOT_BYTES + machine.hot_bytes
