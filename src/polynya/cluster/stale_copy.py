"""A core whose data folder is an older copy ends by the word of those who remember more, and does not start again (docs/decisions/0023)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from polynya.base.errors import CorruptData
from polynya.config.core_start import CoreStart
from polynya.config.node_identity import write_json
from polynya.files import write_whole
from polynya.transport import Hello, JournalReport, Transport
from polynya.wal import Journal

FILE = "others.json"  # in the core's folder: what cores of other nodes have said of their journals
MARK = "older"  # there once it is known that this folder has less than it had; its text says why
KEEP_SECONDS = 5.0
log = logging.getLogger("polynya.core")


class PeerPositions(msgspec.Struct, frozen=True):
    """What is remembered, in this history of the cluster."""

    history: int
    said: list[JournalReport]


class StaleCopyGuard:
    """Of one core of a cluster. `end` is told what this folder is, and does not return where that ends the process."""

    def __init__(self, start: CoreStart, transport: Transport, journal: Journal, *, end: Callable[[BaseException], None]) -> None:
        self._folder = Path(start.config.data) / f"core-{start.core}"
        self._history = start.birth.history
        self._recollection = transport.recollection
        self._end = end
        self._troubled = False
        self._recollection.take(self._kept())
        transport.vouch(journal.begun, journal.opened, lambda: journal.settled)
        transport.on_older = self.told

    def told(self, hello: Hello) -> None:
        """Another node remembers more of this core's journal than there is."""
        text = (
            f"{self._folder} is an older copy of itself, or has lost its end: node {hello.node} remembers what is not there ({hello.lacks}). "
            "What it promised since is forgotten, so it takes no part any more"
        )
        try:
            write_whole(self._folder / MARK, text.encode())
        except OSError as error:  # the next start is told again
            log.warning("what this folder is cannot be noted in it", extra={"error": str(error)})
        self._end(CorruptData(text))

    async def run(self) -> None:
        """Keep what others say, for the next start."""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            await self.keep()

    async def keep(self) -> None:
        """If there is something new. A disk that takes no file now takes it later."""
        if not self._recollection.dirty:
            return
        self._recollection.dirty = False
        others = msgspec.msgpack.encode(self._recollection.give())  # as it is now: others go on to speak
        kept = PeerPositions(self._history, msgspec.msgpack.decode(others, type=list[JournalReport]))
        try:
            await asyncio.to_thread(write_json, self._folder / FILE, kept)
            self._troubled = False
        except OSError as error:
            self._recollection.dirty = True
            if not self._troubled:
                log.warning("what other nodes say of their journals cannot be kept: it is tried again", extra={"error": str(error)})
            self._troubled = True

    def _kept(self) -> list[JournalReport]:
        """Nothing, where it cannot be read: it is one more look at the others, and no data."""
        try:
            found = msgspec.json.decode((self._folder / FILE).read_bytes(), type=PeerPositions)
        except (OSError, msgspec.DecodeError):
            return []
        return found.said if found.history == self._history else []


def refuse_older(folder: Path) -> None:
    """Raises CorruptData when it is known of a core's folder that it is an older copy."""
    try:
        text = (folder / MARK).read_text()
    except OSError:
        return
    raise CorruptData(text)
