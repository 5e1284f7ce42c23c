"""Journal positions reported by cores of other nodes. A core that returns with less has lost data
that others count on (docs/decisions/0023).

With every Raft frame a core reports how far its journal is synced. This only grows, even across
power failures: no later start finds less. After a disk loss the core has another journal. A
replaced journal must never return.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.transport.handshake import Hello, address

BEFORE_MAX = 8  # replaced journals of one core, and accepted incarnations


class JournalReport(msgspec.Struct):
    """The last report of a core of another node. `synced` is a position of its journal, segment <<
    32 | offset."""

    node: int
    core: int
    journal: int  # the journal's number
    synced: int
    # accepted incarnations of the core, the newest last
    incarnations: tuple[int, ...] = msgspec.field(default=(), name="lives")
    before: tuple[int, ...] = ()  # numbers of the journals that this one replaced, the newest last


class PeerJournalPositions:
    """The reports that one core received. `dirty`: something changed since it was last set to
    False."""

    def __init__(self) -> None:
        self.dirty = False
        self.rejected: dict[
            int, str
        ] = {}  # nodes that came with a stale journal, and what it lacks
        self._said: dict[int, JournalReport] = {}

    def restore(self, said: Iterable[JournalReport]) -> None:
        """Load the reports saved before a restart."""
        self._said = {address(each.node, each.core): each for each in said}

    def saved(self) -> list[JournalReport]:
        """Return the reports to save for the next start."""
        return list(self._said.values())

    def lacks(self, hello: Hello) -> str:
        """Return what the journal of a connecting core has lost, as text; empty if nothing is known
        to be lost."""
        known = self._said.get(address(hello.node, hello.core))
        if known is None or not hello.journal or hello.incarnation in known.incarnations:
            return ""
        if hello.journal in known.before:
            return "its journal has been replaced by another one"
        if hello.journal == known.journal and hello.opened < known.synced:
            return (
                f"its journal ends at {position_text(hello.opened)}, but was synced up to "
                f"{position_text(known.synced)}"
            )
        return ""

    def rejection(self, hello: Hello) -> str:
        """Return the same as `lacks`, and record a core that is rejected for it."""
        lacking = self.lacks(hello)
        if lacking:
            self.rejected[hello.node] = lacking
        return lacking

    def record_accepted(self, hello: Hello) -> None:
        """Record an accepted core."""
        if not hello.journal:  # a release that does not report it
            return
        self.rejected.pop(hello.node, None)
        position = address(hello.node, hello.core)
        known = self._said.setdefault(
            position, JournalReport(hello.node, hello.core, hello.journal, hello.opened)
        )
        # an accepted incarnation; a delayed handshake of a dead one had replaced it
        if known.journal != hello.journal:
            others = (
                *(number for number in known.before if number != hello.journal),
                known.journal,
            )
            known.journal, known.synced, known.before = (
                hello.journal,
                hello.opened,
                others[-BEFORE_MAX:],
            )
        elif hello.incarnation in known.incarnations:
            return
        if hello.incarnation not in known.incarnations:
            known.incarnations = (*known.incarnations, hello.incarnation)[-BEFORE_MAX:]
        known.synced = max(known.synced, hello.opened)
        self.dirty = True

    def record_synced(self, position: int, journal: int, synced: int) -> None:
        """Record how far the core at this address has synced its journal. Ignore late messages of
        another journal, sent before a disk loss."""
        known = self._said.get(position)
        if known is not None and journal == known.journal and synced > known.synced:
            known.synced = synced
            self.dirty = True


def position_text(position: int) -> str:
    """Return a position as readable text."""
    return f"segment {position >> 32}, offset {position & 0xFFFF_FFFF}"
