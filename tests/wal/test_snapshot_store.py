"""The snapshot store: the newest one of each group survives anything, and a damaged one is never
passed over in silence."""

import errno
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from google_crc32c import value
from worlds.fake_disk import FakeDisk

from polynya.base.errors import ConfigError, CorruptData
from polynya.wal import DiskFull, SnapshotFile, SnapshotStore
from polynya.wal.scratch import BLOCK_BYTES
from polynya.wal.snapshots import HEADER_BYTES, SnapshotLink, pack_header

FOLDER = Path("/snapshots")


def newest(store: SnapshotStore) -> dict[int, SnapshotFile]:
    """Return the only snapshot file of each group."""
    found = {}
    for group in store.groups():
        (found[group],) = store.chain(group)
    return found


def test_the_newest_of_each_group_is_kept_and_the_older_ones_go(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "s")
    assert newest(store) == {}
    for group, index, body in ((1, 5, b"a"), (2, 9, b""), (1, 70, b"b" * 3_000_000), (11, 1, b"c")):
        store.write(group, 3, index, body)
    expected = {
        1: SnapshotFile(1, 3, 70, b"b" * 3_000_000),
        2: SnapshotFile(2, 3, 9, b""),
        11: SnapshotFile(11, 3, 1, b"c"),
    }
    assert newest(store) == expected
    (tmp_path / "s" / "g00001-00000000000000000099.snap.tmp").write_bytes(b"half")
    assert newest(SnapshotStore(tmp_path / "s")) == expected
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "g00001-00000000000000000070.snap",
        "g00002-00000000000000000009.snap",
        "g00011-00000000000000000001.snap",
    ]


def test_golden_header() -> None:
    golden = (
        "504f4c594e5941530100000001000000030000004cbb719a05000000000000004d00000000000000"
        + "00" * 8
    )
    golden += "050000000000000000000000bb475d21"
    assert pack_header(SnapshotLink(3, 5, 77, 5, value(b"hello"))).hex() == golden


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_fail_the_nth_call_until_it_passes(error: int) -> None:
    for n in range(1, 1000):
        for some in (0.0, 0.5, 1.0):
            disk = FakeDisk(Random(n))
            store = SnapshotStore(FOLDER, files=disk)
            store.write(1, 1, 10, b"old")
            disk.fail_at, disk.error = disk.calls + n, error
            written = False
            try:
                store.write(1, 1, 20, b"new")
                written = True
                store.write(2, 1, 5, b"other")
            except (OSError, DiskFull):
                pass
            failed = disk.failed_call
            disk.power_cut(some)
            found = newest(SnapshotStore(FOLDER, files=disk))
            assert found[1] == SnapshotFile(1, 1, 20, b"new") or (
                not written and found[1] == SnapshotFile(1, 1, 10, b"old")
            )
            SnapshotStore(FOLDER, files=disk).write(1, 1, 20, b"new")  # a repeat is harmless
        if not failed:
            break
    assert 10 < n < 30


def test_a_full_disk_is_named_and_leaves_the_old_one() -> None:
    disk = FakeDisk(Random(1), capacity=500)
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"old")
    for _ in range(3):
        with pytest.raises(DiskFull, match="no space for a snapshot"):
            store.write(1, 1, 20, bytes(1000))
    assert newest(store) == {1: SnapshotFile(1, 1, 10, b"old")} and len(disk.files) == 1


def test_damage_anywhere_is_corruption_even_when_an_older_one_is_there() -> None:
    disk = FakeDisk()
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"old")
    old = dict(disk.files)
    store.write(1, 1, 20, b"newer")
    disk.files |= old
    (inode,) = [inode for path, inode in disk.files.items() if "20.snap" in path.name]
    sound = bytes(inode.cached)
    for at in range(len(sound)):
        inode.cached[at] ^= 1 << at % 8
        with pytest.raises(CorruptData, match=r"00020\.snap is damaged: .*backup"):
            newest(store)
        inode.cached[:] = sound
    for length in (0, 63, len(sound) - 1, len(sound) + 1):
        inode.cached[:] = (sound + b"x")[:length]
        with pytest.raises(CorruptData):
            newest(store)
    inode.cached[:] = pack_header(SnapshotLink(2, 1, 20, 5, value(b"newer"))) + b"newer"
    with pytest.raises(CorruptData, match="snapshot of group 2 at 20 under another name"):
        newest(store)


