"""Restores the initial state of a member from its journal records. Pure code
(docs/formats/raft.md)."""

from __future__ import annotations

import msgspec

from polynya.base.errors import CorruptData
from polynya.raft.configuration import Configuration, decode_configuration
from polynya.raft.messages import Entry, EntryKind, HardState, Snapshot


class RestoredMember(msgspec.Struct):
    """The initial state of a member. A `snapshot` of index 0 is a new group with its first
    configuration. `entries` begin at or before `snapshot.index + 1`; older ones may be read with
    `load`. `reset`: the previous log is invalid, and a reset must be written."""

    snapshot: Snapshot
    hard_state: HardState = HardState()
    entries: list[Entry] = []
    reset: bool = False


class Recovery:
    """A builder of the state of one group: feed it the group's frames in journal order, then call
    `result`."""

    __slots__ = ("_base", "_configured", "_entries", "_hard_state", "_seen", "departed", "group")

    def __init__(self, group: int) -> None:
        self.group = group
        self._base: tuple[int, int] | None = None  # (index, term) of the last reset
        self._entries: list[Entry] = []
        self._hard_state = HardState()
        self._configured: list[tuple[int, Configuration]] = []
        self._seen = False
        self.departed: HardState | None = None  # the promises of a replica that was dropped

    def hard_state(self, state: HardState) -> None:
        self._seen = True
        self._hard_state = state

    def configured(self, index: int, configuration: Configuration) -> None:
        """Record the configuration at a committed index: that of a snapshot, or 0 for a new
        member."""
        self._seen = True
        self.departed = None
        if not configuration.voters:
            self._hard_state = HardState(
                self._hard_state.term,
                self._hard_state.vote,
                self._hard_state.amnesiac,
                learning=True,
            )
        self._configured.append((index, configuration))

    def dropped(self, state: HardState) -> None:
        """Record that the replica was dropped. Its promises bind a later replica on this node."""
        self._base, self._entries, self._configured = None, [], []
        self._seen = True
        self._hard_state = self.departed = state

    def reset(self, index: int, term: int) -> None:
        self._seen = True
        self._base = (index, term)
        self._entries = []

    def entry(self, entry: Entry) -> None:
        """Add an entry. Raises CorruptData if entries before it are missing."""
        self._seen = True
        entries = self._entries
        if entries:
            first = entries[0].index
            if entry.index > entries[-1].index + 1:
                raise CorruptData(
                    f"group {self.group}: entry {entry.index} follows entry {entries[-1].index}: "
                    "entries are missing from the journal"
                )
            del entries[max(entry.index - first, 0) :]
        elif self._base is not None and entry.index != self._base[0] + 1:
            raise CorruptData(
                f"group {self.group}: entry {entry.index} follows a reset at {self._base[0]}: "
                "entries are missing from the journal"
            )
        entries.append(entry)

    @property
    def blank(self) -> bool:
        """Return whether the journal has nothing of this group."""
        return not self._seen

    def configuration_at(self, index: int, first: Configuration) -> Configuration:
        """Return the configuration at the snapshot's index. `first` is the group's first
        configuration, used if the journal has none."""
        logged = (
            (entry.index, decode_configuration(entry.payload))
            for entry in self._entries
            if entry.kind == EntryKind.CONFIGURATION
        )
        newest = (0, first)
        for found in (*logged, *self._configured):
            if newest[0] <= found[0] <= index:
                newest = found
        return newest[1]

    def result(self, snapshot: Snapshot) -> RestoredMember:
        """Return the restored state. `snapshot` is the newest durable one, or that of a new group.
        Raises CorruptData if entries between the snapshot and the journal are missing."""
        entries = self._entries
        if self._base is not None and self._base[0] > snapshot.index:
            raise CorruptData(
                f"group {self.group}: the snapshot at {self._base[0]}, on which the journal "
                "builds, is missing"
            )
        if entries and entries[0].index > snapshot.index + 1:
            raise CorruptData(
                f"group {self.group}: the journal begins at entry {entries[0].index}, the "
                f"snapshot ends at {snapshot.index}"
            )
        fits = not self._seen or self._fits(snapshot)
        kept = entries if fits else []
        last_term = kept[-1].term if kept else snapshot.term
        hard = (
            self._hard_state
            if self._hard_state.term >= last_term
            else HardState(last_term, 0, self._hard_state.amnesiac, self._hard_state.learning)
        )
        return RestoredMember(snapshot, hard, kept, reset=not fits)

    def _fits(self, snapshot: Snapshot) -> bool:
        """Return whether the log contains the snapshot's last entry. If not, a crash interrupted an
        installation, and the log is a different one."""
        if self._base == (snapshot.index, snapshot.term) or snapshot.index == 0:
            return True
        entries = self._entries
        if not entries:
            return False
        position = snapshot.index - entries[0].index
        return position == -1 or (
            position < len(entries) and entries[position].term == snapshot.term
        )
