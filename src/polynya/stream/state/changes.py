"""What of a group's state is not in its snapshots yet: names only, gathered while commands are applied (F12)."""

from __future__ import annotations

from polynya.base.limits import ATTEMPTS_REMEMBERED_MAX

_COUNTER = (1 << 48) - 1


class Changes:
    """Since a snapshot was taken. What is named here and is not in the machine is gone: the next snapshot has a tombstone of it.

    Sets of what changed, not a mark at every stream: an idle stream costs nothing. Everything that is not named here is small, and is in
    every snapshot whole.
    """

    __slots__ = ("attempts", "born", "evicted", "held", "homes", "messages", "packs", "released", "streams", "watched")

    def __init__(self, born: int = 0) -> None:
        """`born`: the machine's counter of uids; a stream of a later one is in no snapshot, and needs no tombstone."""
        self.born = born
        self.streams: set[int] = set()  # uids
        self.evicted: set[str] = set()  # names of streams
        self.messages: set[int] = set()  # of the outbox
        self.held: set[str] = set()  # packs
        self.packs: set[str] = set()
        self.homes: set[str] = set()  # subscriptions
        self.attempts: list[str] = []  # remembered since, in order; so are `released`
        self.released: list[str] = []
        self.watched = False  # the registrations, graves and dropped lives of subscriptions: all of them are written

    def gone(self, uid: int) -> None:
        """A stream that is no more."""
        if uid & _COUNTER > self.born:
            self.streams.discard(uid)
        else:
            self.streams.add(uid)

    def remember(self, known: list[str], key: str) -> None:
        """Behind one of the two lists."""
        known.append(key)
        if len(known) >= 2 * ATTEMPTS_REMEMBERED_MAX:  # those before are forgotten by now
            del known[:-ATTEMPTS_REMEMBERED_MAX]

    def put_back(self, taken: Changes) -> None:
        """The snapshot that was to have `taken` was not written."""
        self.born = taken.born
        for name in ("streams", "evicted", "messages", "held", "packs", "homes"):
            getattr(self, name).update(getattr(taken, name))
        self.attempts[:0] = taken.attempts
        self.released[:0] = taken.released
        self.watched = self.watched or taken.watched

    def __bool__(self) -> bool:
        """Whether anything is named."""
        return self.watched or any(
            (self.streams, self.evicted, self.messages, self.held, self.packs, self.homes, self.attempts, self.released),
        )


def keys_of(changes: Changes) -> list[int | str]:
    """The streams that changed: uids, and names of those that are evicted."""
    return [*sorted(changes.streams), *sorted(changes.evicted)]