def test_a_newer_format_and_an_unknown_kind_are_named() -> None:
    disk = FakeDisk()
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"x")
    (inode,) = disk.files.values()
    for at, number, error, text in (
        (8, 2, ConfigError, "snapshot format 2"),
        (12, 3, CorruptData, "kind 3"),
    ):
        header = bytearray(pack_header(SnapshotLink(1, 1, 10, 1, value(b"x"))))
        header[at] = number
        header[HEADER_BYTES - 4 :] = value(bytes(header[: HEADER_BYTES - 4])).to_bytes(4, "little")
        inode.cached[:] = header + b"x"
        with pytest.raises(error, match=text):
            newest(store)


def body_of(parts: list[SnapshotFile]) -> bytes:
    """Merge deltas that are appended to a base."""
    return b"".join(part.body for part in parts)


def join(parts: Sequence[SnapshotFile]) -> bytes:
    return body_of(list(parts))


def test_a_chain_is_read_from_its_root_and_folded() -> None:
    disk = FakeDisk()
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"a")
    store.write_delta(1, 1, 20, [b"b", b"c"], 10)
    store.write_delta(1, 2, 30, [b"d"], 20)
    chain = [
        SnapshotFile(1, 1, 10, b"a"),
        SnapshotFile(1, 1, 20, b"bc", delta=True, base=10),
        SnapshotFile(1, 2, 30, b"d", delta=True, base=20),
    ]
    assert SnapshotStore(FOLDER, files=disk).chain(1) == chain
    assert store.fold(1, 2, join) == SnapshotLink(1, 2, 30, 3, value(b"bcd"), delta=True, base=10)
    assert (
        store.chain(1) == [chain[0], SnapshotFile(1, 2, 30, b"bcd", delta=True, base=10)]
        and len(disk.files) == 2
    )
    store.fold(1, 2, join)
    assert store.chain(1) == [SnapshotFile(1, 2, 30, b"abcd")] and len(disk.files) == 1
    store.write_delta(1, 2, 40, [b"e"], 30)
    store.write_delta(1, 2, 50, [b"all"], 0)
    assert store.chain(1) == [SnapshotFile(1, 2, 50, b"all", delta=True)] and len(disk.files) == 1
    assert store.chain(2) == [] and store.groups() == [1]


def test_a_chain_with_a_hole_is_corruption() -> None:
    disk = FakeDisk()
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"a")
    store.write_delta(1, 1, 20, [b"b"], 10)
    store.write_delta(1, 2, 30, [b"d"], 20)
    del disk.files[FOLDER / "g00001-00000000000000000020.snap"]
    with pytest.raises(
        CorruptData,
        match=r"00020\.snap is damaged: it is missing, but the snapshot at 30 builds on it",
    ):
        store.chain(1)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_fail_the_nth_call_of_a_chain_until_it_passes(error: int) -> None:
    """Fail every call once, at the first, the second, the third …: the chain has all snapshots
    reported as written, and is readable."""
    for n in range(1, 1000):
        for some in (0.0, 0.5, 1.0):
            disk = FakeDisk(Random(n))
            store = SnapshotStore(FOLDER, files=disk)
            store.write(1, 1, 10, b"a")
            disk.fail_at, disk.error = disk.calls + n, error
            durable, wanted = b"a", b"a"
            try:
                for index, body in ((20, b"b"), (30, b"c")):
                    wanted += body
                    store.write_delta(1, 1, index, [body], index - 10)
                    durable = wanted
                store.fold(1, 2, join)
                store.fold(1, 2, join)
                wanted += b"d"
                store.write_delta(1, 1, 40, [b"d"], 30)
                durable = wanted
                store.fold(1, 2, join)
            except (OSError, DiskFull):
                pass
            failed = disk.failed_call
            disk.power_cut(some)
            found = SnapshotStore(FOLDER, files=disk)
            assert body_of(found.chain(1)) in (durable, wanted)
            last = found.links(1)[-1].index
            found.write_delta(1, 1, last + 10, [b"x"], last)  # and it goes on
            assert body_of(found.chain(1))[-1:] == b"x"
        if not failed:
            break
    assert 40 < n < 120


