"""A backup is taken beside everything else, is whole, and gives back every record at its offset."""

from __future__ import annotations

import asyncio
import gc
import io
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from google_crc32c import value as crc32c
from msgspec import structs
from worlds.backup import ALL, BackedUp, FakeSource, opened, restored, taken
from worlds.cold import CLUSTER, GROUPS, SETTINGS, no_sleep
from worlds.stream import raw_batch

from polynya.backup import copies, progress, pruning
from polynya.backup.group_file import Header
from polynya.backup.manifest import Manifest, new_id
from polynya.backup.pruning import prune
from polynya.backup.repository import TarReader, TarWriter, backups_on, chosen
from polynya.backup.streams import BackupStreams, size_of, streams_of
from polynya.backup.verifying import BackupVerifier
from polynya.backup.writer import BackupProgress, BackupWriter
from polynya.base.errors import ConfigError, CorruptData, Unavailable
from polynya.base.names import group_of
from polynya.cli.storage.locations import to_write
from polynya.cold import Evictor, EvictSettings, Flusher
from polynya.config import node_identity
from polynya.objectstore import MemoryStore, ObjectInfo, StoreUnavailable, claim_root, release_root
from polynya.recovery.restore import INDEX, TERM, check_root
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.tables.commands import TableCreate
from polynya.stream.parts import Producer
from polynya.stream.replies import Code
from polynya.stream.snapshots.restore_history import UID_JUMP
from polynya.stream.state.record_gaps import JUMP
from polynya.tiering.root_claim import MEMBERS

Test = Callable[..., Coroutine[Any, Any, None]]


