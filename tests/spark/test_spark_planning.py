"""Planning of the Spark source without Spark: the records of a read, and the treatment of deleted
ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan

from polynya.base.errors import ConfigError, PolynyaError
from polynya.spark.filters import narrow
from polynya.spark.options import StoreKeys, sink_options, source_options
from polynya.spark.planning import DataLoss, Span, batch_spans, located, splits
from polynya.spark.positions import initial, latest, spans_between
from polynya.spark.server import StreamRanges, Tail, TimedRange
from polynya.wire.tables import StoreRef

STORE = StoreRef("local", "/objects")


def part(record: int, records: int = 10, time_ms: int = 0) -> TimedRange:
    return TimedRange("s", 7, 1, "application/json", 1, record, record * 9, records, 90, f"p{record}", 0, 100, 5, time_ms=time_ms)  # fmt: skip


class Index:
    """The server's answers, one list of ranges after the other."""

    def __init__(
        self,
        *answers: list[TimedRange],
        first: int = 0,
        own: int = 0,
        uid: int = 7,
        ends: tuple[int, ...] = (),
    ) -> None:
        self.ends = list(ends)
        self.answers = list(answers)
        self.first, self.own, self.uid = first, own, uid
        self.asked: list[tuple[str, int, int]] = []

    def ranges(
        self, wanted: Sequence[tuple[str, int, int]]
    ) -> tuple[StoreRef, list[StreamRanges | None]]:
        self.asked += wanted
        end = self.ends.pop(0) if self.ends else 0
        own = StreamRanges("s", str(self.uid), self.first, 99, self.own, self.answers.pop(0), end)
        return STORE, [own]


def cut(found: list[TimedRange]) -> list[tuple[int, int, int]]:
    return [(each.record, each.skip, each.take) for each in found]


def test_ranges_are_cut_to_the_records_and_asked_for_until_all_are_there() -> None:
    index = Index([part(0), part(10)], [part(20), part(30)])
    found = located(index, [Span("s", 7, 4, 33)], strict=True)[1]
    assert cut(found) == [(0, 4, 6), (10, 0, 10), (20, 0, 10), (30, 0, 3)]
    assert index.asked == [("s", 4, 33), ("s", 20, 33)]


def test_missing_numbers_behind_a_slice_are_passed() -> None:
    index = Index([part(0)], [part(20)], ends=(20, 45))
    found = located(index, [Span("s", 7, 4, 40)], strict=True)[1]
    assert cut(found) == [(0, 4, 6), (20, 0, 10)]
    assert index.asked == [("s", 4, 40), ("s", 20, 40)]
    assert located(Index([], ends=(5,)), [Span("s", 7, 0, 5)], strict=True)[1] == []


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (Index([part(10)], first=10), "records 4 to 9 of stream 's' were trimmed"),
        (Index([part(0)], uid=8), "stream 's' was deleted"),
    ],
)
def test_lost_records_end_the_read_unless_it_may_go_on(index: Index, words: str) -> None:
    again = Index(*index.answers, first=index.first, uid=index.uid)
    with pytest.raises(DataLoss, match=f"{words}.*failOnDataLoss"):
        located(index, [Span("s", 7, 4, 20)], strict=True)
    found = located(again, [Span("s", 7, 4, 20)], strict=False)[1]
    new = Index([part(10)], first=10)  # a stream that the query sees now, after its first trim
    assert cut(located(new, [Span("s", 7, 0, 20, known=False)], strict=True)[1]) == [(10, 0, 10)]
    assert cut(found) == ([(10, 0, 10)] if again.first else [])


def test_a_forks_inherited_records_are_no_loss() -> None:
    index = Index([part(10)], first=10, own=10)
    assert cut(located(index, [Span("s", 7, 0, 20)], strict=True)[1]) == [(10, 0, 10)]
    assert located(Index([], first=10, own=10), [Span("s", 7, 0, 10)], strict=True)[1] == []


def test_records_outside_of_a_store_are_named() -> None:
    with pytest.raises(PolynyaError, match="readFrom"):
        located(Index([]), [Span("s", 7, 0, 5)], strict=True)


def test_tasks_have_about_the_wanted_size_and_no_packs_of_other_times() -> None:
    options = source_options({"stream": "s", "partitionBytes": "250"})
    ranges = [part(10 * at, time_ms=100 * at) for at in range(5)]
    found = splits(Index(ranges), [Span("s", 7, 0, 50)], options)
    assert [len(split.ranges) for split in found] == [2, 2, 1]
    found = splits(Index(ranges), [Span("s", 7, 0, 50)], options, (150, 250))
    assert [each.record for split in found for each in split.ranges] == [10, 20]