def test_what_is_written_counts_though_the_older_ones_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Count the new snapshot: otherwise the caller would continue from the old chain, which may be
    partly deleted."""
    disk = FakeDisk(Random(1))
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"a")
    store.write_delta(1, 1, 20, [b"b"], 10)
    unlink, removed = disk.unlink, list[Path]()

    def only_one(path: Path) -> None:
        if removed:
            raise OSError(errno.EIO, "the disk does not")
        removed.append(path)
        unlink(path)

    monkeypatch.setattr(disk, "unlink", only_one)
    base = store.write(1, 1, 30, b"c")
    monkeypatch.undo()
    assert len(removed) == 1 and store.links(1) == [base]
    store.write_delta(1, 1, 40, [b"d"], 30)
    assert body_of(store.chain(1)) == b"cd"
    store.write(1, 1, 50, b"e")
    assert disk.names(FOLDER) == ["g00001-00000000000000000050.snap"]


def test_a_file_without_a_name_knows_what_was_written(tmp_path: Path) -> None:
    scratch = SnapshotStore(tmp_path / "s").scratch()
    data = bytes(number * number % 251 for number in range(3 * BLOCK_BYTES + 5))
    bounds = [0, 3, BLOCK_BYTES, BLOCK_BYTES + 7, 3 * BLOCK_BYTES - 1, len(data)]
    scratch.append(*(data[begin:end] for begin, end in pairwise(bounds[:4])))
    for begin, end in pairwise(bounds[3:]):
        scratch.append(data[begin:end])
    assert scratch.size == len(data)
    reads = [
        (0, 1),
        (BLOCK_BYTES - 1, 2),
        (5, 2 * BLOCK_BYTES),
        (3 * BLOCK_BYTES, 5),
        (0, len(data)),
    ]
    for offset, length in reads:
        assert scratch.read_checked(offset, length) == data[offset : offset + length]
    for offset, length in ((len(data), 1), (len(data) - 1, 2), (5 * BLOCK_BYTES, 1)):
        with pytest.raises(EOFError):
            scratch.read_checked(offset, length)
    at = 2 * BLOCK_BYTES
    os.pwrite(scratch._fd, bytes([data[at] ^ 1]), at)
    for offset, length in reads:
        if offset < 3 * BLOCK_BYTES and offset + length > at:
            with pytest.raises(CorruptData):
                scratch.read_checked(offset, length)
        else:
            assert scratch.read_checked(offset, length) == data[offset : offset + length]
    scratch.close()


def test_a_file_without_a_name_that_is_closed_touches_nobody_else_s(tmp_path: Path) -> None:
    """A thread may still be filling it when its owner is cancelled: the number of its descriptor is
    another file's by then."""
    scratch = SnapshotStore(tmp_path / "s").scratch()
    scratch.append(b"mine")
    assert scratch.read(0, 4) == b"mine"
    scratch.close()
    with (tmp_path / "other").open("wb+") as other:
        with pytest.raises(OSError):
            scratch.append(b"mine")
        with pytest.raises(OSError):
            scratch.read(0, 4)
        scratch.close()
        other.write(b"theirs")
    assert (tmp_path / "other").read_bytes() == b"theirs"
