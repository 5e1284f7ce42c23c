"""Damage: synced data is never cut silently; torn data is cut and reported."""

from pathlib import Path
from random import Random

import pytest
from google_crc32c import value
from worlds.fake_disk import FakeDisk
from worlds.journal_lives import FOLDER, SEGMENT_BYTES, Life

from polynya.base.errors import ConfigError, CorruptData
from polynya.wal import Journal, JournalFailed
from polynya.wal.frames import MARK_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, pack_segment_header
from polynya.wal.recovery import segment_path


def written(turns: int = 6, *, marked: bool = True) -> Life:
    """A journal over a few segments, left by a kill after the last write, with or without its bare
    mark."""
    life = Life(FakeDisk(Random(5)))
    life.begin()
    for _ in range(turns):
        for _ in range(4):
            life.stage()
        life.write()
    if marked:
        life.mark()
    life.disk.kill()
    return life


def contents(disk: FakeDisk) -> dict[Path, bytes]:
    return {path: bytes(inode.cached) for path, inode in disk.files.items()}


def disk_with(files: dict[Path, bytes]) -> FakeDisk:
    disk = FakeDisk(Random(1))
    for path, data in files.items():
        fd = disk.create(path)
        disk.write(fd, [data], 0)
        disk.sync(fd)
    disk.sync_folder(FOLDER)
    disk.kill()
    return disk


def replay(disk: FakeDisk) -> list[tuple[int, bytes]]:
    journal = Journal.open(FOLDER, journal_id=7, segment_bytes=SEGMENT_BYTES, files=disk)
    try:
        return [(entry.position, entry.payload) for entry in journal.segments.entries()]
    finally:
        disk.kill()


def test_a_flipped_bit_anywhere_below_the_last_mark_is_corruption_and_behind_it_a_torn_tail() -> (
    None
):
    life = written()
    files, vouched = contents(life.disk), life.journal._marked
    assert len(files) >= 4
    refused = cut = 0
    for number, path in enumerate(sorted(files), 1):
        end = dict(life.journal.segments.sizes())[number]
        for at in range(end):
            damaged = bytearray(files[path])
            damaged[at] ^= 1 << at % 8
            disk = disk_with(files | {path: bytes(damaged)})
            if number << 32 | at < vouched:
                with pytest.raises(CorruptData, match=path.name):
                    replay(disk)
                assert contents(disk) == files | {path: bytes(damaged)}
                refused += 1
            else:
                assert replay(disk) == life.kept
                cut += 1
    assert refused > 2000 and cut == MARK_BYTES


def test_the_error_names_the_file_and_the_offset_and_says_what_can_be_done() -> None:
    life = written()
    position = life.kept[3][0]
    files = contents(life.disk)
    path, offset = segment_path(FOLDER, position >> 32), position & 0xFFFFFFFF
    damaged = bytearray(files[path])
    damaged[offset + 1] ^= 1
    with pytest.raises(
        CorruptData, match=rf"{path} is damaged at offset {offset}: .* Nothing was cut .* backup"
    ):
        replay(disk_with(files | {path: bytes(damaged)}))


def test_without_a_mark_behind_it_the_last_write_may_be_torn_and_is_cut_whole_from_the_damage_on() -> (
    None
):
    life = written(marked=False)
    files = contents(life.disk)
    path = max(files)
    position = life.kept[-2][0]
    damaged = bytearray(files[path])
    damaged[(position & 0xFFFFFFFF) + 3] ^= 1
    disk = disk_with(files | {path: bytes(damaged)})
    journal = Journal.open(FOLDER, journal_id=7, segment_bytes=SEGMENT_BYTES, files=disk)
    assert [(entry.position, entry.payload) for entry in journal.segments.entries()] == life.kept[
        :-2
    ]
    (cut,) = journal.cuts
    assert cut.path == path and cut.offset == position & 0xFFFFFFFF and cut.length > 0
    journal.stage(3, 1, 1, 1, b"new")
    batch = journal.take()
    assert batch is not None
    journal.write(batch)
    disk.power_cut(1)
    assert [payload for _, payload in replay(disk)] == [
        payload for _, payload in life.kept[:-2]
    ] + [b"new"]


def test_a_whole_journal_inside_a_payload_is_never_taken_for_frames() -> None:
    life = written()
    stolen = b"".join(contents(life.disk).values())
    life.begin()
    life.journal.stage(3, 1, 1, 1, stolen)
    batch = life.journal.take()
    assert batch is not None
    life.journal.write(batch)
    life.disk.kill()
    files = contents(life.disk)
    path = max(files)
    damaged = bytearray(files[path])
    damaged[damaged.index(stolen) - 20] ^= 1  # the header of the frame that holds it
    assert replay(disk_with(files | {path: bytes(damaged)})) == life.kept


