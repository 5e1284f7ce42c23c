"""The names of everything in a group's state that changed since its last snapshot, collected while
commands are applied."""

from __future__ import annotations

from polynya.base.limits import ATTEMPTS_REMEMBERED_MAX

_COUNTER = (1 << 48) - 1
_SETS = (
    "streams",
    "evicted",
    "messages",
    "held",
    "packs",
    "subscriptions",
    "topics",
    "consumer_groups",
    "transactions",
    "writers",
)


class Changes:
    """The changes since a snapshot. A name here without an entry in the machine becomes a tombstone
    in the next snapshot.

    Sets of changed names cost nothing for an idle stream; a mark on every stream would. The parts
    not named here are small, and every snapshot contains them whole."""

    __slots__ = (*_SETS, "attempts", "born", "released", "watched")

    def __init__(self, born: int = 0) -> None:
        """Start with no changes. `born`: the machine's uid counter. Streams created later are in no
        snapshot and need no tombstone."""
        self.born = born
        self.streams: set[int] = set()  # uids
        self.evicted: set[str] = set()  # names of streams
        self.messages: set[int] = set()  # numbers of outbox messages
        self.held: set[str] = set()  # packs
        self.packs: set[str] = set()
        self.subscriptions: set[str] = set()  # that this group owns
        self.topics: set[str] = set()
        self.consumer_groups: set[str] = set()
        self.transactions: set[str] = set()
        self.writers: set[str] = set()
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

    def take(self, born: int) -> Changes:
        """Return the changes so far, and start again with none."""
        taken = Changes(born)
        for name in Changes.__slots__:
            mine = getattr(self, name)
            setattr(self, name, getattr(taken, name))
            setattr(taken, name, mine)
        return taken

    def put_back(self, taken: Changes) -> None:
        """Merge back the changes `taken` for a snapshot that was not written."""
        self.born = taken.born
        for name in _SETS:
            getattr(self, name).update(getattr(taken, name))
        self.attempts[:0] = taken.attempts
        self.released[:0] = taken.released
        self.watched = self.watched or taken.watched

    def include(self, later: Changes) -> None:
        """Add later changes."""
        for name in _SETS:
            getattr(self, name).update(getattr(later, name))
        self.attempts += later.attempts
        self.released += later.released
        del self.attempts[: -2 * ATTEMPTS_REMEMBERED_MAX]
        del self.released[: -2 * ATTEMPTS_REMEMBERED_MAX]
        self.watched = self.watched or later.watched

    def __bool__(self) -> bool:
        """Report whether anything changed."""
        sets = any(getattr(self, name) for name in _SETS)
        return sets or bool(self.attempts or self.released or self.watched)


class SinceCopy:
    """The changes to a group since its state was copied to the object store."""

    __slots__ = ("base", "changes", "left", "recent")

    def __init__(self, left: int) -> None:
        """Start at the moment of a copy, right after the changes before were taken."""
        self.base = -1  # index of the copy, once the store has it
        self.changes = Changes()
        self.recent: set[int] = set()  # uids of streams, since the last delta of the copy
        self.left = left  # `DisklessStreams.left` at the last delta of the copy


class KeptChanges:
    """The changes of a machine that its fresh `Changes` no longer has: those that were put back,
    and those since the last copy."""

    __slots__ = ("returned", "since_copy")

    def __init__(self) -> None:
        self.returned: Changes | None = None
        self.since_copy: SinceCopy | None = None  # None: no copy is the base of a delta

    def take(self, fresh: Changes) -> Changes:
        """Return all changes that no snapshot has. Fresh ones are noted for the next delta of a
        copy."""
        if self.since_copy is not None:
            self.since_copy.changes.include(fresh)
            self.since_copy.recent |= fresh.streams
        if self.returned is not None:
            fresh.put_back(self.returned)
            self.returned = None
        return fresh

    def put_back(self, taken: Changes) -> None:
        """Keep changes that were taken for a snapshot which was not written."""
        if self.returned is not None:
            taken.put_back(self.returned)
        self.returned = taken

    def join(self, before: SinceCopy | None) -> None:
        """Go on from the copy before, because the last one was not stored."""
        since = self.since_copy
        if since is before:
            return
        if before is None or since is None:
            self.since_copy = None
            return
        before.changes.include(since.changes)
        before.recent |= since.recent
        self.since_copy = before

    def __bool__(self) -> bool:
        """Report whether changes were put back."""
        return bool(self.returned)

    @property
    def streams(self) -> int:
        """The number of changed streams that were put back."""
        return len(self.returned.streams) if self.returned is not None else 0


def remember(known: dict[str, None], key: str) -> bool:
    """Add the key, evicting the oldest beyond the limit. Return False if it was present."""
    if key in known:
        return False
    known[key] = None
    if len(known) > ATTEMPTS_REMEMBERED_MAX:
        del known[next(iter(known))]
    return True


def keys_of(changes: Changes) -> list[int | str]:
    """Return the keys of the changed streams: uids, then names of evicted ones."""
    return [*sorted(changes.streams), *sorted(changes.evicted)]
