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
        self._highs = array("Q", bytes(8 * self._slots))
        self._lows = array("Q", bytes(8 * self._slots))
        self._records = array("Q", bytes(8 * self._slots))  # + 1; 0: the slot is free
        self.left = int(self._slots * _LOAD)  # keys that it has room for

    def put(self, key: bytes, record: int) -> bool:
        """Set the newest record of a key. False: the map is full."""
        low, high = _HASH.unpack(blake2b(key, digest_size=16, key=self._seed).digest())
        at = low % self._slots
        records = self._records
        if records[at] and (self._lows[at] != low or self._highs[at] != high):
            at = self._find(at, low, high)
        if not records[at]:
            if not self.left:
                return False
            self.left -= 1
            self._lows[at], self._highs[at] = low, high
        records[at] = record + 1
        return True

    def newest(self, key: bytes) -> int:
        """Return the newest record of a key, or -1."""
        low, high = _HASH.unpack(blake2b(key, digest_size=16, key=self._seed).digest())
        at = low % self._slots
        if self._records[at] and (self._lows[at] != low or self._highs[at] != high):
            at = self._find(at, low, high)
        record: int = self._records[at]
        return record - 1

    def _find(self, at: int, low: int, high: int) -> int:
        """Return the slot of a key behind another one, or the free one for it."""
        lows, highs, records, slots = self._lows, self._highs, self._records, self._slots
        while records[at] and (lows[at] != low or highs[at] != high):
            at += 1
            if at == slots:
                at = 0
        return at
