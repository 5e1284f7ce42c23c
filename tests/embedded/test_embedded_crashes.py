"""Crashes of the embedded log: each call fails once, power cuts, torn writes, damage, and kill
-9."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from worlds.fake_disk import FakeDisk
from worlds.journal_process import kill_writer
from worlds.log_process import SEGMENT_BYTES, start_log_writer

from polynya.embedded import (
    CorruptData,
    Log,
    LogError,
    LogFailed,
    LogFull,
    LogLocked,
    LogReader,
    Record,
)
from polynya.wal.frames import SegmentHeader, pack_segment_header

FOLDER = Path("/log")
SMALL = 4096


class LogLife:
    """A log on a fake disk with one topic; `kept` must come back, and all or nothing of
    `in_flight`."""

    def __init__(self, disk: FakeDisk, sync: str = "each") -> None:
        self.disk = disk
        self.sync = sync
        self.random = disk.random
        self.kept: list[bytes] = []
        self.durable = 0  # of `kept`, with the schedule `never`
        self.in_flight: list[bytes] = []
        self.trimmed = 0
        self.count = 0
        self.log: Log

    def begin(self) -> None:
        self.log = Log(FOLDER, sync=self.sync, segment_bytes=SMALL, files=self.disk)  # type: ignore[arg-type]
        if "t" not in self.log.topics():
            assert not self.kept[: self.durable]
            self.kept, self.in_flight = [], []
            return
        first = self.log.first("t")
        assert first <= self.trimmed, "trimmed what nobody asked for"
        found = [record.data for record in self.log.iterate("t")]
        assert self.log.end("t") == first + len(found)
        least = self.kept[: max(self.durable, first)] if self.sync == "never" else self.kept
        assert found[: len(least) - first] == least[first:], "an acknowledged record is lost"
        rest = found[len(least) - first :]
        if self.sync == "never":
            assert rest == (self.kept[len(least) :] + self.in_flight)[: len(rest)]
        else:
            assert rest in ([], self.in_flight), "half a batch, or a refused record"
        self.kept, self.trimmed = self.kept[:first] + found, first
        self.in_flight = []
        self.durable = len(self.kept)

    def step(self) -> None:
        what = self.random.random()
        if what < 0.1 and self.kept:
            self.trimmed = max(self.trimmed, self.random.randint(0, len(self.kept)))
            self.log.trim("t", self.trimmed)
            return
        if what < 0.2:
            self.log.sync()
            self.durable = len(self.kept)
            return
        self.count += 1
        data = b"%06d" % self.count * self.random.choice((1, 3, 20, 150))
        self.in_flight = (
            [data] if what < 0.6 else [data + b"%d" % i for i in range(self.random.randint(1, 5))]
        )
        try:
            if what < 0.6:
                self.log.append("t", data)
            else:
                self.log.append_batch("t", self.in_flight)
        except LogFull:
            self.in_flight = []
            return
        self.kept += self.in_flight
        self.in_flight = []

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


@settings(max_examples=examples(40))
@given(st.integers(0, 1 << 32), st.sampled_from(["each", "never"]))
def test_no_power_cut_loses_what_was_acknowledged_and_synced(seed: int, sync: str) -> None:
    life = LogLife(FakeDisk(Random(seed)), sync)
    for _ in range(5):
        life.begin()
        life.live(life.random.randint(0, 25))
        if life.random.random() < 0.3:
            life.log.close()
            life.durable = len(life.kept)
        if sync == "never" and life.random.random() < 0.5:
            life.disk.kill()  # only the process
            life.durable = len(life.kept)
        else:
            life.disk.power_cut(life.random.choice((0.0, 0.3, 0.7, 1.0)))


@settings(max_examples=examples(30))
@given(st.integers(0, 1 << 32), st.sampled_from(["each", "never"]))
def test_a_full_disk_refuses_and_the_log_goes_on(seed: int, sync: str) -> None:
    random = Random(seed)
    life = LogLife(FakeDisk(random, capacity=random.randint(6_000, 30_000)), sync)
    refused = 0
    for _ in range(4):
        with suppress(LogFull):
            life.begin()
            for _ in range(25):
                before = life.count, len(life.kept)
                try:
                    life.step()
                except LogFull:
                    refused += 1
                refused += life.count > before[0] and len(life.kept) == before[1]
        life.disk.kill()
        life.durable = len(life.kept)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("sync", ["each", "never"])
@pytest.mark.parametrize("some", [0.0, 0.5, 1.0])
def test_fail_the_nth_call_of_the_disk(error: int, sync: str, some: float) -> None:
    failed_calls = set()
    for n in range(1, 10_000):
        disk = FakeDisk(Random(n))
        disk.fail_at, disk.error = n, error
        life = LogLife(disk, sync)
        with suppress(OSError, LogError):
            life.begin()
            life.live(25)
            life.log.close()
            life.durable = len(life.kept)
            life.begin()
            life.live(5)
        if not disk.failed_call:
            break
        failed_calls.add(disk.failed_call)
        disk.power_cut(some)
        life.begin()
        life.live(3)
    assert n > 60 and failed_calls >= {
        "create",
        "allocate",
        "write",
        "sync",
        "sync_folder",
        "truncate",
        "unlink",
        "read",
        "open",
    }


def test_after_a_failed_sync_nothing_is_acknowledged_any_more() -> None:
    for seed in range(20):
        disk = FakeDisk(Random(seed))
        log = Log(FOLDER, segment_bytes=SMALL, files=disk)
        log.append("t", b"one")
        disk.fail_at = disk.calls + 2  # write, then sync
        with pytest.raises(LogFailed, match=r"Input/output error.* open it again"):
            log.append("t", b"two")
        assert disk.failed_call == "sync"
        with pytest.raises(LogFailed):
            log.append("t", b"three")
        with pytest.raises(LogFailed):
            log.sync()
        assert log.count("t") == 1, "nothing is read that was not acknowledged"
        log.close()
        disk.power_cut(0)
        log = Log(FOLDER, segment_bytes=SMALL, files=disk)
        assert [r.data for r in log.iterate("t")][:1] == [b"one"]


def test_a_crash_before_the_state_of_a_new_segment_loses_no_topic_and_no_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk = FakeDisk()
    log = Log(FOLDER, segment_bytes=SMALL, files=disk)
    for _ in range(40):
        log.append("t", bytes(200))
    log.commit("t", "c", 7)
    monkeypatch.setattr(disk, "unlink", refuse)
    with pytest.raises(LogError, match="cannot be removed"):
        log.trim("t", 40)
    whole = {path: bytes(inode.cached) for path, inode in disk.files.items()}
    newest = max(path for path in whole if path.suffix == ".journal")
    empty = copy_with(disk, newest, whole[newest])
    number, position = log._writer._open.number + 1, log._writer.end
    header = SegmentHeader(log._writer.journal_id, number, 99, position)
    fd = empty.create(FOLDER / f"{number:010d}.journal")
    empty.write(fd, [pack_segment_header(header)], 0)
    empty.sync(fd)
    empty.sync_folder(FOLDER)
    for _ in range(2):
        log = Log(FOLDER, segment_bytes=SMALL, files=empty)
        assert (log.topics(), log.end("t"), log.count("t"), log.cursors("t")) == (
            ["t"],
            40,
            0,
            {"c": 7},
        )
        empty.kill()
    log = Log(FOLDER, segment_bytes=SMALL, files=empty)
    assert log.append("t", b"next") == 40
    log.trim("t", 41)
    empty.power_cut(0.5)
    log = Log(FOLDER, segment_bytes=SMALL, files=empty)
    assert (log.end("t"), log.cursors("t")) == (41, {"c": 7})
    assert len([path for path in empty.files if path.suffix == ".journal"]) == 1


def test_a_failed_background_sync_fails_the_next_append() -> None:
    disk = FakeDisk()
    log = Log(FOLDER, sync="never", segment_bytes=SMALL, files=disk)
    log.append("t", b"one")
    disk.fail_at = disk.calls + 1
    with pytest.raises(LogFailed):
        log.sync()
    with pytest.raises(LogFailed, match="Input/output error"):
        log.append("t", b"two")


def copy_with(disk: FakeDisk, path: Path, content: bytes) -> FakeDisk:
    """Another disk with the same files, one of them changed."""
    other = FakeDisk()
    for name, inode in disk.files.items():
        fd = other.create(name)
        other.write(fd, [content if name == path else bytes(inode.cached)], 0)
        other.sync(fd)
    other.sync_folder(FOLDER)
    other.lock_files = disk.lock_files
    other.nonce = disk.nonce
    return other


def test_the_last_frame_torn_at_each_byte_is_cut() -> None:
    for batch in (False, True):
        disk = FakeDisk()
        log = Log(FOLDER, segment_bytes=SMALL, files=disk)
        log.append("t", b"kept")
        begin = log._writer.end & 0xFFFFFFFF
        if batch:
            log.append_batch("t", [b"torn 1", b"torn 2", b"torn 3"])
        else:
            log.append("t", b"torn")
        end = log._writer.end & 0xFFFFFFFF
        path = FOLDER / "0000000001.journal"
        whole = bytes(disk.files[path].cached)
        for at in range(begin, end):
            torn = copy_with(disk, path, whole[:at] + bytes(len(whole) - at))
            log = Log(FOLDER, segment_bytes=SMALL, files=torn)
            assert [r.data for r in log.iterate("t")] == [b"kept"], at
            assert log.append("t", b"next") == 1
            log.close()
            log = Log(FOLDER, segment_bytes=SMALL, files=torn)
            assert [r.data for r in log.iterate("t")] == [b"kept", b"next"] and not log.cuts


def test_damage_in_the_middle_is_refused_at_each_byte() -> None:
    disk = FakeDisk()
    log = Log(FOLDER, segment_bytes=SMALL, files=disk)
    log.append("t", b"first")
    end = log._writer.end & 0xFFFFFFFF
    log.append("t", b"second")
    log.close()
    path = FOLDER / "0000000001.journal"
    whole = bytes(disk.files[path].cached)
    for at in range(end):
        damaged = copy_with(disk, path, whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        with pytest.raises(
            (CorruptData, Exception), match=r"damaged|unreadable|journal format|under another name"
        ):
            Log(FOLDER, segment_bytes=SMALL, files=damaged)
        assert bytes(damaged.files[path].cached)[:at] == whole[:at], "nothing is cut"


def test_damage_in_an_older_segment_is_refused_where_it_is_read(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(300):
            log.append("t", b"%d" % number * 20)
    path = tmp_path / "0000000002.journal"
    data = bytearray(path.read_bytes())
    damaged = next(number for number in range(300) if b"%d" % number * 20 in data and number > 60)
    data[data.index(b"%d" % damaged * 20) + 7] ^= 1
    path.write_bytes(data)
    with Log(tmp_path, segment_bytes=SMALL) as log, LogReader(tmp_path) as reader:
        for each in (log, reader):
            others = [number for number in range(300) if number != damaged]
            assert [each.read("t", number) for number in others] == [
                b"%d" % number * 20 for number in others
            ]
            with pytest.raises(CorruptData, match=r"0000000002\.journal is damaged at offset"):
                each.read("t", damaged)
            with pytest.raises(CorruptData, match=r"0000000002\.journal is damaged"):
                each.check()
    for index in tmp_path.glob("*.index"):
        index.unlink()
    with pytest.raises(CorruptData, match=r"0000000002\.journal is damaged"):
        Log(tmp_path, segment_bytes=SMALL)


@pytest.mark.process
@pytest.mark.parametrize("sync", ["each", "never"])
def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path, sync: str) -> None:
    acknowledged = 0
    for turns in (1, 100, 400):
        writer, found = start_log_writer(tmp_path, sync)
        assert found >= acknowledged and writer.stdout is not None
        for _ in range(turns):
            acknowledged = int(writer.stdout.readline())
        with pytest.raises(LogLocked, match=f"in process {writer.pid}") as locked:
            Log(tmp_path)
        assert locked.value.pid == writer.pid
        acknowledged = kill_writer(writer, acknowledged)
    with Log(tmp_path, segment_bytes=SEGMENT_BYTES) as log:
        assert log.end("t") >= acknowledged >= 500 and (log.end("t") - found) % 5 in (0, 1), (
            "a batch is whole or not there"
        )
        expected = [Record(n, b"%09d" % n * (n % 40)) for n in range(log.first("t"), log.end("t"))]
        assert list(log.iterate("t")) == expected and len(list(tmp_path.glob("*.journal"))) > 1
