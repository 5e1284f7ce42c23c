"""Readers in other processes, and a reader beside every kind of change of the writer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from product import environment
from worlds.journal_process import kill_writer
from worlds.log_process import start_log_writer

from polynya.embedded import Log, LogClosed, LogReader, RecordTrimmed

SMALL = 4096
READER = """
import sys
from polynya.embedded import LogReader, RecordTrimmed, UnknownTopic
with LogReader(sys.argv[1]) as reader:
    number = 0
    print("open", flush=True)
    while number < int(sys.argv[2]):
        try:
            for record in reader.iterate("t", number):
                assert record.number == number and record.data == b"%09d" % number * (number % 40), number
                number += 1
        except RecordTrimmed as trimmed:
            number = trimmed.first
        except UnknownTopic:
            pass
    print("read", number, flush=True)
"""


@pytest.mark.process
def test_several_processes_read_while_one_writes(tmp_path: Path) -> None:
    writer, _ = start_log_writer(tmp_path)
    assert writer.stdout is not None
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, tmp_path, "1500"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for _ in range(2)
    ]
    acknowledged = 0
    try:
        while acknowledged < 1500:
            acknowledged = int(writer.stdout.readline())
        for reader in readers:
            said, wrong = reader.communicate(timeout=120)
            assert said.startswith("open\nread ") and not wrong, wrong
    finally:
        kill_writer(writer, acknowledged)
        for reader in readers:
            reader.kill()
            reader.wait()


def test_a_reader_follows_every_change(tmp_path: Path) -> None:
    random = Random(5)
    with Log(tmp_path, sync="never", segment_bytes=SMALL) as log:
        log.create("a")
        with LogReader(tmp_path) as reader:
            for step in range(600):
                topic = random.choice("abc")
                kind = random.random()
                if kind < 0.6 or topic not in log.topics():
                    log.append(topic, b"%d" % step * random.randint(0, 50))
                elif kind < 0.8:
                    log.append_batch(topic, [b"%d" % step] * random.randint(1, 9))
                elif kind < 0.9:
                    log.trim(topic, random.randint(0, log.end(topic)))
                elif kind < 0.95:
                    log.commit(topic, "c", log.end(topic))
                else:
                    log.delete(topic)
                if random.random() < 0.3:
                    assert same(reader) == same(log)
            assert same(reader) == same(log)
        with LogReader(tmp_path) as reader:
            assert same(reader) == same(log)


def same(log: Log | LogReader) -> object:
    return [
        (
            t,
            log.first(t),
            log.end(t),
            log.count(t),
            log.size(t),
            log.cursors(t),
            list(log.iterate(t)),
        )
        for t in log.topics()
    ]


def test_a_reader_sees_a_log_that_is_opened_again(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"1")
    with LogReader(tmp_path) as reader:
        assert reader.count("t") == 1
        for number in range(2, 60):
            with Log(tmp_path, segment_bytes=SMALL) as log:
                log.append("t", b"%d" % number * 30)
            assert reader.count("t") == number


def test_a_reader_starts_again_when_the_writer_took_frames_back(tmp_path: Path) -> None:
    with Log(tmp_path, sync="never", segment_bytes=SMALL) as log:
        log.append("t", b"kept")
        end = log._writer.end & 0xFFFFFFFF
    path = tmp_path / "0000000001.journal"
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"taken back")
        with LogReader(tmp_path) as reader:
            assert reader.read("t", 1) == b"taken back"
            content = bytearray(path.read_bytes())
            content[end:] = bytes(len(content) - end)
            path.write_bytes(content)
            assert reader.count("t") == 1 and reader.read("t", 0) == b"kept"


def test_a_reader_that_falls_behind_is_told_where_to_go_on(tmp_path: Path) -> None:
    with Log(tmp_path, sync="never", segment_bytes=SMALL) as log:
        log.append("t", b"x" * 100)
        with LogReader(tmp_path) as reader:
            assert reader.first("t") == 0
            for _ in range(200):
                log.append("t", b"x" * 100)
            log.trim("t", 180)
            with pytest.raises(RecordTrimmed, match="the oldest is 180"):
                reader.read("t", 0)
            assert len(list(reader.iterate("t"))) == 21
            reader.close()
            with pytest.raises(LogClosed):
                reader.count("t")


def test_a_reader_needs_no_right_to_write_and_changes_nothing(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(100):
            log.append("t", b"%d" % number * 30)
    for index in tmp_path.glob("*.index"):
        index.unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with LogReader(tmp_path) as reader:
        assert reader.count("t") == 100 and len(list(reader.iterate("t"))) == 100
        reader.check()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
