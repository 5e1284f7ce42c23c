"""Pages of long indexes: paged-out entries are read and released as before, under every failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from msgspec import structs
from worlds.cold import GROUPS, FaultyStore, Tier, play, play_each

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.names import group_of
from polynya.cold import FlushSettings, MergeSettings, PackGone, PackVerifier
from polynya.objectstore import ObjectInfo
from polynya.stream.command import Command
from polynya.stream.features.forks.commands import PinSource, Unpin
from polynya.stream.features.lifetimes.commands import Delete
from polynya.stream.features.packs.commands import PackWritten, ReplaceSlices
from polynya.stream.features.pages.commands import PageEntries, ReleasePaged
from polynya.stream.features.pages.rules import LATE_MS, mark_of
from polynya.stream.features.retention.commands import Trim
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.state import index
from polynya.stream.state.model import Stream
from polynya.wire.page import build_page, page_key, read_page

NAME = "default/s0"
PAGING = MergeSettings(slice_bytes_max=100, pack_bytes_max=8000, page_entries=8)
FLUSH = FlushSettings(
    from_bytes=1, pack_bytes_max=4000, slice_bytes_max=500, age_ms_max=10_000, interval_ms=1000
)


class Paged(Tier):
    """A tier whose indexes are long with eight entries."""

    def __init__(self, store: FaultyStore | None = None) -> None:
        super().__init__(store, FLUSH)
        self.merger = self.new_merger(PAGING)

    async def grow(self, slices: int = 30, names: Sequence[str] = (NAME,)) -> None:
        """Give each of the streams that many slices; those of a flush share a pack."""
        for number in range(slices):
            self.world.now += 1000
            for name in names:
                self.append(name, b"%s-%d;" % (name.encode(), number) * 20)
            await self.flusher.flush_now()

    async def page_out(self) -> None:
        self.world.now += LATE_MS + 1
        await self.merger.merge_due()

    def machine(self, name: str = NAME) -> Machine:
        return self.world.machines()[group_of(name, GROUPS)]

    def stream(self, name: str = NAME) -> Stream:
        return self.machine(name).directory.streams[name]

    def pages(self, name: str = NAME) -> list[ColdSlice]:
        return [
            cold for cold in self.machine(name).packs.index_of(self.stream(name)) if cold.is_page
        ]

    async def check_from(self, record: int) -> None:
        """Check that the kept records read as written."""
        reader, found = self.new_reader(), b""
        for cold in self.machine().packs.whole_index_of(self.stream()):
            inner = await reader.spread([cold], record, 1 << 62)
            for each in inner:
                batches = await reader.batches(each)
                found += b"".join(
                    bytes(batch.payload) for batch in batches if batch.record >= record
                )
        found += b"".join(batch.payload for batch in self.stream().hot or ())
        at = self.written[NAME].index(b"%s-%d;" % (NAME.encode(), record))
        assert found == self.written[NAME][at:]

    def check_nothing_leaks_but_pages(self) -> None:
        """Check that the store has exactly the objects of indexes and pages, and that the group
        knows the slices outside pages."""
        whole = {
            cold.pack
            for machine in self.world.machines().values()
            for stream in machine.directory.streams.values()
            for cold in machine.packs.whole_index_of(stream)
        }
        assert set(self.store.objects) == whole | self.of_pages()
        known = {key for machine in self.world.machines().values() for key in machine.packs.owned}
        assert whole <= known <= whole | self.of_pages()

    def trim(self, record: int, name: str = NAME) -> None:
        stream = self.stream(name)
        at = self.written[name].index(b"%s-%d;" % (name.encode(), record))
        command = Trim([(stream.uid, record, at)], self.world.now)
        assert self.world.apply(stream.uid >> 48, command).detail[0] is not None


def test_closed_entries_become_pages_and_all_reads_back() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        packs = {cold.pack for cold in tier.indexes()[NAME]}
        assert len(packs) == 30
        await tier.page_out()
        entries = tier.indexes()[NAME]
        assert [cold.batches for cold in entries if cold.is_page] == [8, 8, 8, 5]
        assert len(entries) == 4 + 1
        machine = tier.machine()
        assert len(machine.packs.held) == len(machine.packs.owned) == 5, (
            "the packs of a page are its own"
        )
        assert tier.of_pages() | {cold.pack for cold in entries if not cold.is_page} == packs
        await tier.check()
        await tier.settle_all()
        assert packs <= set(tier.store.objects), "a sweep leaves what a page names"
        await tier.check()
        restored = machine_from(snapshot_of(machine), lambda position, uid: b"")
        assert snapshot_of(restored) == snapshot_of(machine)
        assert list(restored.packs.held.pages()) == [cold.pack for cold in tier.pages()]

    play(story)


def test_a_page_is_released_with_its_packs_when_all_of_it_is_trimmed() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        await tier.page_out()
        first, second, *_ = tier.pages()
        named = {key for key, _ in read_page(first.pack, tier.store.objects[first.pack][0]).packs}
        tier.trim(second.record - 1)
        assert tier.pages()[0] == first, "a record of it is kept"
        tier.trim(second.record)
        assert tier.pages()[0] == second
        assert list(tier.machine().packs.pages_gone) == [first.pack]
        machine = machine_from(snapshot_of(tier.machine()), lambda position, uid: b"")
        assert machine.packs.pages_gone == tier.machine().packs.pages_gone
        await tier.settle_all()
        assert not named & set(tier.store.objects)
        assert first.pack not in tier.store.objects
        assert not tier.machine().packs.pages_gone
        tier.check_nothing_leaks_but_pages()
        tier.world.apply(tier.stream().uid >> 48, Delete(NAME, tier.world.now))
        await tier.settle_all()
        assert not tier.store.objects

    play(story)


@pytest.mark.parametrize("together", [False, True])
def test_a_pack_that_others_name_stays_in_the_tables_of_its_group(together: bool) -> None:
    async def story() -> None:
        tier = Paged()
        names = [f"default/s{number}" for number in range(4)]
        if together:
            some = [f"default/s{number}" for number in range(40)]
            names = [name for name in some if group_of(name, GROUPS) == group_of(NAME, GROUPS)][:4]
        await tier.grow(12, names)
        await tier.page_out()
        assert all(tier.pages(name) for name in names)
        await tier.check()
        await tier.settle_all()
        await tier.check()
        for name in names:
            stream = tier.stream(name)
            tier.world.apply(stream.uid >> 48, Delete(name, tier.world.now))
            del tier.written[name]
            await tier.settle_all()
            await tier.check()
        assert not tier.store.objects
        assert not any(machine.packs.held for machine in tier.world.machines().values())

    play(story)


def test_a_fork_keeps_a_page_that_the_source_has_trimmed() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        await tier.page_out()
        first, second, *_ = tier.pages()
        group = tier.stream().uid >> 48
        pin = PinSource(
            NAME, "a" * 32, "default/f", tier.world.now, 3, 3 * first.length // 8, resolved=True
        )
        assert tier.world.apply(group, pin).code == Code.OK
        tier.trim(second.record)
        await tier.settle_all()
        whole = tier.machine().packs.whole_index_of(tier.stream())
        assert whole[0] == first
        assert first.pack in tier.store.objects
        tier.world.apply(group, Unpin(tier.stream().uid, "a" * 32, tier.world.now))
        await tier.settle_all()
        assert first.pack not in tier.store.objects
        tier.check_nothing_leaks_but_pages()

    play(story)


@pytest.mark.parametrize("after", [False, True])
def test_any_call_of_the_store_may_fail(after: bool) -> None:
    async def story(fail_at: int) -> int:
        tier = Paged()
        await tier.grow(20)
        store = tier.store
        store.fail_at, store.after = store.calls + fail_at, after
        began = store.calls
        for _ in range(3):
            await tier.page_out()
        calls = store.calls - began
        store.fail_at = 0
        tier.trim(8)
        await tier.check_from(8)
        tier.world.deliver()
        await tier.settle_all()
        await tier.check_from(8)
        tier.check_nothing_leaks_but_pages()
        return calls

    play_each(story, over=1)


@pytest.mark.parametrize("how", ["before", "after", "lost"])
def test_any_proposal_may_fail(how: str) -> None:
    async def story(fail_at: int) -> int:
        tier = Paged()
        await tier.grow(20)
        before = len(tier.world.proposed)
        tier.world.fail = lambda number, command: (
            how if number - before in (fail_at, fail_at + 1, fail_at + 2) else ""
        )
        for _ in range(3):
            await tier.page_out()
        tier.trim(8)
        tier.world.deliver()
        await tier.settle_all()
        await tier.check_from(8)
        calls = len(tier.world.proposed) - before
        tier.world.fail = lambda number, command: ""
        await tier.settle_all()
        await tier.check_from(8)
        tier.check_nothing_leaks_but_pages()
        return calls

    play_each(story, over=3)


def test_entries_that_change_before_the_page_is_logged_are_left_as_they_are() -> None:
    async def story(change: Callable[[Paged], None]) -> None:
        tier = Paged()
        await tier.grow()
        real = tier.world.propose

        async def propose(group: int, command: Command) -> object:
            if isinstance(command, PageEntries):
                change(tier)
            return await real(group, command)

        tier.world.propose = propose  # type: ignore[method-assign,assignment]
        await tier.page_out()
        assert not tier.pages()
        assert tier.merger.pager.counters.refused == 1
        tier.world.propose = real  # type: ignore[method-assign]
        tier.world.deliver()
        await tier.settle_all()
        await tier.check_from(tier.stream().first_record)
        tier.check_nothing_leaks_but_pages()

    def trim(tier: Paged) -> None:
        tier.trim(3)

    def merge(tier: Paged) -> None:
        machine, old = tier.machine(), tier.indexes()[NAME][2]
        pack = old.pack[:-4] + "beef"
        tier.store.objects[pack] = tier.store.objects[old.pack]
        machine.apply(PackWritten(pack, [machine.group], tier.world.now))
        one = structs.replace(old, pack=pack)
        command = ReplaceSlices(pack, machine.group, 1, [(tier.stream().uid, one)], tier.world.now)
        assert machine.apply(command).detail == [0]

    for change in (trim, merge):
        play(lambda change=change: story(change))  # type: ignore[misc]


def test_a_lost_page_is_an_error_of_its_records_alone() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        await tier.page_out()
        first, second, third, _ = tier.pages()
        await tier.store.delete([second.pack])
        reader = tier.new_reader()
        with pytest.raises(PackGone):
            await reader.page(second)
        assert len(await reader.page(first)) == len(await reader.page(third)) == 8
        verifier = PackVerifier(tier.world, tier.store)
        part = await verifier.verify("", range(GROUPS + 1))
        assert [(fault.pack, fault.kind, fault.streams) for fault in part.faults] == [
            (second.pack, "missing", [NAME])
        ]
        before = set(tier.store.objects)
        await tier.settle_all()
        assert set(tier.store.objects) == before, "its packs are not swept while it is named"
        data, *rest = tier.store.objects[third.pack]
        tier.store.objects[third.pack] = (data[:50] + b"?" + data[51:], *rest)
        with pytest.raises(CorruptData):
            await tier.new_reader().page(third)
        await tier.settle_all()
        assert set(tier.store.objects) == before, "nothing is swept where a page is damaged"

    play(story)


def test_a_pack_of_a_page_that_is_lost_is_found_with_its_streams() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        await tier.page_out()
        gone = min(tier.of_pages())
        await tier.store.delete([gone])
        part = await PackVerifier(tier.world, tier.store).verify("", range(GROUPS + 1))
        assert [(fault.pack, fault.streams) for fault in part.faults] == [(gone, [NAME])]
        assert part.packs == 34

    play(story)


def test_a_pack_that_is_logged_again_late_does_not_come_back() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        await tier.page_out()
        group, pack = tier.stream().uid >> 48, min(tier.of_pages())
        written = [
            command
            for _, command in tier.world.proposed
            if isinstance(command, PackWritten) and command.pack == pack
        ]
        assert tier.world.apply(group, written[0]).code == Code.GONE
        await tier.settle_all()
        assert pack in tier.store.objects
        await tier.check()
        late = PackWritten(
            "c1/packs/20231114-22/1-" + "0" * 32, [group], tier.machine().counters.log_ms
        )
        assert tier.world.apply(group, late).code == Code.CREATED

    play(story)


def test_a_core_whose_clock_is_far_behind_writes_packs() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow(2)
        for group, machine in tier.world.machines().items():
            machine.counters.log_ms += 3 * LATE_MS
            machine.counters.level = 3
            assert group == machine.group
        tier.append(NAME, b"more")
        await tier.flusher.flush_now()
        assert tier.world.hot_bytes() == 0
        pack = tier.indexes()[NAME][-1].pack
        assert tier.machine().packs.owned[pack].written_ms == tier.machine().counters.log_ms
        await tier.check()

    play(story)


def test_a_young_pack_stays_in_the_tables() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        await tier.merger.merge_due()
        assert not tier.pages()
        machine, stream = tier.machine(), tier.stream()
        assert stream.cold is not None
        entries = index.cut(stream.cold, 0, 4)
        key = page_key("c1", group=machine.group, now_ms=tier.world.now, random=b"p" * 16)
        keys = dict(machine.packs.by_number)
        data = build_page(key, entries, keys, group=machine.group, uid=stream.uid, now_ms=1)
        assert data is not None
        tier.world.apply(machine.group, PackWritten(key, [machine.group], tier.world.now))
        command = PageEntries(key, stream.uid, 0, 4, mark_of(entries), len(data), 0, tier.world.now)
        held = len(machine.packs.held)
        assert tier.world.apply(machine.group, command).detail == [0]
        assert len(machine.packs.held) == held + 1
        assert tier.world.apply(machine.group, command).detail == [0], "a repeat"
        packs = read_page(key, data).packs
        release = ReleasePaged(key, packs, tier.world.now)
        assert tier.world.apply(machine.group, release).code == Code.NOT_YET
        tier.trim(4)
        assert tier.world.apply(machine.group, release).code == Code.OK
        assert tier.world.apply(machine.group, release).code == Code.NOT_FOUND
        assert not any(pack in machine.packs.held for pack, _ in packs)

    play(story)


@pytest.mark.parametrize("when", ["while packs are listed", "before they are deleted"])
def test_packs_that_become_a_pages_own_during_a_sweep_stay(when: str) -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        tier.world.now += 4_000_000
        machine, stream = tier.machine(), tier.stream()
        for key, (data, version, _) in tier.store.objects.items():
            tier.store.objects[key] = (data, version, 0)
        packs = set(tier.store.objects)
        real = tier.store.list
        stale = machine_from(snapshot_of(Machine(machine.group, GROUPS)), lambda *_: b"")
        machines = tier.world.machines()

        async def listing(prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
            if prefix.endswith("/packs/") and when == "while packs are listed" and not tier.pages():
                await tier.page_out()
            async for info in real(prefix, after):
                yield info

        async def stood_still() -> bool:
            machines[machine.group] = machine
            await tier.page_out()
            return True

        tier.store.list = listing  # type: ignore[method-assign]
        collector = tier.new_collector()
        if when == "before they are deleted":
            collector = tier.new_collector(owner=stood_still)
            machines[machine.group] = stale  # as of a replica that has applied nothing yet
        swept = await collector.sweep()
        assert len(tier.pages()) == 4 and machine.directory.by_uid[stream.uid] is stream
        assert swept.deleted == (when == "before they are deleted")
        assert packs <= set(tier.store.objects)
        await tier.check()

    play(story)


def test_a_store_that_is_down_is_waited_for() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        tier.world.now += LATE_MS + 1
        tier.store.down = True
        await tier.merger.merge_due()
        assert not tier.pages()
        assert tier.merger.counters.failures == 1
        with pytest.raises(Unavailable):
            await tier.new_reader().page(structs.replace(tier.indexes()[NAME][0]))
        tier.store.down = False
        await tier.page_out()
        assert len(tier.pages()) == 4
        await tier.check()

    play(story)


def test_readers_of_a_page_share_a_fetch() -> None:
    async def story() -> None:
        tier = Paged()
        await tier.grow()
        await tier.page_out()
        reader, calls = tier.new_reader(), tier.store.calls
        found = await asyncio.gather(*(reader.page(tier.pages()[0]) for _ in range(5)))
        assert len({id(each) for each in found}) == 1
        assert tier.store.calls == calls + 1
        assert reader.kept_page(tier.pages()[0]) is found[0]

    play(story)
