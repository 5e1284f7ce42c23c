"""What cores of other nodes have said of their journals: one that comes back with less has lost what others count on (docs/decisions/0023).

A core says with all that it sends for groups how far its journal is synced. That only grows, also over a power cut: no later start finds less. A
disk that was lost is another journal; one that another has replaced is not to come back.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.transport.handshake import Hello, address

BEFORE_MAX = 8  # journals of one core that were replaced, and lives that were let in


class JournalReport(msgspec.Struct):
    """By a core of another node. `synced`: a place of its journal, segment << 32 | offset."""

    node: int
    core: int
    journal: int  # its number
    synced: int
    lives: tuple[int, ...] = ()  # of the core, that were let in, the newest last
    before: tuple[int, ...] = ()  # numbers of journals that this one has replaced, the newest last


class PeerJournalPositions:
    """Of one core. `dirty`: something was said since this was last False."""

    def __init__(self) -> None:
        self.dirty = False
        self.kept_out: dict[int, str] = {}  # nodes that came with an older journal, and what it lacks
        self._said: dict[int, JournalReport] = {}

    def take(self, said: Iterable[JournalReport]) -> None:
        """What was known before a start."""
        self._said = {address(each.node, each.core): each for each in said}

    def give(self) -> list[JournalReport]:
        """To be kept for the next start."""
        return list(self._said.values())

    def lacks(self, hello: Hello) -> str:
        """What the journal of a core that comes has lost, for people; empty: nothing, as far as is known here."""
        known = self._said.get(address(hello.node, hello.core))
        if known is None or not hello.journal or hello.life in known.lives:
            return ""
        if hello.journal in known.before:
            return "its journal is one that another has replaced since"
        if hello.journal == known.journal and hello.opened < known.synced:
            return f"its journal ends at {place_text(hello.opened)}, and had been synced up to {place_text(known.synced)}"
        return ""

    def keep_out(self, hello: Hello) -> str:
        """As `lacks`, of one that is refused for it."""
        lacking = self.lacks(hello)
        if lacking:
            self.kept_out[hello.node] = lacking
        return lacking

    def greet(self, hello: Hello) -> None:
        """It is let in."""
        if not hello.journal:  # of a release that does not say it
            return
        self.kept_out.pop(hello.node, None)
        place = address(hello.node, hello.core)
        known = self._said.setdefault(place, JournalReport(hello.node, hello.core, hello.journal, hello.opened))
        if known.journal != hello.journal:  # of a life that has greeted before: that of another, which is over, had come late
            others = (*(number for number in known.before if number != hello.journal), known.journal)
            known.journal, known.synced, known.before = hello.journal, hello.opened, others[-BEFORE_MAX:]
        elif hello.life in known.lives:
            return
        if hello.life not in known.lives:
            known.lives = (*known.lives, hello.life)[-BEFORE_MAX:]
        known.synced = max(known.synced, hello.opened)
        self.dirty = True

    def hear(self, place: int, journal: int, synced: int) -> None:
        """The core at this address says how far its journal is synced. What was sent before it lost its disk may come after it greeted anew: that
        was another journal."""
        known = self._said.get(place)
        if known is not None and journal == known.journal and synced > known.synced:
            known.synced = synced
            self.dirty = True


def place_text(place: int) -> str:
    """For people."""
    return f"segment {place >> 32}, offset {place & 0xFFFF_FFFF}"
