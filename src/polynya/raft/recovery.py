"""From what the journal holds of a group to the state that a member starts with (pure; docs/formats/raft.md)."""

from __future__ import annotations

import msgspec

from polynya.base.errors import CorruptData
from polynya.raft.messages import Entry, HardState, Snapshot


class Restored(msgspec.Struct):
    """What a member starts with. `snapshot` of index 0: a new group and its first configuration. `entries` begin at `snapshot.index + 1`, or
    earlier: what is older may be asked back by `load`. `reset`: the log of before is void and a reset must be written."""

    snapshot: Snapshot
    hard_state: HardState = HardState()
    entries: list[Entry] = []
    reset: bool = False


class Recovery:
    """Takes the frames of one group in the order of the journal, then gives the state."""

    __slots__ = ("_base", "_entries", "_hard_state", "_seen", "group")

    def __init__(self, group: int) -> None:
        self.group = group
        self._base: tuple[int, int] | None = None  # (index, term) of the last reset
        self._entries: list[Entry] = []
        self._hard_state = HardState()
        self._seen = False

    def hard_state(self, state: HardState) -> None:
        self._seen = True
        self._hard_state = state

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

    def result(self, snapshot: Snapshot) -> Restored:
        """`snapshot`: the newest durable one, or that of a new group. Raises CorruptData when it does not reach what the journal begins with."""
        entries = self._entries
        if self._base is not None and self._base[0] > snapshot.index:
            raise CorruptData(f"group {self.group}: the snapshot at {self._base[0]}, which the journal goes on from, is not there")
        if entries and entries[0].index > snapshot.index + 1:
            raise CorruptData(f"group {self.group}: the journal begins at entry {entries[0].index}, the snapshot ends at {snapshot.index}")
        fits = not self._seen or self._fits(snapshot)
        kept = entries if fits else []
        last_term = kept[-1].term if kept else snapshot.term
        hard = self._hard_state if self._hard_state.term >= last_term else HardState(last_term, 0, self._hard_state.forgetful)
        return Restored(snapshot, hard, kept, reset=not fits)

    def _fits(self, snapshot: Snapshot) -> bool:
        """Whether the log goes through the snapshot's last entry: else an installation was cut short, and the log is another one."""
        if self._base == (snapshot.index, snapshot.term) or snapshot.index == 0:
            return True
        entries = self._entries
        if not entries:
            return False
        place = snapshot.index - entries[0].index
        return place == -1 or (place < len(entries) and entries[place].term == snapshot.term)
