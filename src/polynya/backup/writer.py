"""Take a backup: the groups' files, then the objects that they name, then the manifest
(docs/formats/backup.md).

The cluster keeps running. Commits of transactions are held for a moment while all groups are
captured, unless there are none. An object that a group named when its file was taken may be deleted
before it is copied (merged, trimmed). Then that group is taken again. Objects already in the
repository are not copied again, even if an interrupted backup wrote them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from secrets import token_bytes

import msgspec
from google_crc32c import extend
from google_crc32c import value as crc32c

from polynya.backup import manifest as manifests
from polynya.backup.commit_hold import CommitHold, NotHeld
from polynya.backup.group_file import HEADER_BYTES, parse_header
from polynya.backup.manifest import (
    PART_BYTES,
    PART_ROWS,
    CopiedObject,
    FileEntry,
    ListEntry,
    Manifest,
)
from polynya.backup.progress import at_once, patiently
from polynya.backup.repository import Repository, backups_on, parts_of
from polynya.backup.source import About, BackupSource, Captured, Lost
from polynya.base.errors import CorruptData, Unavailable
from polynya.base.msgpack import UNREADABLE
from polynya.jobs import repeat
from polynya.objectstore import AlreadyExists, NotFound, ObjectStore, put_again
from polynya.stream.features.tables.state import Table
from polynya.stream.state.model import PackReference
from polynya.stream.state.pack_tables import is_page_key
from polynya.wire.pack import damaged_slices
from polynya.wire.page import read_page

TRIES = 8  # attempts for one group, and for all of them
ROUND_SECONDS = 5.0  # between two rounds that hold commits
KEEP_SECONDS = 20.0  # between two requests that keep captures
READ_BYTES = 8 << 20
COPIED_BYTES = 64 << 20  # bytes of objects in memory at once; one larger object may exceed it
TABLES = "tables/"
HINTS = "/_last_checkpoint"  # Delta overwrites this file; readers work without it
# likewise: name suffixes of temporary files
_HALF = re.compile(r"/_commit_[0-9a-f-]+\.json\.tmp|#\d+")


class BackupProgress(msgspec.Struct):
    """Progress of a backup. Numbers only grow, except `total_bytes`, which is known late."""

    doing: str = "asking"
    groups: int = 0
    files_bytes: int = 0
    objects: int = 0  # copied by this backup
    bytes: int = 0  # bytes copied by this backup
    kept: int = 0  # already in the repository
    total: int = 0  # objects of the backup
    total_bytes: int = 0
    damaged: list[str] = []


class _Named(msgspec.Struct):
    """The references that one group's state holds; see `stream.snapshots.Image`."""

    held: set[str]
    tables: bool
    pages: set[str] = set()  # those whose packs are in `held`


class _Skipped(msgspec.Struct, array_like=True):
    """The leading fields of an image; the rest is not decoded."""

    version: int
    group: int
    groups: int
    uid_counter: int
    message_counter: int
    outbox: msgspec.Raw
    attempts: msgspec.Raw
    held: dict[str, PackReference]
    packs: msgspec.Raw
    released: msgspec.Raw
    streams: msgspec.Raw
    tables: list[Table] = []


