"""A map of keys to their newest records: open addressing on arrays, 24 bytes a slot."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import Struct

SLOT_BYTES = 24
SLOTS_MIN = 1024
_LOAD = 0.75
_HASH = Struct("<QQ")


class KeyMap:
    """A map with a fixed number of slots. Keys are compared by a keyed hash of 16 bytes, so a client
    cannot choose two that are the same."""

    def __init__(self, slots: int, seed: bytes) -> None:
        self._slots = max(SLOTS_MIN, slots)
        self._seed = seed
        self._high = array("Q", bytes(8 * self._slots))
        self._low = array("Q", bytes(8 * self._slots))
        self._records = array("Q", bytes(8 * self._slots))  # + 1; 0: the slot is free
        self.left = int(self._slots * _LOAD)  # keys that it has room for

    def put(self, key: bytes, record: int) -> bool:
        """Set the newest record of a key. False: the map is full."""
        low, high = _HASH.unpack(blake2b(key, digest_size=16, key=self._seed).digest())
        at = self._find(low, high)
        if not self._records[at]:
            if not self.left:
                return False
            self.left -= 1
            self._low[at], self._high[at] = low, high
        self._records[at] = record + 1
        return True

    def newest(self, key: bytes) -> int:
        """Return the newest record of a key, or -1."""
        low, high = _HASH.unpack(blake2b(key, digest_size=16, key=self._seed).digest())
        return self._records[self._find(low, high)] - 1

    def _find(self, low: int, high: int) -> int:
        """Return the slot of a key, or the free one for it."""
        lows, highs, records, slots = self._low, self._high, self._records, self._slots
        at = low % slots
        while records[at] and (lows[at] != low or highs[at] != high):
            at += 1
            if at == slots:
                at = 0
        return at
