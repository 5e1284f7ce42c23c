"""The planner of a streaming query against a real node, called as PySpark 4.1 and 4.2 call it: limits,
`availableNow`, restarts, topics, times, and offsets that are too large for a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from worlds.pipeline import PipeWorld

from polynya.base.errors import PolynyaError
from polynya.spark import readers
from polynya.spark.options import source_options
from polynya.spark.planning import DataLoss
from polynya.spark.readers import BatchReader, StreamReader

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
COLUMNS = ("stream", "offset", "value")
WHOLE = {"content-type": "application/vnd.polynya.records+json"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipeWorld]:
    world = PipeWorld(tmp_path_factory.mktemp("reader") / "data")
    try:
        world.start("--cores", "1")
        yield world
    finally:
        world.close()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "POLL_SECONDS", 0.0)


class Query:
    """A query with its checkpoint, on PySpark 4.2: `run` is one start of it."""

    def __init__(self, node: PipeWorld, **options: str) -> None:
        self.options = {"server": node.node.url, **options}
        self.offset: dict[str, Any] | None = None
        self.batches: list[list[tuple[Any, ...]]] = []
        self.reader = self.start()

    def start(self) -> StreamReader:
        return StreamReader(source_options(self.options), COLUMNS)

    def run(self, *, available_now: bool = True, batches_max: int = 50) -> list[int]:
        """Run batches until there is nothing left, and return the sizes of them."""
        reader = self.reader = self.start()
        if available_now:
            reader.prepareForTriggerAvailableNow()
        begin = len(self.batches)
        for _ in range(batches_max):
            first = self.offset is None
            if self.offset is None:
                self.offset = again(reader.initialOffset())
            end = again(reader.latestOffset(self.offset, None))
            if end == self.offset and not first:
                break
            self.batches.append(rows(reader, self.offset, end))
            reader.commit(end)
            self.offset = end
        reader.stop()
        return [len(batch) for batch in self.batches[begin:]]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for batch in self.batches for row in batch)


def again(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as it comes back from Spark."""
    return json.loads(json.dumps(offset))


