"""Garbage collection of packs: resolve publishes that crashes lost, delete condemned packs, sweep
orphans, also under tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable
from collections.abc import Set as AbstractSet
from itertools import islice
from secrets import token_hex

import msgspec

from polynya.base.errors import CorruptData, OutcomeUnknown, Unavailable
from polynya.cold.fetches import PackGone
from polynya.cold.groups import Groups
from polynya.cold.pages import NamedPacks, load
from polynya.cold.settings import CollectorSettings
from polynya.cold.table_sweeper import TableSweeper
from polynya.jobs import repeat
from polynya.objectstore.api import ObjectInfo, ObjectStore, StoreUnavailable
from polynya.objectstore.proof import time_of
from polynya.stream.features.packs.commands import PackDeleted, PublishSlices, ReleasePack
from polynya.stream.features.pages.commands import ReleasePaged
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.tables.commands import ForgetTable
from polynya.stream.machine import Machine
from polynya.wire.pack import owner_group_of
from polynya.wire.page import read_page

log = logging.getLogger("polynya.cold")

SETTLE_MAX = 256  # proposals per pass
LOOK_MAX = 4096  # settled packs of a group that one pass looks at; the next pass goes on
DELETE_MAX = 256  # objects per pass
RELEASE_MAX = 4  # pages of a group in one pass
ORPHANS_MAX = 10_000  # per sweep; the next sweep finds the rest


class CollectCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    deleted: int = 0
    settled: int = 0
    pages: int = 0  # pages of indexes that were released
    orphans: int = 0  # found; deleted only if the sweep is allowed to
    failures: int = 0


class Swept(msgspec.Struct, array_like=True):
    """The result of a sweep: orphan keys, their total size, and whether they were deleted.

    `left` are groups led elsewhere, which were not swept.
    """

    orphans: list[str]
    bytes: int = 0
    deleted: bool = False
    left: list[int] = []


class Collector:
    """The collector of one core. `owns_root` is checked before every deletion; `in_flight` are the
    keys of packs in flight."""

    def __init__(
        self,
        groups: Groups,
        store: ObjectStore,
        settings: CollectorSettings,
        *,
        packs_prefix: str,
        in_flight: AbstractSet[str],
        owns_root: Callable[[], Awaitable[bool]],
        sweep_deletes: bool,
    ) -> None:
        """Create a collector for the folder `packs_prefix`, which is `{cluster id}/packs/`.

        `sweep_deletes` is False in a history that began with a restore: then orphans are only
        reported.
        """
        self.counters = CollectCounters()
        self._groups = groups
        self._store = store
        self._settings = settings
        self._packs_prefix = packs_prefix
        self._pages_prefix = packs_prefix.removesuffix("packs/") + "pages/"
        self._damaged: set[str] = set()  # pages that cannot be read
        self._in_flight = in_flight
        self._owns_root = owns_root
        self._sweep_deletes = sweep_deletes
        # `settle` on the leader of a remote group
        self.elsewhere: Callable[[int, int, list[str]], Awaitable[None]] | None = None
        self._tables = TableSweeper(groups, store)
        self._next_sweep_ms = 0
        self._name, self._asking = token_hex(16), asyncio.Lock()
        self._positions: dict[int, int] = {}  # in the packs of owner groups: the next pass goes on

    async def run(self) -> None:
        """Collect until cancelled."""
        await repeat(self.collect, self._settings.interval_ms / 1000)

    async def collect(self) -> None:
        """Run one pass. A failed step is left for the next pass."""
        for step in (
            self._settle,
            self._release_pages,
            self._delete,
            self._sweep_now_and_then,
        ):
            try:
                await step()
            except (StoreUnavailable, Unavailable, OutcomeUnknown) as fault:
                self.counters.failures += 1
                log.warning("garbage collection of packs failed and will be retried: %s", fault)

    async def settle(self, group: int, owner_group: int, packs: Iterable[str]) -> None:
        """Declare in a group's log that it will never hold those of these packs that it does not
        hold. Repeat a release that the owner group has forgotten.

        Raises Unavailable, OutcomeUnknown.
        """
        packs = list(packs)
        forgotten = self._forgotten(group, packs)
        for key in packs:
            if key in forgotten:
                release = ReleasePack(key, group, self._groups.now_ms())
                await self._groups.propose(owner_group, release)
                self.counters.settled += 1
            elif self._is_open(group, key):
                await self._groups.propose(
                    group,
                    PublishSlices(
                        key, owner_group, self._groups.term(group), [], self._groups.now_ms()
                    ),
                )
                self.counters.settled += 1

    async def _settle(self) -> None:
        """Resolve logged packs that a group neither holds nor released, because a crash lost the
        publish."""
        left = SETTLE_MAX
        for owner_group, machine in list(self._groups.machines().items()):
            position = self._positions.get(owner_group, 0)
            unsettled, self._positions[owner_group] = self._unsettled(machine, position)
            asked = dict[int, list[str]]()
            for key, group in unsettled:
                asked.setdefault(group, []).append(key)
            forgotten = {group: self._forgotten(group, keys) for group, keys in asked.items()}
            opened = [
                (group, key)
                for key, group in unsettled
                if key in forgotten[group] or self._is_open(group, key)
            ]
            if len(opened) > left:
                self._positions[owner_group] = position
            for group, key in opened[:left]:
                await self.settle(group, owner_group, [key])
                left -= 1
            await asyncio.sleep(0)

    async def _release_pages(self) -> None:
        """Release the pages that no index names any more, with the packs of their entries."""
        for group, machine in list(self._groups.machines().items()):
            waiting = (key for key in machine.packs.pages_gone if key not in self._damaged)
            for key in list(islice(waiting, RELEASE_MAX)):
                try:
                    page = read_page(key, await load(self._store, key))
                except PackGone:
                    log.exception("a page of an index is lost: its packs are left to the sweep")
                    packs = []
                except CorruptData:
                    log.exception("a page of an index is damaged: it is not released")
                    self._damaged.add(key)
                    continue
                else:
                    packs = page.packs
                await self._groups.propose(group, ReleasePaged(key, packs, self._groups.now_ms()))
                self.counters.pages += 1

    async def _settle_elsewhere(self) -> None:
        """Ask remote leaders to resolve the packs of their groups, whose state is unknown here."""
        if self.elsewhere is None:
            return
        machines, asked = self._groups.machines(), dict[tuple[int, int], list[str]]()
        for owner_group, machine in list(machines.items()):
            position = 0
            while True:
                unsettled, position = self._unsettled(machine, position)
                for key, group in unsettled:
                    if group not in machines:
                        asked.setdefault((group, owner_group), []).append(key)
                if not position:
                    break
                await asyncio.sleep(0)
        for (group, owner_group), keys in asked.items():
            try:
                for begin in range(0, len(keys), SETTLE_MAX):
                    await self.elsewhere(group, owner_group, keys[begin : begin + SETTLE_MAX])
            except (Unavailable, OutcomeUnknown) as fault:
                self.counters.failures += 1
                log.warning(
                    "resolving unpublished packs of group %d failed and will be retried: %s",
                    group,
                    fault,
                )

    def _is_open(self, group: int, key: str) -> bool:
        """Report whether a local group neither holds nor released a pack that is not in flight."""
        machine = self._groups.machines().get(group)
        return (
            machine is not None
            and key not in machine.packs.held
            and key not in machine.packs.released
            and key not in self._in_flight
        )

    def _forgotten(self, group: int, packs: Iterable[str]) -> set[str]:
        """Return those of the packs, which their owner group names, that a local group has released
        and that no message waits for: the intent was repeated after the pack was deleted."""
        machine = self._groups.machines().get(group)
        if machine is None:
            return set()
        released = {key for key in packs if key in machine.packs.released}
        if released:
            waiting = (command for _, command in machine.outbox.messages.values())
            released -= {each.pack for each in waiting if isinstance(each, ReleasePack)}
        return released

    def _unsettled(self, machine: Machine, position: int) -> tuple[list[tuple[str, int]], int]:
        """Return (pack, group) of packs that are not released and older than `settle_after_ms`:
        of the newest and of some from a position on. Return the next position, or 0."""
        before_ms = self._groups.now_ms() - self._settings.settle_after_ms
        packs, position = machine.packs.owned.some(position, LOOK_MAX)
        found = [
            (key, group)
            for key, pack in packs
            if pack.written_ms <= before_ms and key not in self._in_flight
            for group in pack.groups
        ]
        return found, position

    async def _delete(self) -> None:
        """Delete objects first, then log it. A crash between the two repeats the deletion."""
        now_ms = self._groups.now_ms()
        covered_ms = self._groups.covered_ms()
        self._ask_for_snapshots(now_ms, covered_ms)
        before_ms = min(now_ms - self._settings.grace_ms, covered_ms)
        condemned = [
            (owner_group, key)
            for owner_group, machine in self._groups.machines().items()
            for key in machine.packs.condemned(before_ms)
        ][:DELETE_MAX]
        if not condemned or not await self._owns_root():
            return
        await self._store.delete([key for _, key in condemned])
        for owner_group, key in condemned:
            await self._groups.propose(owner_group, PackDeleted(key))
            self.counters.deleted += 1

    def _ask_for_snapshots(self, now_ms: int, covered_ms: int) -> None:
        overdue_ms = now_ms - self._settings.snapshot_wait_ms
        for machine in self._groups.machines().values():
            for key in machine.packs.condemned(overdue_ms):
                if machine.packs.owned[key].condemned_ms > covered_ms:
                    self._groups.want_snapshots()
                    return

    async def _sweep_now_and_then(self) -> None:
        now_ms = self._groups.now_ms()
        if now_ms >= self._next_sweep_ms:
            await self._settle_elsewhere()
            await self.sweep()
            self._next_sweep_ms = now_ms + self._settings.sweep_every_ms

    async def sweep(
        self,
        *,
        delete: bool = True,
        grace_ms: int | None = None,
        groups: Container[int] | None = None,
    ) -> Swept:
        """Find orphans and delete them if this process may.

        Orphans are packs that the logs of their owner groups on this core do not name, and table
        files without a reference. They are older than `grace_ms` (default from the settings) by the
        store's clock. `groups` limits the sweep; table files belong to the meta group.
        """
        grace_ms = await self._ahead_ms() + (
            self._settings.orphan_ms if grace_ms is None else grace_ms
        )
        named = NamedPacks(self._store, self._pages_prefix)
        packs, files = await self._find_packs(grace_ms, groups, named), list[ObjectInfo]()
        if groups is None or META_GROUP in groups:
            files = await self._tables.find(grace_ms)
        orphans, size = (
            [info.key for info in packs + files],
            sum(info.size for info in packs + files),
        )
        if delete and (groups is None or META_GROUP in groups):
            await self._forget_drained(grace_ms)
        if not delete or not orphans:
            return Swept(orphans, size)
        self.counters.orphans += len(orphans)
        if self._sweep_deletes and await self._owns_root():
            await self._delete_orphans(orphans, {info.key for info in packs}, groups, named)
            log.info("deleted %d orphaned objects", len(orphans))
            return Swept(orphans, size, deleted=True)
        log.warning(
            "%d orphaned objects were found, the first is %s: this process may not delete them",
            len(orphans),
            orphans[0],
        )
        return Swept(orphans, size)

    async def _forget_drained(self, grace_ms: int) -> None:
        """Forget the dropped tables whose files are all deleted."""
        for group, table in await self._tables.drained(grace_ms):
            await self._groups.propose(group, ForgetTable(table, files_gone=True))

    async def _ahead_ms(self) -> int:
        """Return how far log time is ahead of the store's clock, or 0.

        Log time follows the fastest leader's clock so far and never goes back. That lead must not
        count as an object's age.
        """
        async with self._asking:  # an operator's sweep may run beside the hourly one
            store_ms = await time_of(self._store, self._name)
        return max(self._groups.now_ms() - store_ms, 0)

    async def _delete_orphans(
        self,
        orphans: list[str],
        packs: AbstractSet[str],
        groups: Container[int] | None,
        named: NamedPacks,
    ) -> None:
        """Delete keys that are still orphans.

        The process may have been paused since it found them, and new leaders may have logged them.
        """
        for begin in range(0, len(orphans), DELETE_MAX):
            some = orphans[begin : begin + DELETE_MAX]
            left = [key for key in some if key not in packs or self._is_orphan(key, groups)]
            if any(key in packs for key in left):
                left = await self._unnamed(left, named, groups)
            await self._store.delete(left)

    async def _find_packs(
        self, grace_ms: int, groups: Container[int] | None, named: NamedPacks
    ) -> list[ObjectInfo]:
        """Return the packs and pages that the logs of their owner groups do not name, and no
        page."""
        now_ms = self._groups.now_ms()
        orphans: list[ObjectInfo] = []
        try:
            await named.refresh(lambda key: self._is_swept(key, groups))
            for prefix in (self._packs_prefix, self._pages_prefix):
                async for info in self._store.list(prefix):
                    if (
                        info.modified_ms + grace_ms <= now_ms
                        and info.key not in named
                        and self._is_orphan(info.key, groups)
                    ):
                        orphans.append(info)
                    if len(orphans) == ORPHANS_MAX:
                        break
            left = set(await self._unnamed([info.key for info in orphans], named, groups))
        except CorruptData as fault:
            log.warning("packs are not swept, because a page may name them: %s", fault)
            return []
        return [info for info in orphans if info.key in left]

    async def _unnamed(
        self, keys: list[str], named: NamedPacks, groups: Container[int] | None
    ) -> list[str]:
        """Return the keys of objects that no page names now. Their owner groups do not name them:
        so what a page has taken over is in a page that is in the store."""
        if not keys:
            return []
        await named.refresh(lambda key: self._is_swept(key, groups))
        lost = {
            owner_group
            for owner_group, machine in self._groups.machines().items()
            if any(page not in named.pages for page in machine.packs.held.pages())
        }
        if lost:
            log.warning("pages of groups %s are not in the store: nothing is swept there", lost)
        return [key for key in keys if key not in named and owner_group_of(key) not in lost]

    def _is_swept(self, key: str, groups: Container[int] | None) -> bool:
        """Report whether packs with this owner group are swept here."""
        owner_group = owner_group_of(key)
        return owner_group in self._groups.machines() and (groups is None or owner_group in groups)

    def _is_orphan(self, key: str, groups: Container[int] | None) -> bool:
        """Report whether a pack of a group in scope is unknown to its local owner group."""
        owner_group = owner_group_of(key)
        machine = (
            self._groups.machines().get(owner_group)
            if owner_group is not None and (groups is None or owner_group in groups)
            else None
        )
        return machine is not None and key not in machine.packs.owned and key not in self._in_flight
