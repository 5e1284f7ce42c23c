"""Offsets of the Spark source without Spark: limits, the target of `availableNow`, and the bounded
size of what a checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from polynya.base.errors import ConfigError, PolynyaError
from polynya.client.errors import StreamNotFound
from polynya.spark.catalog import _names, create_view
from polynya.spark.cursors import INLINE_BYTES, PART_BYTES, Coded, Cursors, size_of
from polynya.spark.options import source_options
from polynya.spark.planning import DataLoss, batch_spans
from polynya.spark.positions import Offsets, behind, capped, latest
from polynya.spark.selection import Topic, _partitions
from polynya.spark.server import Tail
from polynya.spark.starts import AtTime


def test_a_limit_is_exact_and_no_stream_waits_for_ever() -> None:
    tails = {f"s{at:03}": Tail(at, 0, 1 + at % 3) for at in range(200)}
    left = sum(tail.next for tail in tails.values())
    start: Offsets = {}
    while left:
        end = latest(tails, start, 7)
        taken = sum(end[name][1] - start.get(name, [0, 0])[1] for name in end)
        assert taken == min(7, left)
        start, left = end, left - taken
    assert behind(tails, start) == dict.fromkeys(tails, 0)
    # a stream with one record beside one that grows as fast as it is read
    start, rounds = {"big": [1, 0], "one": [2, 0]}, 0
    while start["one"][1] == 0:
        rounds += 1
        grown = {"big": Tail(1, 0, start["big"][1] + 99), "one": Tail(2, 0, 1)}
        start = latest(grown, start, 10)
        assert rounds < 20


def test_a_limit_of_bytes_goes_by_the_mean_size_of_records() -> None:
    tails = {"small": Tail(1, 0, 100, size=1000), "large": Tail(2, 0, 100, size=99_000)}
    end = latest(tails, {}, 0, 10_000)
    assert end == {"small": [1, 10], "large": [2, 10]}
    assert latest(tails, {}, 4, 10_000) == {"small": [1, 2], "large": [2, 2]}
    assert latest(tails, {}, 0, 1_000_000)["large"] == [2, 100]
    assert sum(at for _, at in latest(tails, {}, 0, 1).values()) == 1  # progress


def test_the_target_of_available_now_is_what_was_there() -> None:
    target = {"a": Tail(1, 0, 10), "b": Tail(2, 0, 5)}
    now = {"a": Tail(1, 3, 99), "b": Tail(7, 0, 8), "c": Tail(3, 0, 4)}
    assert {name: tail.next for name, tail in capped(now, target).items()} == {"a": 10, "b": 8}
    later = {"b": Tail(7, 0, 12)}  # its new incarnation has a target, too
    assert capped(later, target)["b"].next == 8


class Memory:
    """Bases in memory, with what a node's streams would hold."""

    def __init__(self) -> None:
        self.streams: dict[str, list[bytes]] = {}

    def append(self, name: str, parts: Sequence[bytes]) -> int:
        kept = self.streams.setdefault(name, [])
        kept += parts
        return len(kept) - len(parts)

    def read(self, name: str, first: int) -> Iterator[bytes]:
        if name not in self.streams:
            raise StreamNotFound("gone")
        yield from self.streams[name][first:]

    def delete(self, name: str) -> None:
        self.streams.pop(name, None)


def again(coded: Coded) -> Coded:
    """Return the offset as it comes back from Spark's checkpoint."""
    return json.loads(json.dumps(coded))


def test_a_checkpoint_of_many_streams_stays_small() -> None:
    bases = Memory()
    cursors = Cursors(bases, "cursors")
    offsets: Offsets = {f"devices/{at:06}/readings": [at << 48, at] for at in range(100_000)}
    sizes = []
    for batch in range(2):
        for at in range(0, 30_000, 100):
            offsets[f"devices/{at + batch:06}/readings"][1] += 1
        coded = cursors.encode({name: [*offset] for name, offset in offsets.items()})
        sizes.append(size_of(coded))
        assert Cursors(bases, "cursors").decode(again(coded)) == offsets  # after a restart
    assert max(sizes) <= INLINE_BYTES
    (kept,) = bases.streams.values()
    assert len(kept) == 2 and all(len(part) < 2 * PART_BYTES for part in kept)


def test_offsets_are_the_same_after_changes_deletions_and_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polynya.spark.cursors.INLINE_BYTES", 300)
    monkeypatch.setattr("polynya.spark.cursors.PART_BYTES", 50)
    bases = Memory()
    cursors = Cursors(bases, "cursors")
    offsets: Offsets = {f"s/{at}": [at, 0] for at in range(60)}
    seen = []
    for batch in range(30):
        offsets = {name: [uid, at + 1] for name, (uid, at) in offsets.items() if uid != batch + 3}
        offsets[f"new/{batch}"] = [1000 + batch, 0]
        coded = again(cursors.encode(offsets))
        seen.append((coded, offsets))
        assert size_of(coded) <= 300
        if batch % 4 == 0:
            cursors = Cursors(bases, "cursors")
            assert cursors.decode(coded) == offsets
    assert len(bases.streams) == 1  # a restart goes on with the cursor of its checkpoint
    for coded, wanted in seen:  # each of them still means what it meant
        assert Cursors(bases, "cursors").decode(coded) == wanted


