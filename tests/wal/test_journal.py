"""The journal on a healthy disk: staged and written data is read back at its position."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from polynya.base.errors import ConfigError, CorruptData
from polynya.wal import Journal, JournalEntry, JournalLocked

SMALL = 4096


def write(journal: Journal, entries: list[tuple[int, bytes]]) -> list[int]:
    """One turn: stages (index, payload) for group 1, writes, returns the positions."""
    positions = [journal.stage(1, 1, index, 1, payload) for index, payload in entries]
    batch = journal.take()
    assert batch is not None
    journal.write(batch)
    journal.synced(batch)
    return positions


def reopen(folder: Path) -> tuple[Journal, list[JournalEntry]]:
    journal = Journal.open(folder, journal_id=7, segment_bytes=SMALL)
    return journal, list(journal.segments.entries())


def test_entries_come_back_in_order_with_their_places_over_many_segments(tmp_path: Path) -> None:
    journal, nothing = reopen(tmp_path)
    assert nothing == [] and journal.take() is None and journal.take_mark() is None
    payloads = [(i, bytes([i % 251]) * (i * 7 % 900)) for i in range(1, 120)]
    positions = [
        position
        for i in range(0, len(payloads), 5)
        for position in write(journal, payloads[i : i + 5])
    ]
    assert [journal.segments.read(position) for position in positions] == [
        payload for _, payload in payloads
    ]
    assert len(journal.segments.sizes()) > 5 and all(
        size <= SMALL + 48 for _, size in journal.segments.sizes()
    )
    journal.close()
    journal, entries = reopen(tmp_path)
    assert [(e.index, e.payload) for e in entries] == payloads and [
        e.position for e in entries
    ] == positions
    assert journal.cuts == () and journal.take_mark() is None  # the close left a mark
    journal.close()


def test_how_much_is_staged_is_told_without_counting_it(tmp_path: Path) -> None:
    """A change of the number of cores asks after each of tens of thousands of entries."""

    class Counted(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            raise AssertionError("looked through")

    journal, _ = reopen(tmp_path)
    for turn in range(3):
        assert journal.pending_bytes == 0
        for index in range(40):
            journal.stage(1, 1, 40 * turn + index + 1, 1, b"x" * 200)
            kept, journal._buffers = journal._buffers, Counted(journal._buffers)
            pending_bytes, journal._buffers = journal.pending_bytes, kept
        batch = journal.take()
        assert batch is not None and len(batch.parts) > 1
        journal.write(batch)
        journal.synced(batch)
        assert pending_bytes == sum(part.end - part.offset for part in batch.parts)
    journal.close()


def test_an_entry_is_found_from_a_place_inside_it(tmp_path: Path) -> None:
    journal, _ = reopen(tmp_path)
    positions = write(journal, [(index, bytes([index]) * 40) for index in range(1, 80)])
    for position in (*positions[:3], *positions[-3:]):
        found = [journal.segments.read_entry(position + number, within=64) for number in range(64)]
        assert all(
            (entry.position, entry.payload) == (position, journal.segments.read(position))
            for entry in found
        )
        with pytest.raises(CorruptData, match="checksum"):
            journal.segments.read_entry(position + 10, within=10)
    journal.close()


def test_an_entry_larger_than_a_segment_makes_a_longer_one(tmp_path: Path) -> None:
    journal, _ = reopen(tmp_path)
    positions = write(
        journal, [(1, b"a"), (2, b"b" * 10_000), (3, b"c" * 100), (4, b"d" * 2_000_000)]
    )
    assert [position >> 32 for position in positions] == [1, 2, 3, 4]
    journal.close()
    journal, entries = reopen(tmp_path)
    assert [len(e.payload) for e in entries] == [1, 10_000, 100, 2_000_000]
    journal.close()


def test_staging_goes_on_while_a_write_is_in_flight(tmp_path: Path) -> None:
    journal, _ = reopen(tmp_path)
    journal.stage(1, 1, 1, 1, b"first")
    batch = journal.take()
    assert batch is not None
    journal.stage(2, 1, 1, 1, b"second")
    assert journal.pending_bytes > 0 and journal.take() is None  # one at a time
    journal.write(batch)
    journal.synced(batch)
    second = journal.take()
    assert second is not None and second.named == batch.end and journal.pending_bytes == 0
    journal.write(second)
    journal.synced(second)
    journal.close()
    journal, entries = reopen(tmp_path)
    assert [e.payload for e in entries] == [b"first", b"second"]
    journal.close()


def test_released_segments_stay_gone_and_numbers_go_on(tmp_path: Path) -> None:
    journal, _ = reopen(tmp_path)
    write(journal, [(i, bytes(500)) for i in range(1, 40)])
    newest = journal.segments.sizes()[-1][0]
    journal.release(newest + 10)
    assert [number for number, _ in journal.segments.sizes()] == [
        newest
    ]  # never the one being written
    journal.close()
    journal, entries = reopen(tmp_path)
    kept = [e.index for e in entries]
    assert kept == list(range(kept[0], 40))
    write(journal, [(i, bytes(500)) for i in range(40, 60)])
    assert next(number for number, _ in journal.segments.sizes()) == newest
    journal.close()
    journal, entries = reopen(tmp_path)
    assert [e.index for e in entries] == list(range(kept[0], 60))
    journal.close()


def test_bytes_between_places_span_segments(tmp_path: Path) -> None:
    journal, _ = reopen(tmp_path)
    begin = journal.position
    write(journal, [(i, bytes(1000)) for i in range(1, 11)])
    assert (
        10 * 1032 <= journal.segments.bytes_between(begin, journal.position) <= 10 * 1032 + 5 * 112
    )
    assert journal.segments.bytes_between(journal.position, begin) == 0
    journal.close()


def test_a_folder_has_one_journal_at_a_time_and_its_own_id(tmp_path: Path) -> None:
    journal, _ = reopen(tmp_path)
    with pytest.raises(JournalLocked, match="in use by another process"):
        Journal.open(tmp_path, journal_id=7)
    journal.close()
    with pytest.raises(ConfigError, match="belongs to journal 0x7"):
        Journal.open(tmp_path, journal_id=8)
    reopen(tmp_path)[0].close()
