"""The embedded log by its public methods, on real files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from product import environment

from polynya.base.limits import LOG_RECORD_BYTES_MAX
from polynya.embedded import (
    ConfigError,
    CorruptData,
    Every,
    LimitExceeded,
    Log,
    LogClosed,
    LogError,
    LogLocked,
    LogReader,
    Record,
    RecordMissing,
    RecordTrimmed,
    Schedule,
    UnknownCursor,
    UnknownTopic,
)
from polynya.embedded.operations import Trim
from polynya.wal import Journal

SMALL = 4096


def filled(log: Log, topic: str = "t", count: int = 100) -> list[Record]:
    records = [Record(number, b"%d " % number * (number % 50)) for number in range(count)]
    for record in records:
        assert log.append(topic, record.data) == record.number
    return records


@pytest.mark.parametrize("sync", ["each", "never", Every(1)])
def test_records_come_back_in_order_also_after_a_restart(tmp_path: Path, sync: Schedule) -> None:
    with Log(tmp_path, sync=sync, segment_bytes=SMALL) as log:
        records = filled(log)
        assert log.append_batch("t", [b"x", b"", b"z"]) == range(100, 103)
        records += [Record(100, b"x"), Record(101, b""), Record(102, b"z")]
        assert list(log.iterate("t")) == records and len(list(tmp_path.glob("*.journal"))) > 2
    with Log(tmp_path, sync=sync, segment_bytes=SMALL) as log:
        assert not log.cuts and list(log.iterate("t")) == records
        assert [log.read("t", record.number) for record in records] == [
            record.data for record in records
        ]
        assert log.append("t", b"more") == 103
        log.check()


def test_a_batch_read_has_bounds(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append_batch("t", [b"a" * 10] * 5)
        for _ in range(5):
            log.append("t", b"b" * 10)
        assert [r.number for r in log.read_batch("t", 2, max_records=4)] == [2, 3, 4, 5]
        assert [r.number for r in log.read_batch("t", 3, max_bytes=35)] == [3, 4, 5]
        assert [r.number for r in log.read_batch("t", 3, max_bytes=1)] == [3], "one, however large"
        assert log.read_batch("t", 10) == []
        with pytest.raises(RecordMissing, match="ends at 10; there is no record 11"):
            log.read_batch("t", 11)
        with pytest.raises(RecordMissing):
            log.read("t", 10)
        with pytest.raises(LogError, match="at least 1"):
            log.read_batch("t", 0, max_records=0)


def test_topics_are_apart(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(200):
            log.append(f"t{number % 7}", b"%d" % number * 9)
        log.create("empty")
        log.create("empty")
        assert log.topics() == ["empty", *(f"t{i}" for i in range(7))]
        assert log.count("empty") == log.size("empty") == 0
        for i in range(7):
            assert [int(r.data[:1]) for r in log.iterate(f"t{i}")] == [
                int(str(n)[0]) for n in range(i, 200, 7)
            ]


def test_counts_and_sizes(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for size in range(100):
            log.append("t", b"x" * size)
        log.append_batch("t", [b"x" * size for size in range(100, 110)])
        assert (log.count("t"), log.size("t")) == (110, sum(range(110)))
        for first in (3, 50, 99, 100, 105, 110):
            log.trim("t", first)
            assert (log.first("t"), log.count("t"), log.size("t")) == (
                first,
                110 - first,
                sum(range(first, 110)),
            )
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert (log.first("t"), log.end("t"), log.size("t")) == (110, 110, 0)
        assert log.append("t", b"abc") == 110 and log.size("t") == 3


def test_trimming_removes_segments_and_the_rest_stays(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        records = filled(log, count=300)
        before = log.disk_bytes()
        log.trim("t", 250)
        assert log.disk_bytes() < before / 2
        assert len(list(tmp_path.glob("*.index"))) == len(list(tmp_path.glob("*.journal"))) - 1
        assert list(log.iterate("t")) == records[250:]
        with pytest.raises(RecordTrimmed, match=r"record 249 .* the oldest is 250") as trimmed:
            log.read("t", 249)
        assert trimmed.value.first == 250
        with pytest.raises(RecordMissing, match="cannot be trimmed to 301"):
            log.trim("t", 301)
        log.trim("t", 10)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert list(log.iterate("t")) == records[250:]


def test_an_old_record_of_another_topic_keeps_newer_segments(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("slow", b"one")
        filled(log, count=300)
        log.trim("t", 300)
        assert len(list(tmp_path.glob("*.journal"))) > 5 and log.read("slow", 0) == b"one"
        log.delete("slow")
        assert len(list(tmp_path.glob("*.journal"))) == 1


def test_a_deleted_topic_begins_again_at_zero(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        filled(log, count=20)
        log.commit("t", "c", 3)
        log.delete("t")
        with pytest.raises(UnknownTopic, match="no topic 't'"):
            log.count("t")
        with pytest.raises(UnknownTopic):
            log.delete("t")
        assert log.append("t", b"new") == 0 and log.cursors("t") == {}
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert list(log.iterate("t")) == [Record(0, b"new")]


def test_a_cursor_is_durable_and_moves_only_by_commit(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        filled(log, count=200)
        cursor = log.cursor("t", "billing")
        assert cursor.position == 0 and cursor.lag() == 200 and log.cursors("t") == {}
        first = cursor.peek(max_records=3)
        assert cursor.peek(max_records=3) == first and [r.number for r in first] == [0, 1, 2]
        cursor.commit(first[-1])
        cursor.commit(5)
        assert (cursor.position, cursor.lag(), log.count("t", cursor="billing")) == (6, 194, 194)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        cursor = log.cursor("t", "billing")
        assert cursor.position == 6 and cursor.peek(max_records=1)[0].number == 6
        log.trim("t", 50)
        assert cursor.position == 50 and log.cursors("t") == {"billing": 6}
        cursor.seek(199)
        assert cursor.lag() == 1
        with pytest.raises(RecordMissing, match="ends at 200"):
            cursor.commit(200)
        log.drop_cursor("t", "billing")
        with pytest.raises(UnknownCursor, match="no cursor 'billing'"):
            log.drop_cursor("t", "billing")
        with pytest.raises(UnknownCursor):
            log.count("t", cursor="billing")


def test_limits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path) as log:
        for name in ("", "x" * 256, "ä" * 128):
            with pytest.raises(LimitExceeded, match="1 to 255 bytes"):
                log.append(name, b"x")
        with pytest.raises(LogError, match="surrogate"):
            log.append("\ud800", b"x")
        with pytest.raises(LimitExceeded, match="at most 64 MiB; this one has 67108865"):
            log.append("t", bytes(LOG_RECORD_BYTES_MAX + 1))
        with pytest.raises(LimitExceeded, match="1 to 65536 records"):
            log.append_batch("t", [])
        with pytest.raises(LimitExceeded, match="this one has 65537 records"):
            log.append_batch("t", [b""] * 65537)
        with pytest.raises(TypeError, match="this one is str"):
            log.append("t", "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="one bytes"):
            log.append_batch("t", b"text")  # type: ignore[arg-type]
        assert log.append("t", bytearray(b"ok")) == 0  # type: ignore[arg-type]
        monkeypatch.setattr("polynya.embedded.operations.LOG_TOPICS_MAX", 1)
        monkeypatch.setattr("polynya.embedded.operations.LOG_CURSORS_MAX", 1)
        with pytest.raises(LimitExceeded, match="has 1 topics"):
            log.append("u", b"x")
        log.commit("t", "a", 1)
        with pytest.raises(LimitExceeded, match="has 1 cursors"):
            log.commit("t", "b", 1)
        assert log.append("t", b"goes on") == 1
    for wrong in ({"sync": "often"}, {"segment_bytes": 100}, {"segment_bytes": 1 << 31}):
        with pytest.raises(LogError, match="not"):
            Log(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(LogError, match="milliseconds; this one is 0"):
        Every(0)


def test_a_record_larger_than_a_segment(tmp_path: Path) -> None:
    large = os.urandom(50_000)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"small")
        log.append("t", large)
        log.append_batch("t", [large, b"x", large])
        log.append("t", b"last")
        assert [r.data for r in log.iterate("t")] == [b"small", large, large, b"x", large, b"last"]
        with LogReader(tmp_path) as reader:
            assert reader.read("t", 4) == large
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert [r.data for r in log.iterate("t")] == [b"small", large, large, b"x", large, b"last"]


@pytest.mark.process
def test_a_second_writer_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    with Log(tmp_path):
        with pytest.raises(LogLocked, match="in this process") as locked:
            Log(tmp_path)
        assert locked.value.pid == os.getpid()
        code = "import sys; from polynya.embedded import Log; Log(sys.argv[1])"
        ran = subprocess.run(
            [sys.executable, "-c", code, tmp_path],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        assert f"is open for writing in process {os.getpid()}." in ran.stderr
    Log(tmp_path).close()


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append("t", b"x")
    cursor = log.cursor("t", "c")
    log.close()
    log.close()
    for call in (
        lambda: log.append("t", b"x"),
        lambda: log.read("t", 0),
        log.topics,
        log.sync,
        cursor.peek,
        lambda: log.trim("t", 1),
    ):
        with pytest.raises(LogClosed, match="is closed"):
            call()


@pytest.mark.process
def test_a_forked_process_cannot_write(tmp_path: Path) -> None:
    code = """
