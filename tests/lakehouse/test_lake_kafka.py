"""Kafka batches as rows: values, keys, headers and times, in each codec; bombs and damage stay with
their stream."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import google_crc32c
import msgspec
import pytest
from worlds.lakehouse import T0, Lake, quiet

from polynya.base.errors import CorruptData
from polynya.base.limits import KAFKA_UNCOMPRESSED_BYTES_LEAST
from polynya.lakehouse.jobs import worker
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.sql.query import query
from polynya.stream.parts import Encoding
from polynya.wire.kafka import codecs
from polynya.wire.kafka.batches import HEADER_BYTES, Record, build_batch
from polynya.wire.kafka.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompressed
from polynya.wire.kafka.values import partition_type

TIME = 1_600_000_000_000
TRIES = 3


def xerial(data: bytes, block: int = 100) -> bytes:
    """Snappy in the framing of snappy-java, which the Java clients and librdkafka's peers write."""
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[at : at + block]))
        for at in range(0, len(data), block)
    ]
    return (
        b"\x82SNAPPY\0"
        + struct.pack(">ii", 1, 1)
        + b"".join(len(each).to_bytes(4) + each for each in blocks)
    )


PACKERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (NONE, bytes),
    "gzip": (GZIP, gzip.compress),
    "snappy": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial": (SNAPPY, xerial),
    "lz4": (LZ4, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (ZSTD, lambda data: bytes(cramjam.zstd.compress(data))),
}


def packed(codec: int, body: bytes, *, like: bytes, attributes: int = 0) -> bytes:
    """Build a batch with the header of another, and with this body."""
    made = bytearray(like[:HEADER_BYTES] + body)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, codec | attributes)
    struct.pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


def batch(*records: Record, packer: str = "none", attributes: int = 0) -> tuple[int, bytes]:
    plain = build_batch(records)
    codec, pack = PACKERS[packer]
    return len(records), packed(
        codec, pack(plain[HEADER_BYTES:]), like=plain, attributes=attributes
    )


def values(*each: bytes | None, packer: str = "none") -> tuple[int, bytes]:
    return batch(*(Record(None, value, TIME) for value in each), packer=packer)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    return Lake(str(tmp_path / "store"))


def synced(lake: Lake) -> list[dict[str, Any]]:
    """Build the tables; return the rows, which are the same in both formats."""
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    one, two = (
        sorted(table.to_pylist(), key=lambda row: (row["stream"], row["offset"]))
        for table in (lake.iceberg(), lake.delta())
    )
    for row in one:
        # pyiceberg reads a list that is null as an empty one
        row["headers"] = row["headers"] or None
    assert one == two
    return two


@pytest.mark.parametrize("packer", PACKERS)
def test_a_codecs_records_have_keys_headers_and_times(lake: Lake, packer: str) -> None:
    records = [
        Record(b"k0", b'{"n":0}', TIME, (("a", b"1"), ("a", None))),
        Record(None, b'{"n":1}', TIME + 5),
        Record(b"k2", None, TIME + 3),
        Record(b"", b"", TIME + 4),
        *(
            Record(b"k%d" % n, b'{"n":%d,"text":"%s"}' % (n, b"x" * 300), TIME + n)
            for n in range(4, 90)
        ),
    ]
    lake.source.append_kafka("kafka/t/0", values(b"first"), batch(*records, packer=packer))
    rows = synced(lake)[1:]
    assert [row["offset"] for row in rows] == list(range(1, 91))
    assert [row["key"] for row in rows] == [each.key for each in records]
    assert [row["value"] for row in rows] == [each.value for each in records]
    assert [row["timestamp"].timestamp() * 1000 for row in rows] == [
        each.timestamp for each in records
    ]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert all(row["headers"] is None for row in rows[1:])
    assert [row["n"] for row in rows] == [0, 1, None, None, *range(4, 90)]
    assert {row["batch"] for row in rows} == {1}
    assert {row["byte_offset"] for row in rows} == {len(values(b"first")[1])}
    assert {row["append_time"].timestamp() * 1000 for row in rows} == {T0 + 1}
    assert lake.iceberg("dlq").num_rows == 0
    tables = lake.coordinator.tables()
    found = query(tables, "select count(*), count(key), count(headers), sum(n) from flights").rows
    assert found == [(91, 89, 1, sum([0, 1, *range(4, 90)]))]


