"""Each defect that was observed in the Walrus library is a test here, under its number."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from worlds.fake_disk import FakeDisk

from polynya.embedded import CorruptData, Every, LimitExceeded, Log, LogFull, LogReader

SMALL = 4096


def data(records: object) -> list[bytes]:
    return [record.data for record in records]  # type: ignore[attr-defined]


def test_r1_reading_consumes_nothing_so_a_second_restart_finds_everything(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for number in range(50):
            log.append("raft", b"%d" % number)
    for _ in range(3):
        with Log(tmp_path) as log:
            assert (
                data(log.iterate("raft"))
                == data(log.cursor("raft", "c").peek())
                == [b"%d" % n for n in range(50)]
            )


def test_r2_small_and_empty_records_are_never_skipped(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append_batch("t", [b"7 bytes", b"7 bytes", b"x" * 500, b"", b"y"])
        log.append("t", b"")
        expected = [b"7 bytes", b"7 bytes", b"x" * 500, b"", b"y", b""]
        assert data(log.read_batch("t", 0)) == expected == [log.read("t", n) for n in range(6)]


def test_r3_a_flipped_byte_in_one_topic_hides_no_other_record(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(100):
            for topic in range(6):
                log.append(f"t{topic}", b"<%d-%d>" % (topic, number))
    path = tmp_path / "0000000001.journal"
    content = bytearray(path.read_bytes())
    content[content.index(b"<1-0>")] ^= 1
    path.write_bytes(content)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for topic in (0, 2, 3, 4, 5):
            assert log.count(f"t{topic}") == 100
            assert data(log.iterate(f"t{topic}")) == [b"<%d-%d>" % (topic, n) for n in range(100)]
        assert data(log.iterate("t1", 1)) == [b"<1-%d>" % n for n in range(1, 100)]
        with pytest.raises(CorruptData, match=r"0000000001\.journal is damaged"):
            log.read("t1", 0)


def test_r5_peeking_deletes_nothing(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(200):
            log.append("t", b"%d" % number * 20)
        cursor = log.cursor("t", "c")
        cursor.commit(0)
        for _ in range(120):
            assert len(cursor.peek()) == 199
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.count("t") == 200 and len(log.cursor("t", "c").peek()) == 199


def test_r6_after_removal_of_segments_and_a_restart_a_cursor_skips_nothing(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(150):
            log.append("t", b"%d" % number * 40)
        cursor = log.cursor("t", "c")
        cursor.commit(109)
        log.trim("t", 110)
        assert len(list(tmp_path.glob("*.journal"))) < 8
    for _ in range(2):
        with Log(tmp_path, segment_bytes=SMALL) as log:
            left = log.cursor("t", "c").peek()
            assert [record.number for record in left] == list(range(110, 150))


@pytest.mark.parametrize("sync", ["each", "never"])
def test_r7_a_full_disk_acknowledges_nothing(sync: str) -> None:
    disk = FakeDisk(Random(1), capacity=10_000)
    log = Log(Path("/log"), sync=sync, segment_bytes=SMALL, files=disk)  # type: ignore[arg-type]
    acknowledged = []
    for number in range(60):
        with suppress(LogFull):
            log.append("t", b"%d" % number * 200)
            acknowledged.append(b"%d" % number * 200)
    with pytest.raises(LogFull, match="make room and retry"):
        log.append("t", bytes(5000))
    assert 5 < len(acknowledged) < 60
    disk.kill()
    disk.capacity = 1 << 30
    log = Log(Path("/log"), segment_bytes=SMALL, files=disk)
    assert data(log.iterate("t")) == acknowledged


def test_r9_a_batch_that_was_committed_is_not_delivered_again(tmp_path: Path) -> None:
    with Log(tmp_path, sync=Every(1000)) as log:
        for number in range(1000):
            log.append("t", b"%d" % number)
        cursor = log.cursor("t", "c")
        cursor.commit(cursor.peek(max_records=900)[-1])
    with Log(tmp_path) as log:
        assert [record.number for record in log.cursor("t", "c").peek()] == list(range(900, 1000))


def test_r11_restarts_leave_no_files_behind(tmp_path: Path) -> None:
    for _ in range(8):
        with Log(tmp_path, segment_bytes=SMALL) as log:
            log.append("t", b"x" * 100)
            log.trim("t", log.end("t"))
    assert [path.name for path in sorted(tmp_path.glob("*.journal"))] == ["0000000001.journal"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * SMALL


def test_r12_single_appends_wait_for_batches_and_never_fail(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        done = threading.Event()
        counts = [0, 0]

        def batches() -> None:
            while not done.is_set():
                counts[0] += len(log.append_batch("t", [b"batch"] * 50))

        def singles() -> None:
            for _ in range(200):
                log.append("t", b"single")
                counts[1] += 1
            done.set()

        threads = [threading.Thread(target=work) for work in (batches, singles)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts[1] == 200 and log.count("t") == sum(counts)


def test_r13_reading_at_the_tail_writes_nothing_and_costs_the_same_with_many_topics() -> None:
    disk = FakeDisk()
    log = Log(Path("/log"), sync="never", segment_bytes=1 << 20, files=disk)
    for number in range(1000):
        log.append(f"t{number}", b"x")
    writes = [disk.calls]
    for _ in range(100):
        log.read("t7", 0)
        log.cursor("t7", "c").peek()
        log.read_batch("t7", 1)
    assert disk.calls - writes[0] <= 2 * 100, "one read of the disk for each record that is read"
    before = log._writer.end
    log.commit("t7", "c", 1)
    assert log._writer.end - before < 200, (
        "a commit writes one small frame, whatever other cursors there are"
    )


def test_r14_a_long_topic_name_is_refused_and_breaks_nothing(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for name in ("n" * 256, "n" * 5000):
            for _ in range(2):
                with pytest.raises(LimitExceeded, match="1 to 255 bytes in UTF-8; this one has"):
                    log.append(name, b"x")
                with pytest.raises(LimitExceeded, match="1 to 255 bytes"):
                    log.append_batch(name, [b"x"])
        assert log.append_batch("n" * 255, [b"x", b"y"]) == range(2) and log.topics() == ["n" * 255]


def test_r15_logs_of_one_process_share_nothing(tmp_path: Path) -> None:
    with (
        Log(tmp_path / "a", sync="never", segment_bytes=SMALL) as first,
        Log(tmp_path / "b", sync="each", segment_bytes=SMALL) as second,
        Log(tmp_path / "c", sync=Every(1), segment_bytes=2 * SMALL) as third,
    ):
        logs = (first, second, third)
        for number in range(200):
            for log in logs:
                assert log.append("t", b"%d" % number * 20) == number
        for log in logs:
            log.trim("t", 190)
            assert data(log.iterate("t")) == [b"%d" % n * 20 for n in range(190, 200)]
            assert len(list(log.path.glob("*.journal"))) <= 2, "each removes its own segments"
            removed = [
                name for name in Path("/proc/self/fd").iterdir() if _is_removed(name, log.path)
            ]
            assert not removed, "no descriptor keeps the space of a removed segment"


def _is_removed(descriptor: Path, folder: Path) -> bool:
    try:
        target = str(descriptor.readlink())
    except OSError:
        return False
    return target.startswith(str(folder)) and target.endswith("(deleted)")


def test_r16_a_batch_is_there_whole_or_not_at_all_after_a_crash() -> None:
    for seed in range(60):
        disk = FakeDisk(Random(seed))
        log = Log(Path("/log"), segment_bytes=SMALL, files=disk)
        log.append("t", b"before")
        disk.fail_at = disk.calls + 2  # the sync after the write
        with pytest.raises(Exception, match="Input/output"):
            log.append_batch("t", [b"%d" % n * 100 for n in range(20)])
        disk.power_cut(Random(seed).random())
        log = Log(Path("/log"), segment_bytes=SMALL, files=disk)
        assert log.count("t") in (1, 21)


def test_r17_a_batch_refused_over_the_end_of_a_segment_leaves_no_hole() -> None:
    disk = FakeDisk(Random(3), capacity=6000)
    log = Log(Path("/log"), segment_bytes=SMALL, files=disk)
    kept = []
    while True:
        try:
            log.append_batch("t", [b"x" * 300, b"y" * 300])
        except LogFull:
            break
        kept += [b"x" * 300, b"y" * 300]
    log.append("t", b"small")
    disk.capacity = 1 << 30
    for number in range(30):
        log.append("t", b"%d" % number * 50)
    disk.power_cut(0.5)
    log = Log(Path("/log"), segment_bytes=SMALL, files=disk)
    assert data(log.iterate("t")) == [*kept, b"small", *(b"%d" % n * 50 for n in range(30))]


def test_r18_a_record_that_looks_like_frames_is_only_a_record(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"first")
        image = (tmp_path / "0000000001.journal").read_bytes()
        for _ in range(3):
            log.append("t", image[64:1000])
        log.append("t", image * 3)
    for index in tmp_path.glob("*.index"):
        index.unlink()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert (
            data(log.iterate("t")) == [b"first", *[image[64:1000]] * 3, image * 3] and not log.cuts
        )


def test_r19_a_small_record_costs_32_bytes_and_an_idle_topic_a_frame(tmp_path: Path) -> None:
    with Log(tmp_path, sync="never") as log:
        log.create("t")
        begin = log.disk_bytes()
        for _ in range(100):
            log.append("t", b"x" * 100)
        assert log.disk_bytes() - begin <= 100 * 132 + 48
        begin = log.disk_bytes()
        for number in range(100):
            log.create(f"idle {number:03}")
        assert log.disk_bytes() - begin <= 100 * (32 + 8)


def test_the_first_commands_after_a_reader_has_read_the_tail_are_seen(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append("t", b"1")
        with LogReader(tmp_path) as reader:
            for number in range(1, 50):
                log.append("t", b"%d" % number)
                assert reader.count("t") == number + 1
