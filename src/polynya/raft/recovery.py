"""From what the journal holds of a group to the state that a member starts with (pure; docs/formats/raft.md)."""

from __future__ import annotations

import msgspec

from polynya.base.errors import CorruptData
from polynya.raft.configuration import Configuration, decode_configuration
from polynya.raft.messages import Entry, EntryKind, HardState, Snapshot


class RestoredMember(msgspec.Struct):
    """What a member starts with. `snapshot` of index 0: a new group and its first configuration. `entries` begin at `snapshot.index + 1`, or
    earlier: what is older may be asked back by `load`. `reset`: the log of before is void and a reset must be written."""

    snapshot: Snapshot
    hard_state: HardState = HardState()
    entries: list[Entry] = []
    reset: bool = False


class Recovery:
    """Takes the frames of one group in the order of the journal, then gives the state."""

    __slots__ = ("_base", "_configured", "_entries", "_hard_state", "_seen", "departed", "group")

    def __init__(self, group: int) -> None:
        self.group = group
        self._base: tuple[int, int] | None = None  # (index, term) of the last reset
        self._entries: list[Entry] = []
        self._hard_state = HardState()
        self._configured: list[tuple[int, Configuration]] = []
        self._seen = False
        self.departed: HardState | None = None  # there was a member here, and this is what it promised

    def hard_state(self, state: HardState) -> None:
        self._seen = True
        self._hard_state = state

    def configured(self, index: int, configuration: Configuration) -> None:
        """What was in effect at an index that is committed: that of a snapshot, or 0, with which a member begins."""
        self._seen = True
        self.departed = None
        if not configuration.voters:
            self._hard_state = HardState(self._hard_state.term, self._hard_state.vote, self._hard_state.forgetful, learning=True)
        self._configured.append((index, configuration))

    def dropped(self, state: HardState) -> None:
        """There is no member here any more. What it promised counts if there is one again."""
        self._base, self._entries, self._configured = None, [], []
        self._seen = True
        self._hard_state = self.departed = state

    def reset(self, index: int, term: int) -> None:
        self._seen = True
        self._base = (index, term)
        self._entries = []

    def entry(self, entry: Entry) -> None:
        """Raises CorruptData when it leaves a hole behind it."""
        self._seen = True
        entries = self._entries
        if entries:
            first = entries[0].index
            if entry.index > entries[-1].index + 1:
                raise CorruptData(f"group {self.group}: entry {entry.index} follows entry {entries[-1].index}: the journal has a hole")
            del entries[max(entry.index - first, 0) :]
        elif self._base is not None and entry.index != self._base[0] + 1:
            raise CorruptData(f"group {self.group}: entry {entry.index} follows a reset at {self._base[0]}: the journal has a hole")
        entries.append(entry)

    @property
    def blank(self) -> bool:
        """The journal has nothing of this group."""
        return not self._seen

    def configuration_at(self, index: int, first: Configuration) -> Configuration:
        """What was in effect at the snapshot's index; `first`: what the group began with, as far as the journal does not say."""
        logged = ((entry.index, decode_configuration(entry.payload)) for entry in self._entries if entry.kind == EntryKind.CONFIGURATION)
        newest = (0, first)
        for found in (*logged, *self._configured):
            if newest[0] <= found[0] <= index:
                newest = found
        return newest[1]

    def result(self, snapshot: Snapshot) -> RestoredMember:
        """`snapshot`: the newest durable one, or that of a new group. Raises CorruptData when it does not reach what the journal begins with."""
        entries = self._entries
        if self._base is not None and self._base[0] > snapshot.index:
            raise CorruptData(f"group {self.group}: the snapshot at {self._base[0]}, which the journal goes on from, is not there")
        if entries and entries[0].index > snapshot.index + 1:
            raise CorruptData(f"group {self.group}: the journal begins at entry {entries[0].index}, the snapshot ends at {snapshot.index}")
        fits = not self._seen or self._fits(snapshot)
        kept = entries if fits else []
        last_term = kept[-1].term if kept else snapshot.term
        hard = (
            self._hard_state
            if self._hard_state.term >= last_term
            else HardState(last_term, 0, self._hard_state.forgetful, self._hard_state.learning)
        )
        return RestoredMember(snapshot, hard, kept, reset=not fits)

    def _fits(self, snapshot: Snapshot) -> bool:
        """Whether the log goes through the snapshot's last entry: else an installation was cut short, and the log is another one."""
        if self._base == (snapshot.index, snapshot.term) or snapshot.index == 0:
            return True
        entries = self._entries
        if not entries:
            return False
        place = snapshot.index - entries[0].index
        return place == -1 or (place < len(entries) and entries[place].term == snapshot.term)
