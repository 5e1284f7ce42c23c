"""Another number of cores: the journals and snapshots of the old ones are shared out to the new ones, before any starts (docs/decisions/0011)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from polynya.base.errors import ConfigError
from polynya.base.limits import JOURNAL_SEGMENT_BYTES, MIB
from polynya.node.birth import FILE, Birth, journal_id_of, sync_folder, write_json
from polynya.node.core import KIND_COPY
from polynya.node.folding import merge
from polynya.replica.log import count_of
from polynya.stream.snapshots import places_of, with_places
from polynya.wal import DiskFull, Journal, JournalEntry, SnapshotStore
from polynya.wal.errors import is_full

NEW, OLD, PLAN = "cores.new", "cores.old", "plan.json"
WRITE_BYTES = 4 * MIB  # staged before it is written
log = logging.getLogger("polynya.node")


class Plan(msgspec.Struct, frozen=True):
    """The new folders are complete: what is left is to switch."""

    cores: int


def finish(data: Path) -> None:
    """What a crash interrupted is done to its end, or as if it had not begun. Before anything else looks at the folder. Raises OSError."""
    plan = data / NEW / PLAN
    if plan.exists():
        _switch(data, msgspec.json.decode(plan.read_bytes(), type=Plan).cores)
    for name in (NEW, OLD):
        shutil.rmtree(data / name, ignore_errors=True)


def reshare(data: Path, birth: Birth, cores: int, *, segment_bytes: int = JOURNAL_SEGMENT_BYTES) -> Birth:
    """The identity of the data with its new number of cores. Raises `ConfigError` where there is no room; `CorruptData`, as a start does."""
    log.info("sharing the data out to another number of cores", extra={"from": birth.cores, "to": cores, "data": str(data)})
    try:
        with _Shares(data / NEW, birth, cores, segment_bytes) as shares:
            for core in range(birth.cores):
                shares.take_over(data / f"core-{core}", core)
    except (OSError, DiskFull) as error:
        if isinstance(error, OSError) and not is_full(error):
            raise
        shutil.rmtree(data / NEW, ignore_errors=True)
        raise ConfigError(
            f"cores: {data} has no room for a second copy of its journals, which another number of cores needs for a moment; make room, "
            f"or start with --cores {birth.cores}. Nothing was changed"
        ) from None
    write_json(data / NEW / PLAN, Plan(cores))
    _switch(data, cores)
    finish(data)
    return msgspec.structs.replace(birth, cores=cores)


class _Shares:
    """The journals and snapshots of the new cores, as they are written."""

    def __init__(self, folder: Path, birth: Birth, cores: int, segment_bytes: int) -> None:
        self._folder, self._birth, self._cores, self._segment_bytes = folder, birth, cores, segment_bytes
        self._journals: list[Journal] = []
        self._stores: list[SnapshotStore] = []

    def __enter__(self) -> _Shares:
        for core in range(self._cores):
            folder = self._folder / f"core-{core}"
            number = journal_id_of(self._birth.cluster_id, core)
            self._journals.append(Journal.open(folder / "journal", journal_id=number, segment_bytes=self._segment_bytes))
            self._stores.append(SnapshotStore(folder / "snapshots"))
        return self

    def __exit__(self, *_: object) -> None:
        for journal in self._journals:
            journal.close()

    def take_over(self, folder: Path, core: int) -> None:
        """All that an old core has."""
        if not folder.exists():
            return  # it never started
        old = Journal.open(folder / "journal", journal_id=journal_id_of(self._birth.cluster_id, core), segment_bytes=self._segment_bytes)
        try:
            store = SnapshotStore(folder / "snapshots")
            links = {group: store.links(group)[-1] for group in store.groups()}
            bodies = {group: merge(store.chain(group)) for group in links}
            named = {place for body in bodies.values() for place in places_of(body)}
            moved = self._stage_all(old.entries(), {group: link.index for group, link in links.items()}, named)
        finally:
            old.close()
        for group, link in links.items():
            self._stores[group % self._cores].write(group, link.term, link.index, with_places(bodies[group], moved))

    def _stage_all(self, entries: Iterable[JournalEntry], snapshots: dict[int, int], named: set[int]) -> dict[int, int]:
        """Where the places that snapshots, which are at these indexes, name are now."""
        alone = self._birth.node == 0
        moved: dict[int, int] = {}
        for entry in entries:
            wanted = [number for number in range(count_of(entry.payload)) if entry.place + number in named]
            covered = alone and entry.group in snapshots and entry.index <= snapshots[entry.group]
            if not wanted and (covered or entry.kind == KIND_COPY):
                continue
            journal = self._journals[entry.group % self._cores]
            place = journal.stage(entry.group, entry.term, entry.index, entry.kind, entry.payload)
            for number in wanted:
                moved[entry.place + number] = place + number
            if journal.pending_bytes >= WRITE_BYTES:
                _write(journal)
        for journal in self._journals:
            _write(journal)
        return moved


def _write(journal: Journal) -> None:
    batch = journal.take()
    if batch is not None:
        journal.write(batch)
        journal.synced(batch)


def _switch(data: Path, cores: int) -> None:
    """Again from any point of it."""
    new, old = data / NEW, data / OLD
    old.mkdir(exist_ok=True)
    sync_folder(data)
    there = [int(path.name.removeprefix("core-")) for path in data.glob("core-*") if path.name.removeprefix("core-").isdecimal()]
    for core in sorted({*there, *range(cores)}):
        name = f"core-{core}"
        if core < cores and not (new / name).exists():
            continue  # switched before
        if (data / name).exists():
            _move(data / name, old / name)
        if core < cores:
            _move(new / name, data / name)
    path = data / FILE
    write_json(path, msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Birth), cores=cores))
    (new / PLAN).unlink()
    sync_folder(new)


def _move(source: Path, target: Path) -> None:
    source.rename(target)
    sync_folder(target.parent)
    sync_folder(source.parent)
