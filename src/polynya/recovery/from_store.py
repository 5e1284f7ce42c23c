"""Restore from the object store after the loss of all nodes, from copies of the groups' states,
what changed since, and later packs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from google_crc32c import value as crc32c

from polynya.backup import copies
from polynya.backup.copies import CompleteMark, CopyDelta, StateCopy
from polynya.backup.group_file import GroupFile
from polynya.base.errors import ConfigError, CorruptData
from polynya.objectstore import NotFound, ObjectInfo, ObjectStore, read_root
from polynya.recovery.restore import RestoredState, RestoreResult
from polynya.stream.machine import Machine
from polynya.stream.snapshots.deltas import SnapshotPart, merge
from polynya.stream.snapshots.encode import Image, decode_image, snapshot_of
from polynya.stream.snapshots.restore_history import StreamLoss
from polynya.stream.snapshots.store_recovery import UnnamedSlice, salvage
from polynya.stream.state.pack_tables import is_page_key
from polynya.wire.pack import FOOTER_GUESS_BYTES, Footer, ShortTail, owner_group_of, read_footer
from polynya.wire.page import read_page

READERS = 8


class FromStore:
    """The states in the object store, as `polynya.recovery.restore.States`. Create it with
    `open`."""

    def __init__(
        self,
        store: ObjectStore,
        whole: CompleteMark,
        found: Mapping[int, StateCopy],
        deltas: Mapping[int, Sequence[CopyDelta]],
    ) -> None:
        """`deltas`: those that fit the copies, of each group the newest first."""
        self.whole = whole
        self.has_whole_transactions = False  # the copies are of different times
        self.lost: dict[int, list[StreamLoss]] = {}  # by group
        self.warnings: list[str] = []
        self.packs = 0  # packs that were read because some copy of their groups does not name them
        self._store, self._copies, self._deltas = store, found, deltas
        self._damaged: set[str] = set()  # keys of deltas
        self._pieces: dict[int, dict[int, list[UnnamedSlice]]] = {}  # group -> uid
        self._named: dict[str, set[int]] = {}  # pack -> groups whose copies name their slices in it
        self._released: dict[
            str, set[int]
        ] = {}  # pack -> groups that judged it, and need it no more

    @classmethod
    async def open(cls, store: ObjectStore) -> FromStore:
        """Read the newest copies. Raises ConfigError when there are none; CorruptData,
        StoreUnavailable."""
        marker = await read_root(store)
        if marker is None:
            raise ConfigError(
                "polynya-root.json is missing: this is not the root of a cluster's objects"
            )
        whole, found = await copies.newest(store, marker.cluster_id)
        states = cls(store, whole, found, await copies.deltas(store, whole, found))
        await states._look_at_packs()
        return states

    @property
    def next_history(self) -> int:
        """The history number of the restored cluster."""
        keys = [copy.key for copy in sorted(self._copies.values())]
        keys += [some[0].key for _, some in sorted(self._deltas.items())]
        digest = crc32c(msgspec.json.encode(keys))
        return self.whole.history + 1 + int(digest) % (1 << 20)

    async def state(self, group: int) -> RestoredState:
        image, log_ms, term = await self._copied(group)
        self.lost[group] = salvage(image, self._pieces.get(group, {}))
        return RestoredState(image, {}, log_ms, term)

    async def objects(self, store: ObjectStore, done: RestoreResult) -> None:
        """Report notes and warnings only: the objects are already in the store."""
        done.notes += [note for notes in self.lost.values() for note in notes]
        done.warnings += self.warnings

    async def _copied(self, group: int) -> tuple[Image, int, int]:
        """Return the copied state with the changes of its delta, its log time and its term."""
        copy = self._copies.get(group)
        if copy is None:  # the group never had an entry
            return decode_image(snapshot_of(Machine(group, self.whole.groups))), 0, 0
        file = await copies.read(self._store, copy)
        delta = await self._delta(group)
        if delta is None:
            return decode_image(file.state), file.header.log_ms, file.header.term
        parts = [SnapshotPart(file.state), SnapshotPart(delta.state, delta=True, root=False)]
        return decode_image(merge(parts)), delta.header.log_ms, delta.header.term

    async def _delta(self, group: int) -> GroupFile | None:
        """Return the newest delta of a group's copy that is intact."""
        for delta in self._deltas.get(group, ()):
            try:
                return await copies.read_delta(self._store, delta, group)
            except CorruptData as fault:
                if delta.key not in self._damaged:
                    self._damaged.add(delta.key)
                    self.warnings.append(f"{fault}; an older state is recovered")
        return None

    async def _look_at_packs(self) -> None:
        """Read packs that some copy does not name. A pack has slices of several groups, whose
        copies are of different times."""
        holders: dict[
            str, list[int]
        ] = {}  # pack -> groups with slices in it, from the copy of its owner group
        for group in range(self.whole.groups + 1):
            image = (await self._copied(group))[0]
            holders |= {key: pack.groups for key, pack in image.packs.items()}
            for key in image.held:
                self._named.setdefault(key, set()).add(group)
            for key in image.released:
                self._released.setdefault(key, set()).add(group)
            for key in await self._packs_of_pages(image):
                self._named.setdefault(key, set()).add(group)
                holders.setdefault(key, [group])
        gone = set(self._named)
        others: list[ObjectInfo] = []
        async for info in self._store.list(f"{self.whole.cluster}/pages/"):
            gone.discard(info.key)
        async for info in self._store.list(f"{self.whole.cluster}/packs/"):
            gone.discard(info.key)
            needed = holders.get(info.key)
            known = needed is not None and self._named.get(info.key, set()).issuperset(needed)
            if not known and owner_group_of(info.key) is not None:
                others.append(info)
        self.warnings += [
            f"{key} is missing from the store; its records cannot be read" for key in sorted(gone)
        ]
        todo = iter(others)

        async def work() -> None:
            for info in todo:
                await self._look_at(info)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(READERS):
                tasks.create_task(work())

    async def _packs_of_pages(self, image: Image) -> set[str]:
        """Return the packs that the pages of a group's indexes name."""
        found: set[str] = set()
        for key in filter(is_page_key, image.held):
            try:
                page = read_page(key, await self._store.get(key))
            except NotFound:
                continue  # the listing tells
            except CorruptData as fault:
                self.warnings.append(f"{fault}; its records cannot be read")
                continue
            found.update(pack for pack, _ in page.packs)
        return found

    async def _look_at(self, info: ObjectInfo) -> None:
        self.packs += 1
        try:
            footer = await self._footer(info)
        except (CorruptData, ValueError) as fault:
            self.warnings.append(f"{info.key} cannot be read ({fault}); it is skipped")
            return
        named = self._named.get(info.key, ())
        entries = [entry for entry in footer.entries if entry.group not in named]
        judged = self._released.get(info.key, ())
        unplaced = sum(
            1
            for entry in entries
            if entry.base_record < 0 and entry.uid and entry.group not in judged
        )
        if unplaced:
            self.warnings.append(
                f"{info.key} has {unplaced} slices of diskless streams that no copy of an index "
                "names; their records are not recovered"
            )
        for entry in entries:
            if entry.base_record < 0:
                continue
            cold = entry.at(
                info.key, entry.base_record, entry.base_byte, time_ms=entry.append_time_ms_max
            )
            piece = UnnamedSlice(
                entry.uid,
                cold,
                footer.owner_group,
                entry.encoding,
                entry.append_time_ms_max,
                entry.path,
                entry.content_type,
            )
            self._pieces.setdefault(entry.group, {}).setdefault(entry.uid, []).append(piece)

    async def _footer(self, info: ObjectInfo) -> Footer:
        wanted = min(FOOTER_GUESS_BYTES, info.size)
        try:
            return read_footer(await self._store.get_range(info.key, info.size - wanted, wanted))
        except ShortTail as short:
            return read_footer(
                await self._store.get_range(info.key, info.size - short.wanted, short.wanted)
            )


def check_ids(cluster_ids: Sequence[str], whole: CompleteMark) -> None:
    """Raise ConfigError when the settings name another cluster than the store."""
    for each in cluster_ids:
        if each and each != whole.cluster:
            raise ConfigError(
                f"cluster.id: the object store belongs to the cluster {whole.cluster}, and the "
                f"restored cluster keeps its id; these settings say {each}"
            )
