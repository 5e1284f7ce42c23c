"""Counts per hour of one core, kept in `DATA/usage/core-N.json`.

Sources are counters that only grow while the process runs. `tick` adds their growth to the present
hour. A restart loses what came after the last `save`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from polynya.base.formats import FORMAT
from polynya.files import make_folder, write_whole

HOURS_MAX = 30 * 24  # hours kept; a file has at most some hundred kilobytes
FOLDER = "usage"
SECONDS = 3600
Counts = Mapping[tuple[str, ...], int]
Row = tuple[int, list[tuple[tuple[str, ...], int]]]  # hour since 1970, its counts


class UsageFile(msgspec.Struct):
    """The content of a file."""

    format: int
    hours: list[Row]


class UsageHistory:
    """The history of one core. A file of a core that no longer exists is taken over."""

    def __init__(
        self, data: Path, core: int, cores: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = data / FOLDER
        self._core, self._cores = core, cores
        self._clock = clock
        self._sources: list[Callable[[], Counts]] = []
        self._last = Counter[tuple[str, ...]]()
        self._hour = self._present_hour()
        self._growth = Counter[tuple[str, ...]]()  # of the present hour
        self._closed: dict[int, Row] = {}  # the hours before it
        self._stale: list[Path] = []
        self._dirty = False
        self._writing: asyncio.Future[None] | None = None

    def add(self, source: Callable[[], Counts]) -> None:
        """Add a source of counts. Two sources must not share a key."""
        self._sources.append(source)

    def load(self) -> list[str]:
        """Read the files. Return those that cannot be read, each with the reason."""
        refused = []
        for path in sorted(self._folder.glob("core-*.json")):
            number = path.stem.removeprefix("core-")
            if not number.isdecimal() or int(number) % self._cores != self._core:
                continue
            try:
                found = msgspec.json.decode(path.read_bytes(), type=UsageFile)
                if found.format != FORMAT:
                    raise ValueError(f"format {found.format}, and this release reads {FORMAT}")
            except (OSError, ValueError) as error:
                refused.append(f"{path}: {error}")
                continue
            for hour, counts in found.hours:
                self._close(hour, Counter(dict(counts)))
            if int(number) != self._core:
                self._stale.append(path)
        self._growth = Counter(dict(self._closed.pop(self._hour, (0, []))[1]))
        return refused

    def tick(self) -> None:
        """Add the growth of the sources since the last call to the present hour."""
        if (hour := self._present_hour()) != self._hour:
            self._close(self._hour, self._growth)
            self._hour = hour
            self._growth = Counter(dict(self._closed.pop(hour, (0, []))[1]))
            for old in [each for each in self._closed if each <= hour - HOURS_MAX]:
                del self._closed[old]
        for source in self._sources:
            for key, count in source().items():
                grown = count - self._last[key]
                if grown > 0:
                    self._last[key] = count
                    self._growth[key] += grown
                    self._dirty = True

    def rows(self, hours: int = HOURS_MAX) -> list[Row]:
        """Return the present hour and those before it, `hours` in all, the oldest first; without
        the hours in which nothing grew."""
        self.tick()
        first = self._hour - hours
        found = [self._closed[hour] for hour in sorted(self._closed) if first < hour <= self._hour]
        return [*found, (self._hour, sorted(self._growth.items()))] if self._growth else found

    async def save(self) -> None:
        """Write the file if anything changed. Raises OSError."""
        while self._writing is not None:  # also of a cancelled save: an older file must not win
            await asyncio.wait([self._writing])
        rows = self.rows()
        if not self._dirty:
            return
        self._dirty = False
        work = asyncio.get_running_loop().run_in_executor(None, self._write, rows)
        self._writing = work
        work.add_done_callback(self._written)
        await asyncio.shield(work)

    def _written(self, work: asyncio.Future[None]) -> None:
        self._writing = None
        if work.cancelled() or work.exception() is not None:
            self._dirty = True

    def _write(self, rows: list[Row]) -> None:
        if not self._folder.exists():
            make_folder(self._folder, mode=0o700)
        content = msgspec.json.encode(UsageFile(FORMAT, rows))
        write_whole(self._folder / f"core-{self._core}.json", content)
        while self._stale:
            self._stale.pop().unlink(missing_ok=True)

    def _close(self, hour: int, counts: Counter[tuple[str, ...]]) -> None:
        """Add counts to a past hour."""
        before = Counter(dict(self._closed.get(hour, (hour, []))[1]))
        if total := before + counts:
            self._closed[hour] = (hour, sorted(total.items()))

    def _present_hour(self) -> int:
        return int(self._clock()) // SECONDS
