"""Each journal has a number of its own: constant over its incarnations, another for a new journal
in its place."""

from pathlib import Path

from worlds.fake_disk import FakeDisk
from worlds.journal_lives import FOLDER, SEGMENT_BYTES

from polynya.wal import Journal
from polynya.wal.journal import BEGUN


def opened(folder: Path) -> Journal:
    return Journal.open(folder, journal_id=7, segment_bytes=SEGMENT_BYTES)


def append(journal: Journal) -> None:
    journal.stage(1, 1, 1, 1, b"x" * 300)
    batch = journal.take()
    assert batch is not None
    journal.write(batch)
    journal.synced(batch)


def test_it_stays_while_segments_come_and_go(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    number = journal.begun
    for _ in range(40):
        append(journal)
    journal.release(journal.segments.sizes()[-1][0])
    end = journal.settled
    journal.close()
    again = opened(tmp_path)
    assert (again.begun, again.opened >= end) == (number, True)
    again.close()
    assert (tmp_path / "lock").read_bytes() == b"begun\n%016x\n" % number


def test_another_one_has_another(tmp_path: Path) -> None:
    numbers = set()
    for name in ("a", "b"):
        journal = opened(tmp_path / name)
        numbers.add(journal.begun)
        journal.close()
    assert len(numbers) == 2 and 0 not in numbers


def test_one_of_a_release_before_gets_one_and_so_does_one_whose_number_is_torn(
    tmp_path: Path,
) -> None:
    opened(tmp_path).close()
    for said in (BEGUN, BEGUN + b"12", BEGUN + b"x" * 16 + b"\n"):
        (tmp_path / "lock").write_bytes(said)
        first = opened(tmp_path)
        number = first.begun
        first.close()
        again = opened(tmp_path)
        assert again.begun == number != 0
        again.close()


def test_a_power_cut_leaves_no_end_before_what_was_synced() -> None:
    disk = FakeDisk()
    for some in (0.0, 0.3, 1.0):
        journal = Journal.open(FOLDER, journal_id=7, segment_bytes=SEGMENT_BYTES, files=disk)
        append(journal)
        append(journal)
        synced, number = journal.settled, journal.begun
        journal.stage(1, 1, 2, 1, b"torn")
        disk.power_cut(some)
        again = Journal.open(FOLDER, journal_id=7, segment_bytes=SEGMENT_BYTES, files=disk)
        assert again.opened >= synced and again.begun == number
        disk.kill()
