"""Change the number of cores: distribute the old cores' journals and snapshots to the new cores
before they start (docs/decisions/0011)."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import msgspec

from polynya.base.errors import ConfigError
from polynya.base.limits import JOURNAL_SEGMENT_BYTES, MIB
from polynya.config.node_identity import NodeIdentity, journal_id_of, write_json
from polynya.engine.snapshots.merge_process import merge
from polynya.engine.storage import refuse_lost_journal
from polynya.engine.turns import KIND_COPY
from polynya.files import is_full
from polynya.recovery.folder_switch import NEW, PLAN, ReshardPlan, finish
from polynya.replica.log import count_of
from polynya.stream.snapshots.encode import positions_of, with_positions
from polynya.wal import DiskFull, Journal, JournalEntry, SnapshotStore
from polynya.wal.recovery import OFFSET_MASK

WRITE_BYTES = 4 * MIB  # staged bytes that trigger a write
SAID_FIRST_SECONDS, SAID_SECONDS = 2.0, 5.0  # delay to the first progress message, and the interval
log = logging.getLogger("polynya.node")


def say(text: str) -> None:
    """Log the text, and print it if stdout is a terminal that does not show the log."""
    log.info(text)
    if sys.stdout.isatty() and not (sys.stderr.isatty() and log.isEnabledFor(logging.INFO)):
        print(text, flush=True)


def reshare(
    data: Path,
    identity: NodeIdentity,
    cores: int,
    *,
    segment_bytes: int = JOURNAL_SEGMENT_BYTES,
    say: Callable[[str], None] = say,
) -> NodeIdentity:
    """Reshard the data and return its new identity; report progress at intervals.

    Raises ConfigError when the disk lacks room, and CorruptData as a start does."""
    log.info(
        "resharding the data to another number of cores",
        extra={"from": identity.cores, "to": cores, "data": str(data)},
    )
    began, progress = time.monotonic(), _Progress(identity.cores, cores, say)
    try:
        with _Shares(data / NEW, identity, cores, segment_bytes) as shares:
            for core in range(identity.cores):
                progress.begin(core)
                shares.take_over(data / f"core-{core}", core, progress)
    except (OSError, DiskFull) as error:
        if isinstance(error, OSError) and not is_full(error):
            raise
        shutil.rmtree(data / NEW, ignore_errors=True)
        raise ConfigError(
            f"cores: {data} has no room for a second copy of its journals, which a change of the "
            "number of cores needs temporarily; free space, "
            f"or start with --cores {identity.cores}. Nothing was changed"
        ) from None
    write_json(data / NEW / PLAN, ReshardPlan(cores))
    finish(data)
    if progress.said:
        say(f"the data is resharded to {_cores(cores)}; it took {time.monotonic() - began:.0f} s")
    return msgspec.structs.replace(identity, cores=cores)


class _Progress:
    """The progress on one old core, in bytes of its journal and snapshots read and written."""

    def __init__(self, old: int, new: int, say: Callable[[str], None]) -> None:
        self._old, self._new, self._say = old, new, say
        self._core = self.done = self._total = 0
        self._next = time.monotonic() + SAID_FIRST_SECONDS
        self.said = False

    def begin(self, core: int) -> None:
        """Start with a core while its journal is scanned; the total is not known yet."""
        self._core, self.done, self._total = core, 0, 0
        self.at(0)

    def count(self, total: int) -> None:
        self._total = total
        self.at(0)

    def advance(self, size: int) -> None:
        self.at(self.done + size)

    def at(self, done: int) -> None:
        self.done = done
        if time.monotonic() < self._next:
            return
        self._next, self.said = time.monotonic() + SAID_SECONDS, True
        far = (
            f"{done * 100 // self._total} % of {self._total / MIB:,.0f} MiB"
            if self._total
            else "scanning its journal"
        )
        self._say(
            f"resharding the data to {_cores(self._new)}: core {self._core + 1} of {self._old}, "
            f"{far}"
        )


def _cores(number: int) -> str:
    return f"{number} core{'s' if number > 1 else ''}"


class _Shares:
    """The journals and snapshots of the new cores."""

    def __init__(
        self, folder: Path, identity: NodeIdentity, cores: int, segment_bytes: int
    ) -> None:
        self._folder, self._identity, self._cores, self._segment_bytes = (
            folder,
            identity,
            cores,
            segment_bytes,
        )
        self._journals: list[Journal] = []
        self._stores: list[SnapshotStore] = []

    def __enter__(self) -> _Shares:
        for core in range(self._cores):
            folder = self._folder / f"core-{core}"
            number = journal_id_of(self._identity.cluster_id, core)
            self._journals.append(
                Journal.open(
                    folder / "journal", journal_id=number, segment_bytes=self._segment_bytes
                )
            )
            self._stores.append(SnapshotStore(folder / "snapshots"))
        return self

    def __exit__(self, *_: object) -> None:
        for journal in self._journals:
            journal.close()

    def take_over(self, folder: Path, core: int, progress: _Progress) -> None:
        """Distribute everything that an old core has."""
        if not folder.exists():
            return  # the core never started
        refuse_lost_journal(folder)
        old = Journal.open(
            folder / "journal",
            journal_id=journal_id_of(self._identity.cluster_id, core),
            segment_bytes=self._segment_bytes,
        )
        try:
            store = SnapshotStore(folder / "snapshots")
            chains = {group: store.links(group) for group in store.groups()}
            sizes = {group: sum(link.length for link in chain) for group, chain in chains.items()}
            links = {group: chain[-1] for group, chain in chains.items()}
            progress.count(sum(size for _, size in old.segments.sizes()) + 2 * sum(sizes.values()))
            bodies = {group: _merged(store, group, sizes[group], progress) for group in links}
            named = {position for body in bodies.values() for position in positions_of(body)}
            moved = self._stage_all(
                _reported(old, progress),
                {group: link.index for group, link in links.items()},
                named,
            )
        finally:
            old.close()
        for group, link in links.items():
            self._stores[group % self._cores].write(
                group, link.term, link.index, with_positions(bodies[group], moved)
            )
            progress.advance(sizes[group])

    def _stage_all(
        self, entries: Iterator[JournalEntry], snapshots: dict[int, int], named: set[int]
    ) -> dict[int, int]:
        """Stage the entries to the new journals, and map the old positions in `named` to new ones.
        `snapshots`: the snapshot index by group."""
        alone = self._identity.node == 0
        moved: dict[int, int] = {}
        for entry in entries:
            wanted = [
                number
                for number in range(count_of(entry.payload))
                if entry.position + number in named
            ]
            covered = alone and entry.group in snapshots and entry.index <= snapshots[entry.group]
            if not wanted and (covered or entry.kind == KIND_COPY):
                continue
            journal = self._journals[entry.group % self._cores]
            position = journal.stage(
                entry.group, entry.term, entry.index, entry.kind, entry.payload
            )
            for number in wanted:
                moved[entry.position + number] = position + number
            if journal.pending_bytes >= WRITE_BYTES:
                _write(journal)
        for journal in self._journals:
            _write(journal)
        return moved


def _merged(store: SnapshotStore, group: int, size: int, progress: _Progress) -> bytes:
    body = merge(store.chain(group))
    progress.advance(size)
    return body


def _reported(journal: Journal, progress: _Progress) -> Iterator[JournalEntry]:
    """Yield the journal's entries, and report the position in it as progress."""
    segments = journal.segments.sizes()
    begins = dict(
        zip(
            (number for number, _ in segments),
            accumulate((size for _, size in segments), initial=progress.done),
            strict=False,
        )
    )
    for entry in journal.segments.entries():
        progress.at(begins[entry.position >> 32] + (entry.position & OFFSET_MASK))
        yield entry
    progress.at(begins[segments[-1][0]] + segments[-1][1] if segments else progress.done)


def _write(journal: Journal) -> None:
    batch = journal.take()
    if batch is not None:
        journal.write(batch)
        journal.synced(batch)