class BackupWriter:
    """The writer of one backup. `readable` is the repository if it can be read too; then its
    objects are reused."""

    def __init__(
        self,
        source: BackupSource,
        repository: Repository,
        readable: ObjectStore | None,
        progress: BackupProgress,
    ) -> None:
        self._source, self._repository, self._readable = source, repository, readable
        self._progress = progress
        self._named: dict[int, _Named] = {}
        self._files: dict[int, FileEntry] = {}
        self._taken: dict[int, int] = {}
        self._copied: dict[str, CopiedObject] = {}
        self._there: dict[
            str, CopiedObject | None
        ] = {}  # in the repository; None: from an interrupted backup

    async def take(
        self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> Manifest:
        """Take the backup and return its manifest once everything is written.

        Raises Unavailable; data written so far stays valid, and the next backup reuses it.
        """
        began_ms = now_ms()
        about = await self._source.about()
        backup = manifests.new_id(began_ms, token_bytes(4))
        self._hold = CommitHold(self._source, backup, about.groups)
        await self._look_at_the_shelf()
        await self._agree(about, manifests.folder_of(backup))
        await self._look_again(about, manifests.folder_of(backup))
        self._progress.doing = "writing the manifest"
        manifest = Manifest(
            id=backup,
            release=about.release,
            cluster=about.cluster,
            history=about.history,
            groups=about.groups,
            began_ms=began_ms,
            ended_ms=now_ms(),
            files=[self._files[group] for group in range(about.groups + 1)],
            objects=await self._write_list(f"{manifests.folder_of(backup)}/objects"),
            whole_transactions=True,
        )
        await self._put(
            f"{manifests.folder_of(backup)}/{manifests.MANIFEST}", [manifests.encode(manifest)]
        )
        return manifest

    async def _look_at_the_shelf(self) -> None:
        """List the repository's objects and read their rows from the manifests."""
        if self._readable is None:
            return
        async for info in self._readable.list("objects/"):
            self._there[info.key.removeprefix("objects/")] = None
        for manifest in await backups_on(self._readable) if self._there else []:
            # deleted or damaged list: its objects are checked one by one
            with suppress(CorruptData):
                async for part in parts_of(
                    self._readable,
                    manifest.objects.name,
                    manifest.objects.size,
                    manifest.objects.crc,
                ):
                    for row in manifests.decode_rows(part):
                        if row.key in self._there:
                            self._there[row.key] = row

    async def _look_again(self, about: About, folder: str) -> None:
        """Check that all objects still exist, because a concurrent backup may have pruned some.

        Copy missing ones again. Raises Unavailable.
        """
        if self._readable is None:
            return
        self._progress.doing = "checking the copied objects"
        for _ in range(TRIES):
            there = {
                info.key.removeprefix("objects/") async for info in self._readable.list("objects/")
            }
            gone = self._copied.keys() - there
            if not gone:
                break
            for key in gone:
                del self._copied[key]
                self._there.pop(key, None)
            await self._agree(about, folder)
        files = {info.key.rpartition("/")[0] async for info in self._readable.list(f"{folder}/")}
        if gone or not files.issuperset(entry.name for entry in self._files.values()):
            raise Unavailable(
                "files of this backup were deleted: another backup to the same repository deletes "
                "old ones (--keep); take the backup again"
            )

    async def _agree(self, about: About, folder: str) -> None:
        """Take groups and copy objects until they are consistent: no commit of a transaction is
        between two of them. Only if some are decided all the time, they are held."""
        if await self._hold.count() and await self._gather(about, folder, {}):
            return
        reason = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(ROUND_SECONDS)
            try:
                held = await self._capture_together(about)
            except NotHeld as refused:
                reason = str(refused)
                continue
            reason = "transactions commit faster than the groups can be captured"
            keeper = asyncio.create_task(repeat(self._keep, KEEP_SECONDS, at_once=False))
            try:
                if held and await self._gather(about, folder, held):
                    return
            finally:
                keeper.cancel()
        raise Unavailable(f"{reason}: try again")

    async def _capture_together(self, about: About) -> dict[int, Captured]:
        """Capture all groups while commits are held. Return nothing if one was decided though.
        Raises NotHeld."""
        groups, name = range(about.groups + 1), self._hold.next_round()
        self._progress.doing = "encoding the groups"
        await asyncio.gather(*(self._prepare(each, name) for each in groups))
        self._progress.doing = "holding commits"
        await self._hold.hold()
        is_whole = False
        try:
            found = await asyncio.gather(*(self._source.capture(each, name) for each in groups))
        finally:
            is_whole = await self._hold.release()
        return dict(zip(groups, found, strict=True)) if is_whole else {}

    async def _prepare(self, group: int, name: str) -> None:
        """Encode a group before commits are held. Without it they are held for longer."""
        with suppress(Unavailable):
            await self._source.prepare(group, name)

    async def _keep(self) -> None:
        with suppress(Unavailable):
            await self._hold.keep()

    async def _gather(self, about: About, folder: str, held: dict[int, Captured]) -> bool:
        """Take groups and copy objects, beginning with the captures that are held. Return False if
        a transaction committed between two captures."""
        again: Iterable[int] = range(about.groups + 1)
        for _ in range(TRIES):
            alone = [await self._group(group, folder, held.pop(group, None)) for group in again]
            if any(alone) and not await self._hold.is_untouched():
                return False
            missing = await self._copy(about)
            if not missing:
                return True
            again = sorted(
                group for group, named in self._named.items() if not named.held.isdisjoint(missing)
            )
        raise Unavailable("the groups change faster than their packs can be copied: try again")

    # --- groups -----------------------------------------------------------------------------------

    async def _group(self, group: int, folder: str, held: Captured | None) -> bool:
        """Write the file of a group. Return whether it was captured alone: there is no capture
        `held`, or it is lost."""
        for _ in range(TRIES):
            number = self._taken[group] = self._taken.get(group, -1) + 1
            self._progress.doing = f"group {group}"
            captured = held or await self._source.capture(group)
            is_alone, held = held is None, None
            name = f"{folder}/groups/{group:05d}-{number:02d}"
            try:
                crc, named = await self._fetch(captured, name)
            except Lost:
                continue
            self._files[group] = FileEntry(
                group=group,
                name=name,
                size=captured.size,
                crc=crc,
                term=captured.term,
                index=captured.index,
                log_ms=captured.log_ms,
                streams=captured.streams,
                records=captured.records,
                hot_bytes=captured.hot_bytes,
            )
            self._named[group] = named
            self._progress.groups = len(self._files)
            return is_alone
        raise Unavailable(
            f"the state of group {group} could not be fetched: its leader keeps changing; try again"
        )

    async def _fetch(self, captured: Captured, name: str) -> tuple[int, _Named]:
        """Write the parts of a group file. Return its CRC and its references."""
        state, wanted = bytearray(), HEADER_BYTES
        gathered: list[bytes] = []
        crc = size = number = held = 0
        while size < captured.size:
            piece = await self._source.part(captured, size)
            if not piece:
                raise CorruptData(
                    f"the file of group {captured.group} is shorter than its captured size"
                )
            if len(state) < wanted:
                state += piece
                if wanted == HEADER_BYTES and len(state) >= HEADER_BYTES:
                    wanted += parse_header(bytes(state[:HEADER_BYTES])).state_bytes
            crc, size = int(extend(crc, piece)), size + len(piece)
            gathered.append(piece)
            held += len(piece)
            self._progress.files_bytes += len(piece)
            if held >= PART_BYTES or size == captured.size:
                await self._put(f"{name}/{number:05d}", gathered)
                gathered, held, number = [], 0, number + 1
        return crc, _named(bytes(state[HEADER_BYTES:wanted]))

    # --- objects ----------------------------------------------------------------------------------

    async def _copy(self, about: About) -> set[str]:
        """Copy the objects that the groups name and those under tables. Return the packs that no
        longer exist."""
        if not about.store:
            return set()
        self._progress.doing = "listing objects"
        pages = {key: size async for key, size in self._source.objects(f"{about.cluster}/pages/")}
        for named in self._named.values():
            await self._look_into_pages(named, pages)
        packs = set().union(*(named.held for named in self._named.values()))
        wanted = {
            key: size
            async for key, size in self._source.objects(f"{about.cluster}/packs/")
            if key in packs
        }
        wanted |= {key: size for key, size in pages.items() if key in packs}
        if self._named[0].tables:
            wanted |= {
                key: size async for key, size in self._source.objects(TABLES) if not _passes(key)
            }
        missing = packs - wanted.keys()
        if missing:
            return missing
        self._progress.doing = "objects"
        self._progress.total, self._progress.total_bytes = len(wanted), sum(wanted.values())
        self._copied = {key: row for key, row in self._copied.items() if key in wanted}
        return await self._copy_all(wanted) & packs

    async def _look_into_pages(self, named: _Named, pages: Mapping[str, int]) -> None:
        """Add the packs that the pages of a group name. A page that is not there any more is
        missing, as packs are."""
        for key in sorted(page for page in named.held if is_page_key(page)):
            if key in named.pages or key not in pages:
                continue
            try:
                page = read_page(key, await self._read(key, pages[key]))
            except NotFound:
                continue
            except CorruptData:
                self._progress.damaged.append(key)
                named.pages.add(key)
                continue
            named.pages.add(key)
            named.held.update(pack for pack, _ in page.packs)

    async def _copy_all(self, wanted: Mapping[str, int]) -> set[str]:
        """Copy objects concurrently. Return the keys of objects that no longer exist."""
        gone: set[str] = set()
        todo = iter(sorted(wanted.keys() - self._copied.keys()))
        room = _Room(COPIED_BYTES)

        async def work() -> None:
            for key in todo:
                async with room.of(wanted[key]):
                    try:
                        self._copied[key] = await self._one(key, wanted[key])
                    except NotFound:
                        gone.add(key)

        await at_once(work)
        return gone

    async def _one(self, key: str, size: int) -> CopiedObject:
        if key in self._there:
            known = self._there[key]
            if known is None:
                known = await self._known(key)
            if known is not None and known.size == size:
                self._progress.kept += 1
                return known
        data = await self._read(key, size)
        if "/packs/" in key and await asyncio.to_thread(lambda: bool(damaged_slices(data))):
            self._progress.damaged.append(key)
        try:
            await self._put(f"objects/{key}", [data])
        except AlreadyExists:
            raise CorruptData(
                f"objects/{key} exists with other content: does the repository hold backups of "
                "another cluster? Choose another repository"
            ) from None
        self._progress.objects += 1
        self._progress.bytes += size
        return CopiedObject(key, size, crc32c(data))

    async def _known(self, key: str) -> CopiedObject | None:
        """Return the row of an object that only an interrupted backup wrote, or None."""
        assert self._readable is not None
        try:
            data = await self._readable.get(f"objects/{key}")
        except NotFound:
            return None
        return CopiedObject(key, len(data), crc32c(data))

    async def _read(self, key: str, size: int) -> bytes:
        pieces = []
        for offset in range(0, size, READ_BYTES):
            piece = await self._source.read(key, offset, min(READ_BYTES, size - offset))
            pieces.append(piece)
        data = b"".join(pieces)
        if len(data) != size:
            raise CorruptData(
                f"the object {key} has {len(data)} bytes, where the store's listing says {size}"
            )
        return data

    async def _put(self, key: str, parts: Sequence[bytes]) -> None:
        """Write a file.

        The same bytes from an earlier attempt or another backup count as success. Raises
        AlreadyExists if other bytes exist, StoreUnavailable.
        """
        readable = self._readable
        if readable is None:
            await self._repository.put(key, parts)
        else:
            await patiently(lambda: put_again(readable, key, parts))

    async def _write_list(self, name: str) -> ListEntry:
        rows = [self._copied[key] for key in sorted(self._copied)]
        crc = size = 0
        for number, begin in enumerate(range(0, len(rows), PART_ROWS)):
            part = manifests.encode_rows(rows[begin : begin + PART_ROWS])
            await self._put(f"{name}/{number:05d}", [part])
            crc, size = int(extend(crc, part)), size + len(part)
        return ListEntry(
            name=name, size=size, crc=crc, count=len(rows), bytes=sum(row.size for row in rows)
        )


def _passes(key: str) -> bool:
    """Report whether a file under tables is temporary or overwritten, so a backup can omit it."""
    return key.endswith(HINTS) or any(found.end() == len(key) for found in _HALF.finditer(key))


class _Room:
    """A limit on the bytes in memory. One larger object may exceed it."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._changed = asyncio.Condition()

    def of(self, size: int) -> _Taken:
        return _Taken(self, min(size, self._size))

    async def take(self, size: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= size)
            self._free -= size

    async def give(self, size: int) -> None:
        async with self._changed:
            self._free += size
            self._changed.notify_all()


class _Taken:
    def __init__(self, room: _Room, size: int) -> None:
        self._room, self._size = room, size

    async def __aenter__(self) -> None:
        await self._room.take(self._size)

    async def __aexit__(self, *_: object) -> None:
        await self._room.give(self._size)


def _named(state: bytes) -> _Named:
    """Decode the references of a group's state. Raises CorruptData."""
    try:
        image = msgspec.msgpack.decode(state, type=_Skipped)
    except UNREADABLE as error:
        raise CorruptData(f"the state of a group cannot be read: {error}") from None
    return _Named(set(image.held), bool(image.tables))
