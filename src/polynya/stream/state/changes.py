"""The names of everything in a group's state that changed since its last snapshot, collected while
commands are applied."""

from __future__ import annotations

from polynya.base.limits import ATTEMPTS_REMEMBERED_MAX

_COUNTER = (1 << 48) - 1


class Changes:
    """The changes since a snapshot. A name here without an entry in the machine becomes a tombstone
    in the next snapshot.

    Sets of changed names cost nothing for an idle stream; a mark on every stream would. The parts
    not named here are small, and every snapshot contains them whole."""

    __slots__ = (
        "attempts",
        "born",
        "consumer_groups",
        "evicted",
        "held",
        "homes",
        "messages",
        "packs",
        "released",
        "streams",
        "topics",
        "watched",
    )

    def __init__(self, born: int = 0) -> None:
        """Start with no changes. `born`: the machine's uid counter. Streams created later are in no
        snapshot and need no tombstone."""
        self.born = born
        self.streams: set[int] = set()  # uids
        self.evicted: set[str] = set()  # names of streams
        self.messages: set[int] = set()  # numbers of outbox messages
        self.held: set[str] = set()  # packs
        self.packs: set[str] = set()
        self.homes: set[str] = set()  # subscriptions
        self.topics: set[str] = set()
        self.consumer_groups: set[str] = set()
        self.attempts: list[str] = []  # remembered since, in order; `released` as well
        self.released: list[str] = []
        # True writes all registrations, tombstones and dropped incarnations of subscriptions
        self.watched = False

    def gone(self, uid: int) -> None:
        """Record that a stream was removed."""
        if uid & _COUNTER > self.born:
            self.streams.discard(uid)
        else:
            self.streams.add(uid)

    def remember(self, known: list[str], key: str) -> None:
        """Append to `attempts` or `released`."""
        known.append(key)
        # the machine has evicted the earlier ones by now
        if len(known) >= 2 * ATTEMPTS_REMEMBERED_MAX:
            del known[:-ATTEMPTS_REMEMBERED_MAX]

    def put_back(self, taken: Changes) -> None:
        """Merge back the changes `taken` for a snapshot that was not written."""
        self.born = taken.born
        for name in (
            "streams",
            "evicted",
            "messages",
            "held",
            "packs",
            "homes",
            "topics",
            "consumer_groups",
        ):
            getattr(self, name).update(getattr(taken, name))
        self.attempts[:0] = taken.attempts
        self.released[:0] = taken.released
        self.watched = self.watched or taken.watched

    def __bool__(self) -> bool:
        """Report whether anything changed."""
        return self.watched or any(
            (
                self.streams,
                self.evicted,
                self.messages,
                self.held,
                self.packs,
                self.homes,
                self.topics,
                self.consumer_groups,
                self.attempts,
                self.released,
            ),
        )


def keys_of(changes: Changes) -> list[int | str]:
    """Return the keys of the changed streams: uids, then names of evicted ones."""
    return [*sorted(changes.streams), *sorted(changes.evicted)]