def test_a_cursor_that_replaces_another_one_deletes_it_after_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polynya.spark.cursors.INLINE_BYTES", 100)
    bases = Memory()
    offsets: Offsets = {f"s/{at}": [at, 0] for at in range(60)}
    before = again(Cursors(bases, "cursors").encode(offsets))
    blind = Cursors(bases, "cursors")  # as PySpark 4.1 begins `availableNow`
    offsets["s/7"] = [7, 9]
    after = again(blind.encode(offsets))
    assert len(bases.streams) == 2 and blind.decode(before)["s/7"] == [7, 0]
    blind.forget_replaced(before)
    assert len(bases.streams) == 2
    blind.forget_replaced(after)
    assert [*bases.streams] == [after[""][0]]
    with pytest.raises(PolynyaError, match=r"refers to record 0 of stream 'cursors/.*missing"):
        Cursors(bases, "cursors").decode(before)
    after[""][2] = "0" * 32
    with pytest.raises(PolynyaError, match="has other offsets"):
        Cursors(bases, "cursors").decode(after)


def test_kafkas_options_have_their_meaning() -> None:
    found = source_options({"subscribe": "orders, bills", "maxOffsetsPerTrigger": "5"})
    assert found.topics is not None and found.topics.names == ["orders", "bills"]
    assert found.records_max == 5 and found.limited
    found = source_options(
        {
            "assign": '{"orders": [0, 2]}',
            "startingOffsets": '{"orders": {"0": 23, "2": -1}, "retention": {"0": -2}}',
        }
    )
    assert found.starting == {"kafka/orders/0": 23, "kafka/orders/2": -1, "kafka/~retention/0": -2}
    tails = {"kafka/orders/0": Tail(1, 0, 30), "kafka/orders/2": Tail(2, 0, 9)}
    assert [span.first for span in batch_spans(tails, found)] == [23]
    found = source_options(
        {"subscribePattern": "or.*", "startingTimestamp": "2026-11-01T00:00:00Z"}
    )
    assert found.starting == AtTime(1_793_491_200_000)
    found = source_options(
        {
            "stream": "a",
            "startingOffsetsByTimestamp": '{"a": 7}',
            "endingTimestamp": "9",
            "startingOffsetsByTimestampStrategy": "error",
        }
    )
    assert found.starting == AtTime(None, {"a": 7}, strict=True)
    assert found.ending == AtTime(9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a", "kafka.bootstrap.servers": "h:9092"}, "set 'server' to the HTTP"),
        ({"subscribe": "a", "kafka.security.protocol": "SSL"}, "speaks HTTP"),
        ({"subscribe": "a", "includeHeaders": "true"}, "column 'headers' is always there"),
        ({"subscribe": "a", "stream": "b"}, "got stream and subscribe"),
        ({"subscribePattern": "("}, "expected a regular expression"),
        ({"assign": "orders"}, "expected JSON such as"),
        ({"stream": "a", "startingTimestamp": "soon"}, "expected milliseconds since 1970"),
        ({"stream": "a", "startingTimestamp": "2026-11-01"}, "with its zone"),
        ({"stream": "a", "startingTimestamp": "1", "startingOffsets": "latest"}, "exclude each"),
        ({"stream": "a", "startingOffsets": '{"a": -3}'}, r"-2 \(earliest\) or -1"),
        ({"stream": "a", "startingOffsets": '{"a": {"x": 3}}'}, "partition 'x'"),
        ({"stream": "a", "startingOffsetsByTimestampStrategy": "x"}, "'latest' or 'error'"),
        (
            {"stream": "a", "maxOffsetsPerTrigger": "1", "maxRecordsPerTrigger": "1"},
            "mean the same",
        ),
    ],
)
def test_wrong_options_say_what_to_do(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source_options(options)


class Session:
    """A Spark session that keeps its statements."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.conf: dict[str, str] = {}

    def sql(self, statement: str) -> None:
        self.said.append(statement)


def test_views_name_their_streams_and_no_secrets() -> None:
    spark: Any = Session()
    create_view(spark, "shop.orders", {"server": "http://h", "stream": "it's/a\\b"})
    assert spark.said[2:] == [
        "create database if not exists shop",
        "create or replace view shop.orders as select * from polynya.records with "
        "('server'='http://h', 'stream'='it\\'s/a\\\\b')",
    ]
    spark.conf["spark.sql.catalog.spark_catalog"] = "org.other.Catalog"
    with pytest.raises(ConfigError, match="Spark reads no table of a Python source"):
        create_view(spark, "a", {"stream": "s"})
    assert _names(["a", "shop/Orders-1", "shop/x/y"]) == {
        "default.a": "a",
        "shop.orders_1": "shop/Orders-1",
        "shop.x_y": "shop/x/y",
    }
    with pytest.raises(ConfigError, match=r"'s/a-b' and 's/a_b' would both be s\.a_b"):
        _names(["s/a-b", "s/a_b"])
    for name, options, words in (
        ("a b", {"stream": "s"}, "expected NAME or DATABASE.NAME"),
        ("a", {"stream": "s", "Token": "t"}, "leave the option 'token' out"),
        ("a", {"stream": "s", "columns": "offset"}, "leave the option 'columns' out"),
        ("a", {}, "got no options"),
    ):
        with pytest.raises(ConfigError, match=words):
            create_view(spark, name, options)


def test_topics_have_their_partitions_and_adopted_streams() -> None:
    known = [Topic("orders", 3, ["shop/orders"]), Topic("bills", 1)]
    wanted = source_options({"assign": '{"orders": [0, 2]}'}).topics
    assert wanted is not None
    assert _partitions(known, wanted, strict=True) == {
        "orders": {"kafka/orders/0": "shop/orders", "kafka/orders/2": "kafka/orders/2"}
    }
    for options, words in (
        ({"assign": '{"orders": [0, 3]}'}, "'kafka/orders/3', but topic 'orders' has 3"),
        ({"subscribe": "orders,gone"}, "there is no topic 'gone'"),
    ):
        wanted = source_options(options).topics
        assert wanted is not None
        with pytest.raises(DataLoss, match=words):
            _partitions(known, wanted, strict=True)
        assert _partitions(known, wanted, strict=False)
