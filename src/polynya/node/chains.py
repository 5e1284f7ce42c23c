"""What a core remembers of the snapshots that are on its disk, without their bodies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from google_crc32c import value as crc32c

from polynya.stream.machine import Machine
from polynya.wal.snapshots import Link

_HOT_BYTES = 12  # before each payload in a transfer: place, length


class Chain(msgspec.Struct):
    """Of one group. What follows from the links and the machine at their time."""

    links: tuple[Link, ...]
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
        return transfer_head_bytes(len(self.links)) + self.bytes + self.hot_bytes, identity_of(self.links)


def transfer_head_bytes(links: int) -> int:
    """Of a transfer, before the bodies."""
    return 4 + 24 * links


def hot_bytes_of(machine: Machine) -> int:
    """Of the hot payload of a transfer."""
    return sum([len(hot) for _, hot in machine.flush_candidates()]) * _HOT_BYTES + machine.hot_bytes


def identity_of(links: Sequence[Link]) -> int:
    """Of a base, the CRC of its body; of a chain, that of the CRCs of its bodies."""
    if len(links) == 1 and not links[0].delta:
        return links[0].crc
    return int(crc32c(b"".join(link.crc.to_bytes(4, "little") for link in links)))
