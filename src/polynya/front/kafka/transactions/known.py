"""The numbers of open transactions, as one core knows them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from polynya.base.limits import TRANSACTION_NUMBERS_MAX

KNOWN_SECONDS = 60.0  # streams refuse what has ended for ten times as long
Key = tuple[str, int, int]  # transactional id, producer, epoch


class KnownTransaction:
    """The number of a producer's open transaction, and the participants that are known here."""

    __slots__ = ("groups", "key", "number", "since", "streams")

    def __init__(self, key: Key, number: int, since: float) -> None:
        self.key = key
        self.number = number
        self.since = since
        self.streams: dict[str, int] = {}  # name -> uid
        self.groups: set[str] = set()


class TransactionNumbers:
    """The known numbers of one core, by transactional id, the longest known first."""

    def __init__(self) -> None:
        self._known: dict[str, KnownTransaction] = {}

    def find(self, key: Key) -> KnownTransaction | None:
        """Return what is known of a producer's transaction, and is fresh."""
        known = self._known.get(key[0])
        if known is None or known.key != key:
            return None
        if asyncio.get_running_loop().time() - known.since > KNOWN_SECONDS:
            del self._known[key[0]]
            return None
        return known

    def note(
        self, key: Key, number: int, streams: dict[str, int], groups: Iterable[str] = ()
    ) -> KnownTransaction:
        """Keep what the coordinator answered."""
        known = self._known.get(key[0])
        if known is None or (known.key, known.number) != (key, number):
            self._known.pop(key[0], None)
            known = KnownTransaction(key, number, asyncio.get_running_loop().time())
            self._known[key[0]] = known
            if len(self._known) > TRANSACTION_NUMBERS_MAX:
                del self._known[next(iter(self._known))]
        known.streams |= streams
        known.groups |= set(groups)
        return known

    def forget(self, key: Key) -> None:
        """Forget a transaction that ends."""
        known = self._known.get(key[0])
        if known is not None and known.key == key:
            del self._known[key[0]]