@pytest.mark.parametrize("length", [0, 1, 60, SEGMENT_HEADER_BYTES])
def test_a_new_segment_whose_header_was_not_written_yet_is_removed(length: int) -> None:
    life = written()
    number = life.journal.segments.sizes()[-1][0] + 1
    life.disk.create(segment_path(FOLDER, number))
    life.disk.files[segment_path(FOLDER, number)].change(length, None)
    life.disk.kill()
    life.begin()
    assert [cut.path for cut in life.journal.cuts] == [segment_path(FOLDER, number)]
    life.live(10)
    life.disk.power_cut(0)
    life.begin()


def test_the_only_segment_is_remade_under_its_number_when_its_header_is_torn() -> None:
    disk = disk_with({segment_path(FOLDER, 9): b"POLY"})
    journal = Journal.open(FOLDER, journal_id=7, segment_bytes=SEGMENT_BYTES, files=disk)
    assert journal.segments.sizes() == [(9, SEGMENT_HEADER_BYTES)] and len(journal.cuts) == 1


def test_a_missing_a_short_and_a_strange_segment_refuse_the_start() -> None:
    life = written()
    files = contents(life.disk)
    middle = segment_path(FOLDER, 2)
    with pytest.raises(CorruptData, match=f"{middle.name} is missing"):
        replay(disk_with({path: data for path, data in files.items() if path != middle}))
    end = life.journal.segments.sizes()[1][1]
    with pytest.raises(CorruptData, match="synced up to"):
        replay(disk_with(files | {middle: files[middle][: end - 1]}))
    with pytest.raises(CorruptData, match="under another name"):
        replay(disk_with(files | {middle: files[segment_path(FOLDER, 1)]}))
    strange = pack_segment_header(SegmentHeader(7, 2, 99, 1 << 32 | 100))
    with pytest.raises(CorruptData, match="does not follow"):
        replay(
            disk_with(
                files
                | {segment_path(FOLDER, 3): pack_segment_header(SegmentHeader(7, 3, 99, 9 << 32))}
            )
        )
    with pytest.raises(CorruptData):
        replay(disk_with(files | {middle: strange + files[middle][SEGMENT_HEADER_BYTES:]}))


def test_a_segment_is_never_written_over_another() -> None:
    life = written()
    life.begin()
    number = life.journal.segments.sizes()[-1][0] + 1
    stranger = segment_path(FOLDER, number)
    life.disk.close(life.disk.create(stranger))
    with pytest.raises(FileExistsError):
        life.live(100)
    assert contents(life.disk)[stranger] == b""
    with pytest.raises(JournalFailed, match="restart the node"):
        life.journal.take()


def test_a_newer_format_is_named() -> None:
    header = bytearray(pack_segment_header(SegmentHeader(7, 1, 1, 0)))
    header[8] = 2
    header[60:] = value(bytes(header[:60])).to_bytes(4, "little")
    with pytest.raises(ConfigError, match="journal format 2; this release reads format 1"):
        replay(disk_with({segment_path(FOLDER, 1): bytes(header)}))


def test_reading_a_place_checks_it() -> None:
    life = written()
    life.begin()
    (position, payload), other = life.kept[0], life.kept[1][0]
    assert life.journal.segments.read(position) == payload
    with pytest.raises(CorruptData, match="at offset"):
        life.journal.segments.read(other + 1)
    with pytest.raises(CorruptData, match="no entry here"):
        life.journal.segments.read(1 << 32 | SEGMENT_HEADER_BYTES)  # a mark
    with pytest.raises(CorruptData, match="is gone"):
        life.journal.segments.read(99 << 32 | 64)
    life.disk.files[segment_path(FOLDER, 1)].cached[(position & 0xFFFFFFFF) + 32] ^= 1
    with pytest.raises(CorruptData, match="payload"):
        life.journal.segments.read(position)


def test_golden_bytes() -> None:
    disk = FakeDisk()
    journal = Journal.open(
        FOLDER, journal_id=0x0102030405060708, segment_bytes=SEGMENT_BYTES, files=disk
    )
    journal.stage(3, 5, 77, 1, b"hello")
    journal.stage(258, 6, 2**40, 2, b"")
    batch = journal.take()
    assert batch is not None
    journal.write(batch)
    (data,) = contents(disk).values()
    golden = Path(__file__).with_name("golden_segment.hex").read_text()
    assert data[: batch.end & 0xFFFFFFFF].hex() == "".join(golden.split())
    assert data[batch.end & 0xFFFFFFFF :] == bytes(SEGMENT_BYTES - (batch.end & 0xFFFFFFFF))
