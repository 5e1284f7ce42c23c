"""The partition of a key, as Kafka's clients choose it: murmur2, positive, modulo the partitions."""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of records with this key (Kafka's `Utils.murmur2`)."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    size = len(data)
    found = _SEED ^ size
    for at in range(0, size & ~3, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _WORD
        word = (word ^ word >> 24) * _M & _WORD
        found = (found * _M & _WORD) ^ word
    rest = data[size & ~3 :]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * _M & _WORD
    found = (found ^ found >> 13) * _M & _WORD
    return found ^ found >> 15