def test_values_are_typed_by_the_content_type_of_the_stream(lake: Lake) -> None:
    mixed = (
        b'{"n":1}',
        b"text",
        b"17",
        None,
        b"{text}",
        b' {"n":2} ',
        b"\xff{}",
        b'{"n":3}\n{"n":4}',
        b'{"n":"\xff"}',
    )
    for stream, encoding in (
        ("any", Encoding.KAFKA),
        ("bytes", Encoding.BYTES),
        ("json", Encoding.JSON),
    ):
        lake.source.append_kafka(stream, values(*mixed), encoding=encoding)
    lake.source.append_kafka(
        "topic", values(*mixed), content_type=partition_type("application/json")
    )
    found: dict[str, list[Any]] = {}
    for row in synced(lake):
        found.setdefault(row["stream"], []).append((row["value"], row["n"]))
    typed = [
        (value, number)
        for value, number in zip(
            mixed, [1, None, None, None, None, 2, None, None, None], strict=True
        )
    ]
    assert found["any"] == found["json"] == found["topic"] == typed
    assert found["bytes"] == [(value, None) for value in mixed]
    dead = sorted(
        (row["stream"], row["offset"], row["reason"]) for row in lake.iceberg("dlq").to_pylist()
    )
    reasons = {
        1: "not_json",
        2: "not_object",
        4: "not_json",
        6: "bad_text",
        7: "not_json",
        8: "bad_text",
    }
    assert dead == [
        (stream, number, reason)
        for stream in ("json", "topic")
        for number, reason in reasons.items()
    ]


def test_a_field_that_fits_no_column_is_a_dead_letter(lake: Lake) -> None:
    lake.source.append_kafka(
        "any", values(*[b'{"n":%d}' % n for n in range(500)], b'{"n":1,"n":2}')
    )
    assert len(synced(lake)) == 501
    (dead,) = lake.iceberg("dlq").to_pylist()
    assert (dead["offset"], dead["reason"], dead["field"]) == (500, "duplicate_field", "n")


def test_a_stream_of_http_and_kafka_batches_has_each_record_once(lake: Lake) -> None:
    lake.source.append("mixed", [b'{"n":0}', b'{"n":1}'])
    described = Record(b"k", b'{"n":2}', TIME, (("h", b"v"),))
    lake.source.append_kafka(
        "mixed",
        batch(described, Record(None, b'{"n":3}', TIME), packer="zstd"),
        encoding=Encoding.JSON,
    )
    lake.source.append("mixed", [b'{"n":4}'])
    rows = synced(lake)
    assert [row["key"] for row in rows] == [None, None, b"k", None, None]
    assert [bool(row["headers"]) for row in rows] == [False, False, True, False, False]
    times = [row["timestamp"].timestamp() * 1000 for row in rows]
    assert times[2:4] == [TIME, TIME] and rows[4]["timestamp"] == rows[4]["append_time"]
    assert [(row["offset"], row["n"]) for row in rows] == [(n, n) for n in range(5)]
    assert [row["value"] for row in rows] == [b'{"n":%d}' % n for n in range(5)]
    # The plan of a stream names one encoding, whichever its slices have.
    lake.source.append("bytes", [b"a"], encoding=Encoding.BYTES)
    lake.source.append_kafka("bytes", values(b"b"), encoding=Encoding.BYTES)
    assert [row["value"] for row in synced(lake) if row["stream"] == "bytes"] == [b"a", b"b"]


def test_of_a_partly_trimmed_batch_the_kept_records_alone(lake: Lake) -> None:
    lake.source.append_kafka(
        "s", values(b"0", b"1", b"2", packer="gzip"), values(b"3", b"4"), (2, b"damaged" * 20)
    )
    lake.source.pending[0] = msgspec.structs.replace(lake.source.pending[0], skip=1, take=3)
    rows = synced(lake)
    assert [(row["offset"], row["value"], row["batch"]) for row in rows] == [
        (1, b"1", 0),
        (2, b"2", 0),
        (3, b"3", 3),
    ]


def test_control_batches_have_no_rows(lake: Lake) -> None:
    control = batch(Record(b"\0\0\0\1", b"\0\0\0\0\0\0", TIME), attributes=0x30)
    lake.source.append_kafka("s", values(b"0"), control, values(b"2"))
    lake.source.append_kafka("only", control)
    assert [(row["stream"], row["offset"]) for row in synced(lake)] == [("s", 0), ("s", 2)]


def sparse(span: int, *deltas: int) -> tuple[int, bytes]:
    """A batch of a compacted topic: its records have these offset deltas, of so many offsets."""
    _, whole = values(*(b"%d" % delta for delta in range(span)))
    made, at = bytearray(whole[:HEADER_BYTES]), HEADER_BYTES
    for delta in range(span):
        end = at + 1 + (whole[at] >> 1)
        made += whole[at:end] if delta in deltas else b""
        at = end
    struct.pack_into(">i", made, 57, len(deltas))
    return span, packed(NONE, bytes(made[HEADER_BYTES:]), like=bytes(made))