def rows(reader: Any, *offsets: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for part in reader.partitions(*offsets)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def numbered(node: PipeWorld, stream: str, *numbers: int) -> None:
    node.append(stream, *({"n": number} for number in numbers))


def test_limits_hold_at_every_start_and_available_now_ends_at_its_target(node: PipeWorld) -> None:
    numbered(node, "limit/a", *range(7))
    numbered(node, "limit/b", *range(4))
    query = Query(node, prefix="limit/", maxOffsetsPerTrigger="4")
    assert query.run() == [4, 4, 3]
    numbered(node, "limit/a", *range(7, 12))
    assert query.run(batches_max=1) == [4]  # killed after it
    numbered(node, "limit/c", 0)
    assert query.run() == [2]
    assert query.run() == []
    names = [(stream, offset) for stream, offset, _ in query.rows]
    assert names == sorted(
        [("limit/a", n) for n in range(12)] + [("limit/b", n) for n in range(4)] + [("limit/c", 0)]
    )
    reader = query.start()
    reader.prepareForTriggerAvailableNow()
    numbered(node, "limit/a", 12)  # later than the start of a run that has to end
    assert query.offset is not None
    assert again(reader.latestOffset(query.offset, None)) == query.offset
    latest = reader.reportLatestOffset()
    assert latest is not None and latest["limit/b"] == query.offset["limit/b"]


def test_a_stopped_query_meets_trimmed_records(node: PipeWorld) -> None:
    numbered(node, "trim/a", *range(12))
    query = Query(node, stream="trim/a", maxRecordsPerTrigger="3")
    assert query.run(batches_max=1) == [3]
    head = node.http.get(f"{node.node.url}/v1/stream/trim/a?record=7&max_records=1")
    trimmed = node.http.post(
        f"{node.node.url}/v1/stream/trim/a/retention",
        json={"before": head.headers["stream-next-offset"]},
    )
    assert trimmed.status_code == 200, trimmed.text
    with pytest.raises(DataLoss, match=r"records 3 to \d+ of stream 'trim/a' were trimmed"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    sizes = query.run()
    left = [offset for _, offset, _ in query.rows]
    assert max(sizes) <= 3 and left[:3] == [0, 1, 2]
    assert left[3:] == [*range(15 - len(left), 12)] and 0 < len(left[3:]) <= 9


def test_pyspark_4_1_tells_the_begin_after_a_restart(node: PipeWorld) -> None:
    numbered(node, "old/a", *range(6))
    options = {"server": node.node.url, "stream": "old/a", "maxRecordsPerTrigger": "2"}
    first = StreamReader(source_options(options), COLUMNS)
    end = again(first.latestOffset())  # of a new query, before all else
    begin = again(first.initialOffset())
    assert len(rows(first, begin, end)) == 2
    assert first.latestOffset()["old/a"][1] == 4
    restarted = StreamReader(source_options(options), COLUMNS)
    assert restarted.partitions(end, end) == []  # `setLatestSeenOffset`
    assert restarted.latestOffset()["old/a"][1] == 4
    late = StreamReader(source_options(options), COLUMNS)
    late.latestOffset()
    with pytest.raises(PolynyaError, match="before it told the position"):
        late.partitions(end, end)
    node.http.put(
        f"{node.node.url}/v1/stream/old/none", headers={"content-type": "application/json"}
    )
    empty = StreamReader(source_options({**options, "stream": "old/none"}), COLUMNS)
    end = again(empty.latestOffset())
    assert empty.partitions(again(empty.initialOffset()), end) == []


def test_offsets_of_many_streams_lie_in_a_stream_of_the_node(
    node: PipeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.spark.cursors.INLINE_BYTES", 400)
    for at in range(30):
        numbered(node, f"many/{at:02}", at)
    query = Query(node, prefix="many/", maxRecordsPerTrigger="9")
    assert sum(query.run(batches_max=2)) == 18
    assert query.offset is not None and len(json.dumps(query.offset)) < 600
    cursor = query.offset[""][0]
    assert cursor.startswith("spark-cursors/") and "many/07" not in query.offset
    assert sum(query.run()) == 12 and query.offset[""][0] == cursor
    node.http.delete(f"{node.node.url}/v1/stream/many/07")
    with pytest.raises(DataLoss, match="'many/07' was deleted"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    numbered(node, "many/08", 100)
    assert query.run() == [1]
    assert len({(stream, offset) for stream, offset, _ in query.rows}) == 31


def test_a_read_of_all_streams_leaves_out_the_products_own(
    node: PipeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.spark.cursors.INLINE_BYTES", 10)
    numbered(node, "all/a", 1)
    numbered(node, "spark-staging/query/0", 1)
    query = Query(node, prefix="")
    query.run()
    assert query.run() == []
    own = ("spark-cursors/", "spark-staging/")
    assert not [row for row in query.rows if row[0].startswith(own)]
    named = Query(node, prefix="spark-staging/query/")
    named.run()
    assert [row[0] for row in named.rows] == ["spark-staging/query/0"]


def test_reads_begin_and_end_at_the_records_own_times(node: PipeWorld) -> None:
    for stream, times in (("time/a", (10, 20, 30)), ("time/b", (5, 40)), ("time/c", ())):
        node.http.put(
            f"{node.node.url}/v1/stream/{stream}", headers={"content-type": "application/json"}
        )
        body = [{"value": {"n": n}, "timestamp": 1000 * n} for n in times]
        if body:
            node.http.post(f"{node.node.url}/v1/stream/{stream}", json=body, headers=WHOLE)

    def read(**options: str) -> list[tuple[str, int]]:
        wanted = source_options({"server": node.node.url, "prefix": "time/", **options})
        reader = BatchReader(wanted, COLUMNS)
        return sorted((stream, offset) for stream, offset, _ in rows(reader))

    assert read(startingTimestamp="20000") == [("time/a", 1), ("time/a", 2), ("time/b", 1)]
    assert read(startingTimestamp="1970-01-01T00:00:20.001Z") == [("time/a", 2), ("time/b", 1)]
    assert read(startingTimestamp="6000", endingTimestamp="30000") == [("time/a", 0), ("time/a", 1)]
    own = '{"time/a": 30000}'
    assert read(startingOffsetsByTimestamp=own) == [("time/a", 2), ("time/b", 0), ("time/b", 1)]
    with pytest.raises(Exception, match="stream 'time/a' has no record of 31000 ms"):
        read(startingTimestamp="31000", startingOffsetsByTimestampStrategy="error")
    query = Query(node, prefix="time/", startingTimestamp="30000")
    assert query.run() == [2]


def test_topics_are_read_by_their_names(node: PipeWorld) -> None:
    numbered(node, "shop/sales", 0, 1)
    for name, body in (
        ("orders", {"partitions": 2}),
        ("sales", {"streams": ["shop/sales"]}),
    ):
        assert node.http.put(f"{node.node.url}/v1/topics/{name}", json=body).status_code == 201
    for partition, value in ((0, "x"), (1, "y"), (1, "z")):
        record = {"key": "k", "value": value}
        answer = node.http.post(
            f"{node.node.url}/v1/topics/orders/records",
            json={"records": [record], "partition": partition},
        )
        assert answer.status_code == 200, answer.text
    query = Query(node, subscribe="orders,sales", startingOffsets='{"sales": {"0": 1}}')
    query.run()
    assert query.rows == [
        ("kafka/orders/0", 0, b"x"),
        ("kafka/orders/1", 0, b"y"),
        ("kafka/orders/1", 1, b"z"),
        ("shop/sales", 1, b'{"n": 1}'),
    ]
    assert len(Query(node, subscribePattern="ord.*").run()) == 1
    part = Query(node, assign='{"orders": [1]}')
    assert part.run() == [2]
    with pytest.raises(DataLoss, match="no topic 'gone'"):
        Query(node, subscribe="gone").run()
