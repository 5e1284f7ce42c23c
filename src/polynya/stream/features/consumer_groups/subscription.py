"""The topics in a consumer's subscription: the metadata of protocol type `consumer`."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error

_HEAD = Struct(">hi")  # version, number of topics
_LENGTH = Struct(">h")
_COUNT = Struct(">i")


def topics_of(subscriptions: Iterable[bytes]) -> set[str]:
    """Return the names of the topics in these subscriptions; other metadata has none."""
    found = set[str]()
    for data in subscriptions:
        try:
            found |= set(_topics(data))
        except (error, UnicodeDecodeError):
            continue  # another type of protocol has its own format
    return found


def _topics(data: bytes) -> list[str]:
    _, count = _HEAD.unpack_from(data)
    at, names = _HEAD.size, []
    for _ in range(count if count <= len(data) else 0):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(data):
            return []
        names.append(data[at : at + length].decode())
        at += length
    return names


def assigned_in(data: bytes) -> dict[str, list[int]]:
    """Return the partitions by topic in a consumer's assignment; another format has none."""
    found: dict[str, list[int]] = {}
    try:
        _, count = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(min(count, len(data))):
            (length,) = _LENGTH.unpack_from(data, at)
            name = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            (numbers,) = _COUNT.unpack_from(data, at)
            found[name] = [
                number for (number,) in _COUNT.iter_unpack(data[at + 4 : at + 4 + 4 * numbers])
            ]
            at += 4 + 4 * numbers
    except (error, UnicodeDecodeError):
        return {}
    return found