def test_records_of_a_compacted_source_have_their_offsets(lake: Lake) -> None:
    lake.source.append_kafka("s", values(b"first"), sparse(6, 1, 4), sparse(3, 2), values(b"last"))
    rows = [(row["offset"], row["value"]) for row in synced(lake)]
    assert [offset for offset, _ in rows] == [0, 2, 5, 9, 10]


@pytest.mark.parametrize("time_ms", [-1, -5, 2**62, 253_402_300_800_000])
def test_a_time_that_is_none_is_the_appends(lake: Lake, time_ms: int) -> None:
    lake.source.append_kafka("s", batch(Record(None, b"v", time_ms)))
    (row,) = synced(lake)
    assert row["timestamp"] == row["append_time"]


def damaged() -> dict[str, tuple[int, bytes]]:
    _, good = values(b"a" * 500, b"b" * 500)
    body = good[HEADER_BYTES:]
    bomb = bytes(100 << 20)
    return {
        "count": (3, good),
        "short": (2, good[:50]),
        "length": (2, good + b"!"),
        "cut": (2, packed(NONE, body[:-20], like=good)),
        "delta": (2, packed(NONE, body[:4] + b"\x08" + body[5:], like=good)),
        "codec": (2, packed(6, body, like=good)),
        **{
            f"{name} damaged": (2, packed(codec, pack(body)[:-9], like=good))
            for name, (codec, pack) in PACKERS.items()
        },
        **{
            f"{name} garbage": (2, packed(codec, b"garbage" * 9, like=good))
            for name, (codec, _) in PACKERS.items()
        },
        **{
            f"{name} bomb": (
                2,
                packed(codec, pack(bomb if name != "xerial" else bomb[: 1 << 20]), like=good),
            )
            for name, (codec, pack) in PACKERS.items()
            if name not in ("none", "xerial", "snappy")
        },
        "snappy bomb": (2, packed(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 9, like=good)),
    }


def test_a_damaged_batch_is_a_fault_of_its_stream_alone(lake: Lake) -> None:
    bad = damaged()
    for name, each in bad.items():
        lake.source.append_kafka(name, values(b"fine"), each)
    lake.source.append_kafka("good", values(b"good"))
    with pytest.raises(worker.TablesFailed, match="record 1 of the slice"):
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    assert [row["stream"] for row in lake.iceberg().to_pylist()] == ["good"]
    assert len(lake.coordinator.failures) == len(bad)
    assert set(lake.coordinator.failures.values()) == {TRIES}


def test_bytes_become_at_most_so_many() -> None:
    room = KAFKA_UNCOMPRESSED_BYTES_LEAST
    for name, (codec, pack) in PACKERS.items():
        assert bytes(decompressed(codec, pack(bytes(room)))) == bytes(room)
        if name in ("none", "snappy", "xerial"):  # snappy's ratio is below the bound
            continue
        with pytest.raises(CorruptData, match=str(room)):
            decompressed(codec, pack(bytes(room + 1)))
    noise = random.Random(1).randbytes(3 << 20)
    for codec, pack in PACKERS.values():
        assert bytes(decompressed(codec, pack(noise))) == noise
    blocks = (
        b"\x82SNAPPY\0"
        + bytes(8)
        + (xerial(bytes(60_000), 60_000)[16:20] + xerial(bytes(60_000), 60_000)[20:]) * 2
    )
    assert bytes(decompressed(SNAPPY, blocks)) == bytes(120_000)


def test_blocks_of_snappy_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "KAFKA_UNCOMPRESSED_BYTES_MAX", 1000)
    with pytest.raises(CorruptData, match="more than 1000 bytes"):
        decompressed(SNAPPY, xerial(bytes(1001)))
    with pytest.raises(CorruptData, match="more than 1000"):
        decompressed(SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(1001))))
    with pytest.raises(CorruptData, match="ends at byte"):
        decompressed(SNAPPY, xerial(b"x")[:-1])


def test_a_large_slice_is_read_in_runs(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.lakehouse.reading.kafka.undivided.BLOCK_BYTES", 1000)
    monkeypatch.setattr("polynya.lakehouse.reading.slices.BLOCK_BYTES", 1000)
    lake.source.append_kafka(
        "s", *[values(b'{"n":%d}' % n, b"t" * 400, packer="lz4") for n in range(40)]
    )
    rows = synced(lake)
    assert [row["offset"] for row in rows] == list(range(80))
    assert [row["n"] for row in rows[::2]] == list(range(40))