import os, sys
from polynya.embedded import Log, LogClosed, LogReader
log = Log(sys.argv[1])
log.append("t", b"x")
child = os.fork()
if not child:
    try:
        log.append("t", b"y")
    except LogClosed as refused:
        log.close()
        assert "before a fork" in str(refused) and LogReader(sys.argv[1]).count("t") == 1
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
log.append("t", b"z")
log.close()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, env=environment())
    with LogReader(tmp_path) as reader:
        assert [r.data for r in reader.iterate("t")] == [b"x", b"z"]


def test_the_directory_of_a_node_is_refused(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, journal_id=5)
    journal.stage(1, 1, 1, 1, b"x")
    batch = journal.take()
    assert batch is not None
    journal.write(batch)
    journal.synced(batch)
    journal.close()
    with pytest.raises(ConfigError, match="holds another kind of journal"):
        Log(tmp_path)
    with pytest.raises(ConfigError, match="holds another kind of journal"):
        LogReader(tmp_path)


def test_a_reader_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is no log in"):
        LogReader(tmp_path / "missing")


def test_threads_share_syncs_and_lose_nothing(tmp_path: Path) -> None:
    for sync in ("each", "never"):
        folder = tmp_path / sync
        with Log(folder, sync=sync, segment_bytes=1 << 16) as log:  # type: ignore[arg-type]
            numbers: list[set[int]] = [set() for _ in range(8)]

            def work(mine: int, log: Log = log, numbers: list[set[int]] = numbers) -> None:
                for i in range(150):
                    if i % 10:
                        numbers[mine].add(log.append("shared", b"%d-%d" % (mine, i)))
                    else:
                        numbers[mine].update(log.append_batch("shared", [b"%d-%d" % (mine, i)] * 2))
                    log.append(f"own {mine}", b"%d" % i)
                    log.commit("shared", f"c{mine}", i)
                    assert log.read(f"own {mine}", i) == b"%d" % i

            threads = [threading.Thread(target=work, args=(mine,)) for mine in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(n for each in numbers for n in each) == list(range(8 * 165))
            found = {r.number: r.data for r in log.iterate("shared")}
            assert all(
                found[n].startswith(b"%d-" % mine) for mine in range(8) for n in numbers[mine]
            )
        with Log(folder, segment_bytes=1 << 16) as log:
            assert log.count("shared") == 8 * 165 and log.cursors("shared") == {
                f"c{i}": 149 for i in range(8)
            }
            assert all(
                [r.data for r in log.iterate(f"own {i}")] == [b"%d" % n for n in range(150)]
                for i in range(8)
            )


def test_a_missing_or_damaged_index_is_made_again(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        records = filled(log, count=300)
        log.append_batch("t", [b"a", b"b"])
    indexes = sorted(tmp_path.glob("*.index"))
    good = [path.read_bytes() for path in indexes]
    indexes[0].unlink()
    indexes[1].write_bytes(good[1][:-1] + b"\xff")
    indexes[2].write_bytes(good[1])
    indexes[3].write_bytes(good[3][:40])
    (tmp_path / "9999999999.index").write_bytes(b"left over")
    (tmp_path / "0000000001.index.tmp").write_bytes(b"left over")
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert list(log.iterate("t"))[:300] == records and log.read("t", 301) == b"b"
    assert [path.read_bytes() for path in sorted(tmp_path.glob("*.index"))] == good
    assert not list(tmp_path.glob("*.tmp"))


def test_an_older_segment_that_is_gone_is_told(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        filled(log, count=300)
    min(tmp_path.glob("*.journal")).unlink()
    with pytest.raises(
        CorruptData, match=r"record 0 of topic 't' is in no segment .* older segments are missing"
    ):
        Log(tmp_path)


def test_memory_of_indexes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.embedded.segments.LOG_INDEX_CACHE_BYTES", 1000)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        records = filled(log, count=500)
        assert list(log.iterate("t")) == records
        assert len(list(tmp_path.glob("*.journal"))) > 20 and len(log._reader._indexes) <= 2
        assert len(log._reader._open._open) <= 16


@pytest.mark.process
def test_the_library_is_lean_to_import() -> None:
    code = "import sys, polynya.embedded; print(*sorted(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    loaded = set(ran.stdout.split())
    assert not loaded & {
        "asyncio",
        "click",
        "cryptography",
        "http",
        "httpx",
        "jwt",
        "logging",
        "obstore",
        "ssl",
        "uvloop",
    }
    rooms = {name.split(".")[1] for name in loaded if name.startswith("polynya.")}
    assert rooms == {"base", "embedded", "files", "wal"}


def test_threads_read_while_segments_change_and_topics_go(tmp_path: Path) -> None:
    wrong: list[BaseException] = []
    done = threading.Event()
    with Log(tmp_path, sync="never", segment_bytes=SMALL) as log:
        log.append("t", b"0")

        def read() -> None:
            try:
                while not done.is_set():
                    end = log.end("t")
                    assert log.read("t", end - 1) == b"%d" % (end - 1)
                    with suppress(UnknownTopic, RecordTrimmed, RecordMissing):
                        log.trim("going", log.end("going"))
            except BaseException as error:
                wrong.append(error)
                raise

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for number in range(1, 2000):
            log.append("t", b"%d" % number)
            log.append("going", b"x" * 20)
            if number % 50 == 0:
                with suppress(UnknownTopic):
                    log.delete("going")
        done.set()
        for reader in readers:
            reader.join()
    assert not wrong
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert [record.data for record in log.iterate("t")] == [b"%d" % n for n in range(2000)]


def test_a_topic_deleted_under_a_trim_is_not_trimmed_under_its_new_name(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"old")
        stale = Trim(log._catalog.topics["t"], 1, 3)
        log.delete("t")
        log.append("t", b"new")
        with pytest.raises(UnknownTopic, match="deleted meanwhile"):
            log._submit(stale)
        assert list(log.iterate("t")) == [Record(0, b"new")]