def run(test: Test) -> Callable[..., None]:
    def sync(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    sync.__name__, sync.__doc__ = test.__name__, test.__doc__
    return sync


async def half_cold() -> BackedUp:
    """Some of every stream in packs, some hot."""
    tier = BackedUp()
    tier.fill(5, 4)
    await tier.flusher.flush_now()
    tier.fill(5, 3)
    return tier


async def verified(repository: Any) -> list[str]:
    return [
        f"{each.name}: {each.what}"
        for each in (await BackupVerifier(repository, await chosen(repository)).run()).damages
    ]


async def check_restored(
    tier: BackedUp, folder: Path, repository: MemoryStore, manifest: Manifest
) -> None:
    store = MemoryStore()
    await restored(folder, repository, manifest, store)
    machines, storages = opened(folder)
    tier.store.objects = store.objects
    for number in ALL:
        tier.world.machines()[number] = machines[number]
    for name, payload in tier.written.items():
        assert await tier.world.read(name, tier.new_reader()) == payload
    for storage in storages:
        storage.journal.close()


@run
async def test_every_record_is_back_at_its_offset(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    before = {
        name: [(cold.record, cold.byte) for cold in slices]
        for name, slices in tier.indexes().items()
    }
    manifest, done = await taken(FakeSource(tier), repository)
    assert await verified(repository) == []
    assert done.objects == manifest.objects.count > 0
    await check_restored(tier, tmp_path / "new", repository, manifest)
    assert {
        name: [(cold.record, cold.byte) for cold in slices]
        for name, slices in tier.indexes().items()
    } == before


@run
async def test_compressed_packs_are_copied_and_read_back(tmp_path: Path) -> None:
    """Verify, restore, and read the streams one by one."""
    tier, repository = BackedUp(), MemoryStore()
    flush = structs.replace(SETTINGS, slice_bytes_max=4000, zstd_level=3)
    tier.flusher = Flusher(tier.world, tier.store, flush, CLUSTER, sleep=no_sleep)
    tier.fill(5, 20)
    await tier.flusher.flush_now()
    entries = [cold for slices in tier.indexes().values() for cold in slices]
    assert entries and all(cold.is_compressed for cold in entries)
    manifest, _ = await taken(FakeSource(tier), repository)
    assert await verified(repository) == []
    backup = await chosen(repository)
    streams = BackupStreams(repository, backup)
    for number in ALL:
        machine = await streams.machine(number)
        for stream in streams_of(machine):
            pieces = [piece.payload async for piece in streams.pieces(machine, stream)]
            assert b"".join(pieces) == tier.written[stream.name]
    await check_restored(tier, tmp_path / "new", repository, manifest)


@run
async def test_a_second_backup_copies_only_what_is_new(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    await taken(FakeSource(tier), repository)
    tier.fill(5, 1)
    await tier.flusher.flush_now()
    source = FakeSource(tier)
    manifest, done = await taken(source, repository)
    assert done.kept > 0
    assert done.objects == len(source.copied) > 0
    assert done.objects + done.kept == manifest.objects.count == len(tier.live())
    assert len(await backups_on(repository)) == 2
    assert await verified(repository) == []


@run
async def test_one_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    source = FakeSource(tier)
    manifest, _ = await taken(source, repository)
    await repository.delete([f"backups/{manifest.id}/manifest.json"])
    with pytest.raises(ConfigError, match="interrupted"):
        await chosen(repository)
    again, done = await taken(source, repository)
    assert (done.objects, done.kept) == (0, again.objects.count)
    assert again.objects.crc == manifest.objects.crc
    assert await verified(repository) == []


class Shaky(MemoryStore):
    """Every third write is answered 503, every other one of these after it was done."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        self.writes += 1
        if self.writes % 6 == 3:
            raise StoreUnavailable("503 Slow Down")
        await super().put(key, parts)
        if self.writes % 6 == 0:
            raise StoreUnavailable("no answer came in time")


@run
async def test_a_place_that_fails_now_and_then_gets_a_whole_backup(tmp_path: Path) -> None:
    tier, repository = await half_cold(), Shaky()
    with mock.patch.object(progress, "PAUSES", (0.0, 0.0)):
        manifest, done = await taken(FakeSource(tier), repository)
    assert done.objects == manifest.objects.count > 0 and repository.writes > 8
    assert await verified(repository) == []


@run
async def test_an_object_store_that_fails_now_and_then_gets_what_is_restored(
    tmp_path: Path,
) -> None:
    tier, repository, store = BackedUp(), MemoryStore(), Shaky()
    for _ in range(5):
        tier.fill(3, 2)
        await tier.flusher.flush_now()
    manifest, _ = await taken(FakeSource(tier), repository)
    with mock.patch.object(progress, "PAUSES", (0.0, 0.0)):
        done = await restored(tmp_path / "new", repository, manifest, store)
    assert done.objects == manifest.objects.count > 2 and store.writes > 8
    assert {f"objects/{key}" for key in store.objects if "/packs/" in key} == {
        key for key in repository.objects if "/packs/" in key
    }


@run
async def test_a_place_that_stays_away_is_asked_a_few_times(tmp_path: Path) -> None:
    tier, repository, asked = await half_cold(), MemoryStore(), list[str]()

    async def away(key: str, parts: bytes | Sequence[bytes]) -> str:
        asked.append(key)
        raise StoreUnavailable("403 Forbidden")

    repository.put = away  # type: ignore[method-assign]
    with (
        mock.patch.object(progress, "PAUSES", (0.0, 0.0)),
        pytest.raises(StoreUnavailable, match="403"),
    ):
        await taken(FakeSource(tier), repository)
    assert len(asked) == 3


@run
async def test_two_backups_to_one_place_at_the_same_time_are_both_whole(tmp_path: Path) -> None:
    """Both bring the same objects."""
    tier, repository = await half_cold(), MemoryStore()
    source, late = FakeSource(tier), list[Manifest]()
    original = source.objects

    async def objects(prefix: str) -> Any:
        if not late:
            late.append((await taken(FakeSource(tier), repository))[0])
        async for each in original(prefix):
            yield each

    source.objects = objects  # type: ignore[method-assign]
    manifest, done = await taken(source, repository)
    assert done.objects == manifest.objects.count == late[0].objects.count > 0
    for each in (manifest, *late):
        assert (await BackupVerifier(repository, each).run()).damages == []


@run
async def test_another_object_of_the_same_name_is_another_clusters(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    source = FakeSource(tier)
    source.before_capture = lambda group: repository.objects.update(
        {f"objects/{key}": (b"other", 1, 1) for key in tier.store.objects}
    )
    with pytest.raises(CorruptData, match="another cluster"):
        await taken(source, repository)


@run
async def test_a_group_whose_packs_went_meanwhile_is_taken_again(tmp_path: Path) -> None:
    tier, repository = BackedUp(), MemoryStore()
    for _ in range(20):
        tier.fill(3, 2)
        await tier.flusher.flush_now()
    source = FakeSource(tier)

    def merge(group: int) -> None:
        if group == GROUPS and not merged:  # the others are taken, the packs are not copied yet
            merged.append(asyncio.get_running_loop().create_task(merge_all()))

    async def merge_all() -> None:
        assert await tier.merger.merge_due()
        await tier.store.delete([key for key in tier.store.objects if key not in tier.live()])

    merged: list[asyncio.Task[None]] = []
    source.before_capture = merge
    original = source.objects

    async def objects(prefix: str) -> Any:
        await merged[0]
        async for each in original(prefix):
            yield each

    source.objects = objects  # type: ignore[method-assign]
    manifest, _ = await taken(source, repository)
    assert len(source.captured) > len(ALL)
    assert await verified(repository) == []
    await check_restored(tier, tmp_path / "new", repository, manifest)


@run
async def test_a_capture_that_is_lost_is_made_again(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    source = FakeSource(tier)
    source.lost = {"1-1", "2-3"}
    await taken(source, repository)
    assert source.captured == [0, 1, 1, 2, 2, 3]
    assert await verified(repository) == []


@run
async def test_verify_names_each_thing_that_is_damaged(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    await taken(FakeSource(tier), repository)
    for key in [key for key in repository.objects if not key.endswith("manifest.json")]:
        data = await repository.get(key)
        for at in {0, len(data) // 2, len(data) - 1}:
            flipped = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
            await repository.delete([key])
            await repository.put(key, flipped)
            found = await verified(repository)
            assert any(key.startswith(each.split(":")[0]) for each in found), (key, at, found)
        await repository.delete([key])
        assert any(
            key.startswith(each.split(" ")[0].rstrip(":")) for each in await verified(repository)
        ), key
        await repository.put(key, data)
    assert await verified(repository) == []


@run
async def test_streams_that_need_a_damaged_pack_are_named(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    await taken(FakeSource(tier), repository)
    pack = min(tier.live())
    await repository.delete([f"objects/{pack}"])
    found = (await BackupVerifier(repository, await chosen(repository)).run()).damages
    needing = {
        name for name, slices in tier.indexes().items() if any(cold.pack == pack for cold in slices)
    }
    assert [(each.name, each.what, set(each.streams)) for each in found] == [
        (f"objects/{pack}", "missing", needing)
    ]


@run
async def test_a_damaged_manifest_is_no_backup(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    manifest, _ = await taken(FakeSource(tier), repository)
    key = f"backups/{manifest.id}/manifest.json"
    data = await repository.get(key)
    for at in range(0, len(data), 17):
        await repository.delete([key])
        await repository.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptData, match=manifest.id):
            await chosen(repository)


@run
async def test_a_tar_file_is_the_same_backup(tmp_path: Path) -> None:
    tier = await half_cold()
    out = io.BytesIO()
    tar = TarWriter(out)
    await BackupWriter(FakeSource(tier), tar, None, BackupProgress()).take()
    await tar.close()
    path = tmp_path / "b.tar"
    path.write_bytes(out.getvalue())
    reader = TarReader(path)
    assert await verified(reader) == []
    repository = MemoryStore()
    for key in [info.key async for info in reader.list("")]:
        await repository.put(key, await reader.get(key))
    await reader.close()
    await check_restored(tier, tmp_path / "new", repository, await chosen(repository))
    path.write_bytes(out.getvalue()[: len(out.getvalue()) // 2])
    with pytest.raises((CorruptData, ConfigError)):
        await chosen(TarReader(path))


@run
async def test_what_is_put_into_a_tar_file_at_the_same_time_lies_one_behind_the_other(
    tmp_path: Path,
) -> None:
    objects = {f"objects/{number}": bytes([number]) * 300_000 for number in range(30)}
    with (tmp_path / "b.tar").open("wb") as out:
        tar = TarWriter(out)
        await asyncio.gather(
            *(tar.put(key, [data[:70_000], data[70_000:]]) for key, data in objects.items())
        )
        await tar.close()
    reader = TarReader(tmp_path / "b.tar")
    assert {info.key: await reader.get(info.key) async for info in reader.list("")} == objects
    await reader.close()


@run
async def test_a_tar_file_that_finds_no_room_is_given_up_without_a_rest(tmp_path: Path) -> None:
    unseen: list[object] = []

    async def half_a_file() -> None:
        async with to_write(str(tmp_path / "b.tar"), None) as (repository, _):
            await repository.put("objects/1", bytes(100_000))
            raise OSError("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", unseen.append)
        with Path("/dev/full").open("wb", buffering=0) as full:
            tar = TarWriter(full)
            with pytest.raises(OSError, match="No space"):
                await tar.put("objects/1", bytes(100_000))
            tar.abandon()
        with pytest.raises(OSError, match="No space"):
            await half_a_file()
        del tar
        gc.collect()
    assert unseen == [] and list(tmp_path.iterdir()) == []


@run
async def test_a_file_of_a_group_that_is_cut_short_is_named(tmp_path: Path) -> None:
    repository = MemoryStore()
    await taken(FakeSource(await half_cold()), repository)
    key = next(key for key in sorted(repository.objects) if "/groups/" in key)
    data = await repository.get(key)
    await repository.delete([key])
    await repository.put(key, data[:-7])
    (damage,) = await verified(repository)
    name = key.rpartition("/")[0]
    assert damage == (
        f"{name}: {name} is truncated: it has {len(data) - 7:,} of {len(data):,} bytes, and "
        f"{name}/00001 is missing"
    )


@run
async def test_old_backups_go_and_the_rest_stays_whole(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    first, _ = await taken(FakeSource(tier), repository)
    tier.world.delete("default/s0")
    tier.written.pop("default/s0")
    tier.world.now += 10_000_000
    tier.world.deliver()
    last, _ = await taken(FakeSource(tier), repository)
    keep = max(first.id, last.id)
    assert await prune(repository, 1) == [min(first.id, last.id)]
    assert [each.id for each in await backups_on(repository)] == [keep]
    assert await verified(repository) == []
    named = {
        key.removeprefix("objects/") for key in repository.objects if key.startswith("objects/")
    }
    assert len(named) == (await chosen(repository)).objects.count


@run
async def test_a_backup_whose_place_is_tidied_meanwhile_is_whole_or_none(tmp_path: Path) -> None:
    """Tidy as a concurrent backup with `--keep` does: it knows nothing of the files that this
    backup found or wrote."""
    tier, repository = await half_cold(), MemoryStore()
    await taken(FakeSource(tier), repository)
    source = FakeSource(tier)

    def tidy(begin: str) -> None:
        for key in [
            key
            for key in repository.objects
            if key.startswith(begin) and not key.endswith("/manifest.json")
        ]:
            del repository.objects[key]

    source.before_capture = lambda group: (
        tidy("objects/") if group == GROUPS and len(source.captured) == GROUPS else None
    )
    manifest, done = await taken(source, repository)
    assert done.objects == manifest.objects.count > 0, "they were copied again"
    assert (await BackupVerifier(repository, manifest).run()).damages == []
    source = FakeSource(tier)
    source.before_capture = lambda group: tidy("backups/") if group == GROUPS else None
    with pytest.raises(Unavailable, match="files of this backup were deleted"):
        await taken(source, repository)


class Tidied(MemoryStore):
    """Another backup with `--keep` deletes an old one just when the `at`-th object of it is read:
    its manifest first, or the list that this names."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at, self.old = at, ""

    async def get(self, key: str) -> bytes:
        if self.old and self.old in key:
            self._at -= 1
            for name in [name for name in self.objects if self.old in name and self._at < 0]:
                del self.objects[name]
        return await super().get(key)


@run
async def test_an_old_backup_that_goes_while_it_is_looked_at_keeps_none_from_being_taken(
    tmp_path: Path,
) -> None:
    for at in (0, 1):
        tier, repository = await half_cold(), Tidied(at)
        first, _ = await taken(FakeSource(tier), repository)
        repository.old = first.id
        manifest, done = await taken(FakeSource(tier), repository)
        assert done.kept == manifest.objects.count > 0
        assert [each.id for each in await backups_on(repository)] == [manifest.id]
        assert await verified(repository) == []


@run
async def test_of_tables_only_what_stays_is_taken(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    tier.world.apply(0, TableCreate("t", "default/", 1))
    log = "tables/1/main/_delta_log"
    for key in (
        f"{log}/00000000000000000001.json",
        f"{log}/00000000000000000002.json#1",
        f"{log}/_commit_0a-b.json.tmp",
        f"{log}/_last_checkpoint",
    ):
        await tier.store.put(key, b"{}")
    await taken(FakeSource(tier), repository)
    assert [key for key in sorted(repository.objects) if "tables" in key] == [
        f"objects/{log}/00000000000000000001.json"
    ]


@run
async def test_what_a_backup_under_way_has_brought_or_counts_on_stays(tmp_path: Path) -> None:
    """Keep objects that only a running backup needs, also when it began long before the newest
    whole one."""
    tier, repository = await half_cold(), MemoryStore()
    for after_ms in (1000, -10_000_000):
        running = f"backups/{new_id(time.time_ns() // 1_000_000 + after_ms, bytes(4))}/groups/00000-00/00000"
        await repository.put(running, b"state")
        for key in ("objects/c1/packs/counted-on", "objects/c1/packs/new"):
            await repository.put(key, b"pack")
        repository.objects["objects/c1/packs/counted-on"] = (b"pack", 1, 1)
        await taken(FakeSource(tier), repository)
        await prune(repository, 1)
        assert {
            running,
            "objects/c1/packs/counted-on",
            "objects/c1/packs/new",
        } < repository.objects.keys()
        data, version, modified_ms = repository.objects[running]
        repository.objects[running] = (data, version, modified_ms - pruning.UNDER_WAY_MS - 1)
        await prune(repository, 1)
        assert (
            not {"objects/c1/packs/counted-on", "objects/c1/packs/new"} & repository.objects.keys()
        ), "it was interrupted"
        await repository.delete([running])


@run
async def test_a_backup_that_begins_while_old_ones_go_finds_what_it_counts_on(
    tmp_path: Path,
) -> None:
    """Begin a backup between the search for needed objects and the deletion."""
    tier, repository = await half_cold(), MemoryStore()
    await taken(FakeSource(tier), repository)
    await repository.put("objects/c1/packs/counted-on", b"pack")
    original, running = (
        repository.list,
        f"backups/{new_id(time.time_ns() // 1_000_000 + 1000, bytes(4))}/groups/00000-00/00000",
    )

    async def listed(prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in original(prefix, after):
            yield info
        if prefix == "objects/":
            repository.objects[running] = (b"state", 1, time.time_ns() // 1_000_000)

    repository.list = listed  # type: ignore[method-assign]
    assert await prune(repository, 1) == []
    assert "objects/c1/packs/counted-on" in repository.objects


@run
async def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    manifest, _ = await taken(FakeSource(tier), repository)
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "precious").touch()
    with pytest.raises(ConfigError, match="precious"):
        await restored(folder, repository, manifest, MemoryStore())
    (folder / "precious").unlink()
    await restored(folder, repository, manifest, MemoryStore())
    with pytest.raises(ConfigError, match="holds the data of a node"):
        await restored(folder, repository, manifest, MemoryStore())


@run
async def test_a_restore_that_was_interrupted_begins_anew(tmp_path: Path) -> None:
    tier, repository = await half_cold(), MemoryStore()
    manifest, _ = await taken(FakeSource(tier), repository)
    part = f"{manifest.files[GROUPS].name}/00000"
    data = await repository.get(part)
    await repository.delete([part])
    with pytest.raises(CorruptData, match="missing"):
        await restored(tmp_path / "new", repository, manifest, MemoryStore())
    assert (tmp_path / "new" / node_identity.RESTORING).exists()
    assert not (tmp_path / "new" / node_identity.FILE).exists()
    await repository.put(part, data)
    await check_restored(tier, tmp_path / "new", repository, manifest)


@run
async def test_what_was_restored_with_a_store_and_went_on_there_is_not_restored_there_again(
    tmp_path: Path,
) -> None:
    """Refuse a second restore of the same history: it would assign offsets twice. Other nodes of a
    cluster may still be restored."""
    store = MemoryStore()
    await release_root(store, await claim_root(store, CLUSTER, 7, "start"))
    for node, history, is_refused in (
        (0, 7, True),
        (0, 6, True),
        (0, 8, False),
        (2, 7, False),
        (2, 6, True),
    ):
        new = node_identity.NodeIdentity(
            cluster_id=CLUSTER, node=node, history=history, groups=1, cores=1, created_ms=0
        )
        if is_refused:
            with pytest.raises(ConfigError, match="before"):
                await check_root(store, new, take_over=True)
        else:
            await check_root(store, new, take_over=False)


@run
async def test_a_cluster_that_was_restored_with_a_store_and_went_on_there_is_not_restored_there_again(
    tmp_path: Path,
) -> None:
    """Restore nodes one by one, with immediate starts. A majority can elect a leader and continue,
    and its states are copied; then a second restore is refused."""
    store, state = MemoryStore(), b"state"
    await release_root(store, await claim_root(store, CLUSTER, 7, MEMBERS))
    new = node_identity.NodeIdentity(
        cluster_id=CLUSTER, node=2, nodes=(1, 2, 3), history=7, groups=1, cores=1, created_ms=0
    )
    for index, term in ((INDEX, TERM), (INDEX + 1, TERM + 1)):
        await check_root(store, new, take_over=False)
        await copies.write(
            store,
            (CLUSTER, 7),
            Header(1, term, index, 0, len(state), int(crc32c(state)), 0),
            [state],
        )
    for take_over in (False, True):
        with pytest.raises(ConfigError, match=r"have run since.* starts on an empty folder"):
            await check_root(store, new, take_over=take_over)
    await check_root(store, structs.replace(new, history=8), take_over=True)


@run
async def test_the_new_history_goes_on_behind_a_hole_and_knows_its_producers(
    tmp_path: Path,
) -> None:
    tier, repository = await half_cold(), MemoryStore()
    name, group = "default/s0", group_of("default/s0", GROUPS)
    stream = tier.world.machines()[group].directory.streams[name]
    append = Append(name, tier.world.now, "text/plain", raw_batch(b"once"), Producer("p", 0, 0))
    assert tier.world.apply(group, append).code == Code.OK
    tail = stream.next_record
    manifest, _ = await taken(FakeSource(tier), repository)
    store = MemoryStore()
    await restored(tmp_path / "new", repository, manifest, store)
    machines, storages = opened(tmp_path / "new")
    for number in ALL:
        tier.world.machines()[number] = machines[number]
    reply = tier.world.apply(group, append)
    assert (reply.code, reply.first_record) == (Code.DUPLICATE, tail - 1)
    after = tier.world.apply(
        group, Append(name, tier.world.now, "text/plain", raw_batch(b"later"), Producer("p", 0, 1))
    )
    assert (after.code, after.record) == (Code.OK, tail + JUMP + 1)
    assert manifest.next_history > manifest.history
    assert tier.world.machines()[group].counters.uids > UID_JUMP
    for storage in storages:
        storage.journal.close()


@run
async def test_evicted_streams_are_read_out_of_a_backup(tmp_path: Path) -> None:
    tier, repository = BackedUp(), MemoryStore()
    tier.fill(5, 4)
    await tier.flusher.flush_now()
    tier.world.now += 1000
    settings = EvictSettings(after_ms=1000, few=1)
    evictor = Evictor(
        tier.world, tier.store, settings, CLUSTER, in_flight=tier.flusher.in_flight, sleep=no_sleep
    )
    assert await evictor.evict_due() == len(tier.written)
    manifest, _ = await taken(FakeSource(tier), repository)
    library, found = BackupStreams(repository, manifest), {}
    for group in ALL:
        machine = await library.machine(group)
        assert not machine.directory.streams
        for stream in streams_of(machine):
            pieces = [piece async for piece in library.pieces(machine, stream)]
            found[stream.name] = b"".join(piece.payload for piece in pieces)
            assert size_of(stream) == (
                sum(piece.records for piece in pieces),
                len(found[stream.name]),
            )
    assert found == {name: bytes(payload) for name, payload in tier.written.items()}
    await repository.delete([key for key in repository.objects if "/packs/" in key])
    with pytest.raises(CorruptData, match="is missing"):
        [piece async for piece in library.pieces(machine, stream)]
