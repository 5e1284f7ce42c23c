"""Stop a core whose data directory is a stale copy: peers that recorded a later journal position
reject it (docs/decisions/0023)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.msgpack import UNREADABLE
from polynya.config.core_start import CoreStart
from polynya.config.node_identity import write_json
from polynya.files import write_whole
from polynya.jobs import Failures, repeat
from polynya.transport import Hello, JournalReport, NodeLinks
from polynya.wal import Journal

FILE = "others.json"  # in the core's folder: the journal positions that peers reported
MARK = "older"  # exists once this folder is known to be stale; its text is the reason
KEEP_SECONDS = 5.0
log = logging.getLogger("polynya.core")


class PeerPositions(msgspec.Struct, frozen=True):
    """Reported journal positions, valid in one history of the cluster."""

    history: int
    said: list[JournalReport]


class StaleCopyGuard:
    """Detects a stale data directory of one core. `end` receives the error and normally exits the
    process."""

    def __init__(
        self,
        start: CoreStart,
        links: NodeLinks,
        journal: Journal,
        *,
        end: Callable[[BaseException], None],
    ) -> None:
        self._folder = Path(start.config.data) / f"core-{start.core}"
        self._history = start.identity.history
        self._positions = links.peer_positions
        self._end = end
        self._failures = Failures(
            log, "cannot store the journal positions of other nodes; retrying", OSError
        )
        self._positions.restore(self._kept())
        links.vouch(journal.begun, journal.opened, lambda: journal.settled)
        links.on_stale_copy = self.on_rejected

    def on_rejected(self, hello: Hello) -> None:
        """Mark the folder as stale and stop: a peer recorded a later position of this journal."""
        text = (
            f"{self._folder} is a stale copy, or its journal lost its end: node {hello.node} "
            f"recorded a later position ({hello.lacks}). "
            "Its later votes and acknowledgements are lost, so this core stops"
        )
        try:
            write_whole(self._folder / MARK, text.encode())
        except OSError as error:  # peers reject the next start too
            log.warning("cannot mark this folder as a stale copy", extra={"error": str(error)})
        self._end(CorruptData(text))

    async def run(self) -> None:
        """Write the reported positions to disk regularly."""
        await repeat(self.keep, KEEP_SECONDS, at_once=False)

    async def keep(self) -> None:
        """Write the reported positions if they changed. A failed write is retried."""
        if not self._positions.dirty:
            return
        self._positions.dirty = False
        others = msgspec.msgpack.encode(self._positions.saved())  # a copy: peers go on to report
        kept = PeerPositions(
            self._history, msgspec.msgpack.decode(others, type=list[JournalReport])
        )
        with self._failures:
            await asyncio.to_thread(write_json, self._folder / FILE, kept)
        self._positions.dirty = self._positions.dirty or self._failures.in_a_row > 0

    def _kept(self) -> list[JournalReport]:
        """Return the stored positions, or none if unreadable: they are an additional check, not
        data."""
        try:
            found = msgspec.json.decode((self._folder / FILE).read_bytes(), type=PeerPositions)
        except (OSError, *UNREADABLE):
            return []
        return found.said if found.history == self._history else []


def refuse_stale_copy(folder: Path) -> None:
    """Raise CorruptData if the core's folder is marked as stale."""
    try:
        text = (folder / MARK).read_text()
    except OSError:
        return
    raise CorruptData(text)
