"""The owner of a stream among nodes: rendezvous hashing. Metadata and admission use this one
function: two answers would send clients back and forth without end.

A node that joins takes streams from all others and moves nothing else. One that leaves gives its
streams to all others. Correctness never depends on the owner: every node takes every append.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

_MASK = (1 << 64) - 1


def owner(name: str, nodes: Iterable[int]) -> int:
    """Return the node that owns the stream of this canonical name; 0 without nodes."""
    data = name.encode()
    key = crc32(data) << 32 | crc32(data, 0x9E3779B9)
    return max(((_weight(key, node), node) for node in nodes), default=(0, 0))[1]


def _weight(key: int, node: int) -> int:
    """Mix a key and a node's number (the finalizer of MurmurHash3, 64 bits)."""
    found = key ^ (node * 0x9E3779B97F4A7C15 & _MASK)
    found = (found ^ found >> 33) * 0xFF51AFD7ED558CCD & _MASK
    found = (found ^ found >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return found ^ found >> 33
