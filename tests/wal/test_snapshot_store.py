"""The snapshot store: the newest one of each group survives anything, and a damaged one is never passed over in silence."""

import errno
from pathlib import Path
from random import Random

import pytest
from fake_disk import FakeDisk
from google_crc32c import value

from polynya.base.errors import ConfigError, CorruptData
from polynya.wal import DiskFull, Snapshot, SnapshotStore
from polynya.wal.snapshots import HEADER_BYTES, pack_header

FOLDER = Path("/snapshots")


def test_the_newest_of_each_group_is_kept_and_the_older_ones_go(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "s")
    assert store.latest() == {}
    for group, index, body in ((1, 5, b"a"), (2, 9, b""), (1, 70, b"b" * 3_000_000), (11, 1, b"c")):
        store.write(group, 3, index, body)
    expected = {1: Snapshot(1, 3, 70, b"b" * 3_000_000), 2: Snapshot(2, 3, 9, b""), 11: Snapshot(11, 3, 1, b"c")}
    assert store.latest() == expected
    (tmp_path / "s" / "g00001-00000000000000000099.snap.tmp").write_bytes(b"half")
    assert SnapshotStore(tmp_path / "s").latest() == expected
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "g00001-00000000000000000070.snap",
        "g00002-00000000000000000009.snap",
        "g00011-00000000000000000001.snap",
    ]


def test_golden_header() -> None:
    golden = "504f4c594e5941530100000001000000030000004cbb719a05000000000000004d00000000000000" + "00" * 8
    golden += "050000000000000000000000bb475d21"
    assert pack_header(3, 5, 77, b"hello").hex() == golden


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
            found = SnapshotStore(FOLDER, files=disk).latest()
            assert found[1] == Snapshot(1, 1, 20, b"new") or (not written and found[1] == Snapshot(1, 1, 10, b"old"))
            SnapshotStore(FOLDER, files=disk).write(1, 1, 20, b"new")  # a repeat is harmless
        if not failed:
            break
    assert 10 < n < 30


def test_a_full_disk_is_named_and_leaves_the_old_one() -> None:
    disk = FakeDisk(Random(1), capacity=500)
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"old")
    for _ in range(3):
        with pytest.raises(DiskFull, match="no room for a snapshot"):
            store.write(1, 1, 20, bytes(1000))
    assert store.latest() == {1: Snapshot(1, 1, 10, b"old")} and len(disk.files) == 1


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
            store.latest()
        inode.cached[:] = sound
    for length in (0, 63, len(sound) - 1, len(sound) + 1):
        inode.cached[:] = (sound + b"x")[:length]
        with pytest.raises(CorruptData):
            store.latest()
    inode.cached[:] = pack_header(2, 1, 20, b"newer") + b"newer"
    with pytest.raises(CorruptData, match="snapshot of group 2 at 20 under another name"):
        store.latest()


def test_a_newer_format_and_an_unknown_kind_are_named() -> None:
    disk = FakeDisk()
    store = SnapshotStore(FOLDER, files=disk)
    store.write(1, 1, 10, b"x")
    (inode,) = disk.files.values()
    for at, number, error, text in ((8, 2, ConfigError, "snapshot format 2"), (12, 2, CorruptData, "kind 2")):
        header = bytearray(pack_header(1, 1, 10, b"x"))
        header[at] = number
        header[HEADER_BYTES - 4 :] = value(bytes(header[: HEADER_BYTES - 4])).to_bytes(4, "little")
        inode.cached[:] = header + b"x"
        with pytest.raises(error, match=text):
            store.latest()
