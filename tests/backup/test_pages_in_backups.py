"""Backups of paged indexes include the pages and their packs; so does a recovery from the store
alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from google_crc32c import value as crc32c
from msgspec import structs
from worlds.backup import ALL, BackedUp, FakeSource, file_of, made, opened, restored, taken
from worlds.cold import CLUSTER, GROUPS
from worlds.paged import page_out
from worlds.transactions import ABORTING, Planter

from polynya.backup import copies
from polynya.backup.copies import CompleteMark
from polynya.backup.group_file import Header
from polynya.backup.repository import chosen
from polynya.backup.streams import BackupStreams, streams_of
from polynya.backup.verifying import BackupVerifier, Damage
from polynya.base.names import group_of
from polynya.objectstore import MemoryStore, claim_root
from polynya.recovery.from_backup import FromBackup, renaming
from polynya.recovery.from_store import FromStore
from polynya.recovery.restore import RestoreOrigin
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.pages.rules import LATE_MS
from polynya.stream.features.retention.commands import Trim
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.replies import Reply
from polynya.stream.snapshots.encode import snapshot_of
from polynya.stream.state import index
from polynya.stream.state.entries import packed

NAMES = [f"default/s{number}" for number in range(3)]


async def paged(seed: int = 1) -> BackedUp:
    """Streams with pages, slices and hot records."""
    tier, dice = BackedUp(), Random(seed)
    for _ in range(12):
        tier.fill(3, 1)
        await tier.flusher.flush_now()
    for _ in range(5):
        tier.append(NAMES[0], b"%d;" % len(tier.written[NAMES[0]]))
        await tier.flusher.flush_now()
    tier.world.now += LATE_MS + 1
    for name in NAMES:
        assert await page_out(tier.world, tier.store, CLUSTER, name, dice) > 1
    tier.fill(3, 1)
    return tier


def machine_of(tier: BackedUp, name: str) -> Machine:
    return tier.world.machines()[group_of(name, GROUPS)]


async def check_opened(
    tier: BackedUp, folder: Path, store: MemoryStore, cluster: str = CLUSTER
) -> None:
    machines, storages = opened(folder, cluster=cluster)
    tier.store.objects = store.objects
    for number in ALL:
        tier.world.machines()[number] = machines[number]
    for name, payload in tier.written.items():
        assert await tier.world.read(name, tier.new_reader()) == payload
    for storage in storages:
        storage.journal.close()


def test_a_backup_has_pages_and_their_packs(tmp_path: Path) -> None:
    async def story() -> None:
        tier, repository = await paged(), MemoryStore()
        own = tier.of_pages() - {
            key for each in tier.world.machines().values() for key in each.packs.held
        }
        assert own, "packs that only pages name"
        manifest, done = await taken(FakeSource(tier), repository)
        assert done.damaged == []
        wanted = tier.live() | tier.of_pages()
        assert {
            key.removeprefix("objects/") for key in repository.objects if "objects/" in key[:8]
        } == wanted
        found = await BackupVerifier(repository, await chosen(repository)).run()
        assert found.damages == []
        streams = BackupStreams(repository, manifest)
        for name in NAMES:
            machine = await streams.machine(group_of(name, GROUPS))
            (stream,) = [each for each in streams_of(machine) if each.name == name]
            pieces = [piece.payload async for piece in streams.pieces(machine, stream)]
            assert b"".join(pieces) == tier.written[name]
        store = MemoryStore()
        await restored(tmp_path / "new", repository, manifest, store)
        await check_opened(tier, tmp_path / "new", store)

    asyncio.run(story())


def test_pages_are_read_under_another_cluster_id(tmp_path: Path) -> None:
    async def story() -> None:
        tier, repository, store = await paged(), MemoryStore(), MemoryStore()
        manifest, _ = await taken(FakeSource(tier), repository)
        rename, folder = renaming(manifest.cluster, "d2"), tmp_path / "new"
        origin = RestoreOrigin(cluster_id="d2", history=1, groups=manifest.groups)
        states = FromBackup(repository, manifest, rename, has_store=True)
        await made(folder, origin, states, store, rename=rename)
        assert all(key.startswith("d2/") for key in store.objects)
        await check_opened(tier, folder, store, "d2")

    asyncio.run(story())


@pytest.mark.parametrize("what", ["page", "pack"])
def test_a_verification_finds_what_pages_lack(what: str) -> None:
    async def story() -> None:
        tier, repository = await paged(), MemoryStore()
        await taken(FakeSource(tier), repository)
        own = tier.of_pages() - {
            key for each in tier.world.machines().values() for key in each.packs.held
        }
        gone = min(own) if what == "pack" else min(key for key in tier.live() if "/pages/" in key)
        del repository.objects[f"objects/{gone}"]
        found = await BackupVerifier(repository, await chosen(repository)).run()
        assert [(each.name, each.what) for each in found.damages] == [
            (f"objects/{gone}", "missing")
        ]
        assert found.damages[0].streams

    asyncio.run(story())


def test_a_page_that_is_released_while_it_is_copied_is_taken_again() -> None:
    async def story() -> None:
        tier, repository = await paged(), MemoryStore()
        source, real = FakeSource(tier), tier.store.get_range
        released: list[str] = []

        async def get_range(key: str, start: int, length: int) -> bytes:
            if "/pages/" in key and not released:
                released.append(key)
                for name in NAMES:
                    stream = machine_of(tier, name).directory.streams[name]
                    at = (stream.uid, stream.next_record, stream.next_byte)
                    tier.world.apply(stream.uid >> 48, Trim([at], tier.world.now))
                await tier.settle_all()
            return await real(key, start, length)

        tier.store.get_range = get_range  # type: ignore[method-assign]
        manifest, _ = await taken(source, repository)
        assert released and released[0] not in tier.store.objects
        assert (await BackupVerifier(repository, manifest).run()).damages == []

    asyncio.run(story())


@pytest.mark.parametrize("late", [False, True])
def test_the_store_alone_gives_paged_streams_back(tmp_path: Path, late: bool) -> None:
    async def story() -> None:
        tier = await paged()
        await tier.flusher.flush_now()
        await claim_root(tier.store, CLUSTER, 1, "lost")
        whole = CompleteMark(CLUSTER, 1, GROUPS)

        async def copy() -> None:
            for number, machine in tier.world.machines().items():
                state = file_of(number, machine, (1, 7), tier.world.now)
                header = Header(
                    number,
                    1,
                    7,
                    tier.world.now,
                    len(snapshot_of(machine)),
                    crc32c(snapshot_of(machine)),
                    0,
                )
                await copies.write(
                    tier.store, (CLUSTER, 1), header, [state[-len(snapshot_of(machine)) :]]
                )
            await copies.mark(tier.store, whole)

        await copy()
        if late:  # pages that no copy names, of packs that it names; and packs that it does not
            for _ in range(6):
                tier.fill(3, 1)
                await tier.flusher.flush_now()
            tier.world.now += LATE_MS + 1
            for name in NAMES:
                assert await page_out(tier.world, tier.store, CLUSTER, name, Random(9)) > 0
        states = await FromStore.open(tier.store)
        assert states.warnings == []
        assert states.packs <= 6 * late, "packs of pages are not read again"
        origin = RestoreOrigin(cluster_id=CLUSTER, history=states.next_history, groups=GROUPS)
        store = MemoryStore()
        store.objects = tier.store.objects
        await made(tmp_path / "new", origin, states, store)
        await check_opened(tier, tmp_path / "new", store)

    asyncio.run(story())


def test_a_lost_page_costs_its_own_records_alone(tmp_path: Path) -> None:
    async def story() -> None:
        tier = await paged()
        await tier.flusher.flush_now()
        await claim_root(tier.store, CLUSTER, 1, "lost")
        for number, machine in tier.world.machines().items():
            state = snapshot_of(machine)
            header = Header(number, 1, 7, tier.world.now, len(state), crc32c(state), 0)
            await copies.write(tier.store, (CLUSTER, 1), header, [state])
        await copies.mark(tier.store, CompleteMark(CLUSTER, 1, GROUPS))
        lost = next(cold for cold in tier.indexes()[NAMES[0]] if cold.is_page)
        await tier.store.delete([lost.pack])
        states = await FromStore.open(tier.store)
        assert states.warnings == [
            f"{lost.pack} is missing from the store; its records cannot be read"
        ]
        image = (await states.state(group_of(NAMES[0], GROUPS))).image
        (stream,) = [each for each in image.streams if each.name == NAMES[0]]
        known = machine_of(tier, NAMES[0]).directory.streams[NAMES[0]]
        assert stream.next_record == known.next_record

    asyncio.run(story())


def test_a_verification_finds_entries_that_have_lost_their_flags() -> None:
    """An older release published such entries: a restore has the same records of aborted
    transactions as its origin."""

    async def story() -> None:
        tier, name = BackedUp(), "kafka/t/0"
        group = group_of(name, GROUPS)
        machine = tier.world.machines()[group]
        tier.world.apply(group, Create(name, tier.world.now, "", Encoding.KAFKA))
        stream = machine.directory.streams[name]

        async def send(command: Command, _origin: str = "") -> Reply:
            return await tier.world.propose(group, command)

        planter = Planter(name, lambda: stream, send)
        planter.now_ms = tier.world.now
        await planter.write(b"plain")
        await tier.flusher.flush_now()
        await planter.write(b"aborted", producer=ABORTING)
        await planter.end(ABORTING)
        await tier.flusher.flush_now()

        async def verified() -> list[Damage]:
            repository = MemoryStore()
            await taken(FakeSource(tier), repository)
            return (await BackupVerifier(repository, await chosen(repository)).run()).damages

        assert await verified() == []
        entries = list(machine.packs.index_of(stream))
        lost = [structs.replace(each, flags=0) for each in entries]
        rows = [packed(each, machine.packs.held[each.pack].number) for each in lost]
        assert stream.cold is not None
        stream.cold = index.replaced(stream.cold, 0, len(lost), b"".join(rows))
        (damage,) = await verified()
        assert damage.name == f"objects/{entries[-1].pack}" and damage.streams == [name]
        assert "lacks the marks of transactions" in damage.what

    asyncio.run(story())