def test_filters_narrow_streams_offsets_and_times() -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    found = narrow(
        [
            In(("stream",), ("a", "b")),
            EqualTo(("stream",), "a"),
            GreaterThan(("offset",), 4),
            LessThan(("offset",), 8),
            GreaterThanOrEqual(("append_time",), since),
            EqualTo(("value",), b"x"),
            LessThan(("append_time",), datetime(2026, 1, 1)),  # noqa: DTZ001 (no time zone)
        ]
    )
    assert found.takes("a") and not found.takes("b")
    assert found.spans([Span("a", 1, 0, 6), Span("a", 1, 9, 12)]) == [Span("a", 1, 5, 6)]
    assert (found.from_ms, found.to_ms) == (since.timestamp() * 1000, 1 << 62)


def test_offsets_of_a_batch_read() -> None:
    tails = {"a": Tail(1, 3, 10), "b": Tail(2, 0, 4)}
    wanted = {"prefix": "", "startingOffsets": '{"a": 5}', "endingOffsets": '{"a": 8}'}
    assert batch_spans(tails, source_options(wanted)) == [Span("a", 1, 5, 8), Span("b", 2, 0, 4)]
    early = {"prefix": "", "startingOffsets": '{"a": 1}'}
    with pytest.raises(DataLoss, match="records 1 to 2 of stream 'a'"):
        batch_spans(tails, source_options(early))
    with pytest.raises(PolynyaError, match="no stream 'c'"):
        batch_spans(tails, source_options({"stream": "a,c"}))


def test_a_micro_batch_takes_a_share_of_each_stream() -> None:
    tails = {"a": Tail(1, 0, 90), "b": Tail(2, 0, 10), "c": Tail(3, 5, 5)}
    begin = initial({"a": Tail(1, 0, 0)}, "latest")
    end = latest(tails, begin, 20)
    assert end == {"a": [1, 18], "b": [2, 2], "c": [3, 5]}
    assert latest(tails, begin, 0) == {"a": [1, 90], "b": [2, 10], "c": [3, 5]}
    assert spans_between(begin, end, strict=True) == [
        Span("a", 1, 0, 18),
        Span("b", 2, 0, 2, known=False),
        Span("c", 3, 0, 5, known=False),
    ]
    for _ in range(20):  # every batch makes progress, up to the tails
        begin, end = end, latest(tails, end, 20)
    assert end == {"a": [1, 90], "b": [2, 10], "c": [3, 5]}


def test_deleted_streams_end_a_query_unless_it_may_go_on() -> None:
    begin, again = {"a": [1, 5]}, {"a": [2, 3]}
    for end in (again, {}):
        with pytest.raises(DataLoss, match="'a' was deleted"):
            spans_between(begin, end, strict=True)
    assert spans_between(begin, again, strict=False) == [Span("a", 2, 0, 3)]
    assert spans_between(begin, {}, strict=False) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "got no options.*'stream'"),
        ({"stream": "a", "prefix": ""}, "'prefix'"),
        ({"stream": "a", "readFrom": "disk"}, "'store' or 'server'"),
        ({"stream": "a", "startingOffsets": "soon"}, "expected 'earliest'"),
        ({"stream": "a", "maxRecordsPerTrigger": "-1"}, "whole number"),
        ({"stream": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"stream": "a", "s3AccessKeyId": "k"}, "set both the S3 access key id"),
        ({"stream": "a", "startingOffset": "latest"}, "no option 'startingoffset' here; .*Offsets"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source_options(options)


def test_a_sink_takes_sparks_own_options() -> None:
    given = {"stream": "s", "checkpointLocation": "/c", "queryName": "prices"}
    assert sink_options(given).stream == "s"
    with pytest.raises(ConfigError, match="no option 'readfrom'"):
        sink_options({"readFrom": "store"})


def test_a_tasks_keys_are_the_options_else_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.delenv(f"POLYNYA_COLD_S3_{name}", raising=False)
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    assert source_options({"stream": "a"}).keys.variables == {}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "aws")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "short")
    assert source_options({"stream": "a"}).keys == StoreKeys("aws", "hidden", "short")
    monkeypatch.setenv("POLYNYA_COLD_S3_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("POLYNYA_COLD_S3_SECRET_ACCESS_KEY", "hidden")
    found = source_options({"stream": "a"}).keys
    assert found == StoreKeys("own", "hidden") and "hidden" not in repr(found)
    given = {"s3AccessKeyId": "given", "s3SecretAccessKey": "x", "s3SessionToken": "y"}
    assert source_options({"stream": "a", **given}).keys.variables == {
        "POLYNYA_COLD_S3_ACCESS_KEY_ID": "given",
        "POLYNYA_COLD_S3_SECRET_ACCESS_KEY": "x",
        "POLYNYA_COLD_S3_SESSION_TOKEN": "y",
    }
