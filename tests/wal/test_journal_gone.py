"""Files removed from a journal: during use, and between two incarnations."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from worlds.fake_disk import FakeDisk
from worlds.journal_lives import FOLDER, SEGMENT_BYTES, Life

from polynya.base.errors import CorruptData
from polynya.wal import DiskFull, Journal, JournalGone, OsFiles
from polynya.wal.recovery import segment_path

SMALL = 4096


def opened(folder: Path) -> Journal:
    return Journal.open(folder, journal_id=7, segment_bytes=SMALL)


def append(journal: Journal, *payloads: bytes) -> None:
    for payload in payloads:
        journal.stage(1, 1, 1, 1, payload)
    batch = journal.take()
    assert batch is not None
    journal.write(batch)
    journal.synced(batch)


def path_of(journal: Journal, folder: Path, number: int = -1) -> Path:
    return segment_path(folder, journal.segments.sizes()[number][0])


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_deleted_segment_is_missed_and_nothing_is_written_any_more(
    tmp_path: Path, number: int
) -> None:
    journal = opened(tmp_path)
    for _ in range(4):
        append(journal, b"x" * 3000)
    journal.look()
    path_of(journal, tmp_path, number).unlink()
    with pytest.raises(JournalGone, match="is missing"):
        journal.look()
    journal.stage(1, 1, 2, 1, b"late")
    with pytest.raises(JournalGone):
        journal.take()
    journal.close()


def test_what_is_on_its_way_when_its_file_is_missed_is_not_said_to_be_durable(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path)
    append(journal, b"x")
    journal.stage(1, 1, 2, 1, b"late")
    batch = journal.take()
    assert batch is not None
    path_of(journal, tmp_path).unlink()
    with pytest.raises(JournalGone):
        journal.look()
    with pytest.raises(JournalGone):
        journal.write(batch)
    journal.close()


def move(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def cover(folder: Path) -> None:
    """Replace the folder, as a new mount or a restored copy does."""
    move(folder)
    shutil.copytree(folder.with_name("elsewhere"), folder)


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("harm", [move, cover, remove])
def test_a_folder_that_is_moved_covered_or_removed_is_missed(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "journal"
    journal = opened(folder)
    append(journal, b"x" * 3000)
    harm(folder)
    with pytest.raises(JournalGone):
        journal.look()
    journal.close()


def test_a_segment_that_goes_just_before_the_next_is_begun_is_missed(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    append(journal, b"x" * 3000)
    path_of(journal, tmp_path).unlink()
    journal.stage(1, 1, 2, 1, b"y" * 3000)
    batch = journal.take()
    assert batch is not None
    with pytest.raises(JournalGone):
        journal.write(batch)
    assert list(tmp_path.glob("*.journal")) == []
    journal.close()


def test_released_segments_are_not_missed(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for _ in range(6):
        append(journal, b"x" * 3000)
        journal.look()
        journal.release(journal.segments.sizes()[-1][0])
        journal.look()
    journal.close()
    journal = opened(tmp_path)
    journal.look()
    journal.close()


def test_where_nobody_may_look_nothing_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    append(journal, b"x")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    fd = os.open(path_of(journal, tmp_path), os.O_RDONLY)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        patched.setattr(os, "listdir", refuse)
        assert OsFiles().is_at(fd, tmp_path)
        journal.look()
        path_of(journal, tmp_path).unlink()
        assert not OsFiles().is_at(fd, tmp_path)
    os.close(fd)
    journal.close()


def kept(turns: int) -> Life:
    life = Life(FakeDisk())
    life.begin()
    for _ in range(turns):
        for _ in range(4):
            life.stage()
        life.write()
    life.disk.kill()
    return life


@pytest.mark.parametrize("empty", [False, True], ids=["deleted", "emptied"])
def test_the_newest_segments_that_are_deleted_between_two_lives_refuse_the_start(
    empty: bool,
) -> None:
    """Refuse the start: otherwise it would continue without some acknowledged data."""
    for count in (1, 2):
        life = kept(6)
        segments = sorted(life.disk.files)
        assert len(segments) > 3
        for path in segments[-count:-1] if empty else segments[-count:]:
            del life.disk.files[path]
        if empty:
            life.disk.files[segments[-1]].cached.clear()
            life.disk.files[segments[-1]].durable.clear()
        before = {path: bytes(inode.cached) for path, inode in life.disk.files.items()}
        with pytest.raises(CorruptData, match="missing"):
            Journal.open(FOLDER, journal_id=7, segment_bytes=SEGMENT_BYTES, files=life.disk)
        assert {path: bytes(inode.cached) for path, inode in life.disk.files.items()} == before


def test_a_write_that_is_undone_over_segments_takes_its_farewells_back_at_every_crash() -> None:
    """Undo the writes of a full disk at every step: no mark of a missing segment remains, wherever
    the undo is interrupted."""
    undone = 0
    for steps in range(200):
        life = kept(3)
        life.begin()
        disk, journal = life.disk, life.journal
        disk.capacity = disk.used() + 2 * SEGMENT_BYTES + 100
        for index in range(9):
            payload = b"r" * (SEGMENT_BYTES // 2)
            life.in_flight.append((journal.stage(1, 1, index, 1, payload), payload))
        batch = journal.take()
        assert batch is not None
        disk.fail_at = disk.calls + 1 + steps
        try:
            journal.write(batch)
        except DiskFull:
            undone += 1
        except OSError:
            pass
        over = not disk.failed_call
        disk.power_cut(1.0 if steps % 2 else 0.0)
        disk.capacity = 1 << 40
        life.begin()
        if over:
            assert undone
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["deleted", "emptied"]
)
def test_a_journal_without_the_only_segment_that_it_had_refuses_the_start(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    journal = opened(tmp_path)
    append(journal, b"x")
    journal.close()
    harm(tmp_path / "0000000001.journal")
    before = sorted(path.name for path in tmp_path.iterdir())
    for _ in range(2):
        with pytest.raises(CorruptData):
            opened(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_start_that_was_cut_short_before_the_first_segment_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    opened(tmp_path).close()
    opened(tmp_path).close()
    assert (tmp_path / "lock").read_bytes()
