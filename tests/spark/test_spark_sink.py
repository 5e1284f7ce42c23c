"""The sink against a real node without Spark: staged data, the effect of a repeat, and the
leftovers of a crashed driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from long_tests import long
from worlds.pipeline import PipeWorld

from polynya.base.errors import ConfigError, PolynyaError
from polynya.spark.options import Connection, SinkOptions
from polynya.spark.server import Server
from polynya.spark.sink import commit
from polynya.spark.sink.commit import BatchCommit, chunks, folder_of
from polynya.spark.sink.staging import Staged, rows_of, stage
from polynya.wire.kafka.partitioner import partition_of_key

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipeWorld]:
    world = PipeWorld(tmp_path_factory.mktemp("sink") / "data")
    try:
        world.start("--cores", "1")
        yield world
    finally:
        world.close()


class Query:
    """One query that writes to the stream of its own name."""

    def __init__(self, node: PipeWorld, name: str) -> None:
        self.node, self.name = node, name
        self.options = SinkOptions(Connection(node.node.url), name, "stages", "")

    def stage(self, partition: int, *numbers: int) -> Staged:
        table = pa.table({"value": [b"%d" % number for number in numbers]})
        folder = folder_of(self.options, self.name)
        return stage(self.options, folder, partition, table.to_batches())

    def commit(self, batch: int, *staged: Staged) -> None:
        BatchCommit(self.options, self.name, batch).run(staged)

    def values(self) -> list[Any]:
        return self._json(f"stream/{self.name}?offset=-1")

    def stages(self) -> list[str]:
        listed = self._json(f"streams?prefix=stages/{self.name}/stage")["streams"]
        return [each["name"] for each in listed]

    def _json(self, path: str) -> Any:
        answer = self.node.http.get(f"{self.node.node.url}/v1/{path}")
        return answer.json() if answer.status_code == 200 else []


@pytest.mark.process
def test_rows_are_appended_in_order_of_partition_and_once(node: PipeWorld) -> None:
    query = Query(node, "ordered")
    second, first = query.stage(1, 3, 4), query.stage(0, 1, 2)
    assert query.values() == []
    query.commit(0, second, first)
    assert query.values() == [1, 2, 3, 4]
    query.commit(0, query.stage(0, 2, 1), query.stage(1, 4, 3))  # a repeat with another order
    assert query.values() == [1, 2, 3, 4] and query.stages() == []
    query.commit(1, query.stage(0))  # a batch without rows
    query.commit(2, query.stage(0, 5))
    query.commit(1, query.stage(0, 9))  # a driver that was thought dead
    assert query.values() == [1, 2, 3, 4, 5]


@pytest.mark.process
@pytest.mark.parametrize("appended", [2, *long([0, 1, 3, 4])])
def test_a_driver_that_dies_in_a_batch_leaves_it_to_the_next(
    node: PipeWorld, appended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt dies at each of its appends; the second has staged the rows in another
    order and in other partitions."""
    monkeypatch.setattr(commit, "APPEND_RECORDS", 2)
    query = Query(node, f"died{appended}")
    query.commit(0, query.stage(0, 0))
    whole = Server.run
    left = [appended]

    def dying(self: Server, operation: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return whole(self, operation)

    with monkeypatch.context() as patched:
        patched.setattr(Server, "run", dying)
        with pytest.raises(KeyboardInterrupt):
            query.commit(1, query.stage(0, 1, 2, 3), query.stage(1, 4, 5))
    query.commit(1, query.stage(0, 5, 4), query.stage(1, 3, 2, 1))
    query.commit(2, query.stage(0, 6))
    values = query.values()
    assert sorted(values) == list(range(7)), values
    assert values[1:6] == ([5, 4, 3, 2, 1] if appended == 0 else [1, 2, 3, 4, 5])


@pytest.mark.process
def test_lost_stages_end_the_query_instead_of_losing_rows(node: PipeWorld) -> None:
    query = Query(node, "lost")
    staged = query.stage(0, 1, 2)
    missing = Staged(0, staged.stream, 3)
    with pytest.raises(PolynyaError, match="2 of 3 rows"):
        query.commit(0, missing)


def rows(table: dict[str, Sequence[Any]], stream: str = "") -> list[tuple[str, bytes]]:
    return [row for batch in pa.table(table).to_batches() for row in rows_of(batch, stream)]


def test_rows_become_records() -> None:
    assert rows({"value": ["1", "[2]"]}, "s") == [("s", b"1"), ("s", b"[2]")]
    assert rows({"stream": ["a"], "value": [b"{}"]}) == [("a", b"{}")]
    ((name, record),) = rows({"stream": ["a"], "n": [1], "deep": [{"x": [None]}]})
    assert (name, json.loads(record)) == ("a", {"n": 1, "deep": {"x": [None]}})
    with pytest.raises(PolynyaError, match="value is null"):
        rows({"value": [None]}, "s")
    with pytest.raises(PolynyaError, match="stream is null"):
        rows({"stream": [None], "value": ["1"]})
    with pytest.raises(ConfigError, match="column 'stream'"):
        rows({"value": ["1"]})


def test_appends_are_cut_by_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "APPEND_RECORDS", 3)
    monkeypatch.setattr(commit, "APPEND_BYTES", 10)
    given = [("a", b"xxxx"), ("b", b"y"), ("a", b"xxxx"), ("a", b"xxxx"), ("a", b"x" * 20), ("b", b"y"), ("b", b"y"), ("b", b"z")]  # fmt: skip
    assert list(chunks(given)) == [
        ("a", [b"xxxx", b"xxxx"]),
        ("a", [b"xxxx"]),
        ("b", [b"y", b"y", b"y"]),
        ("a", [b"x" * 20]),
        ("b", [b"z"]),
    ]


@pytest.mark.process
def test_keys_headers_and_times_are_written(node: PipeWorld) -> None:
    query = Query(node, "whole")
    table = pa.table(
        {
            "value": ['{"n":1}', "2", None],
            "key": pa.array([b"a", b"\xff", b"gone"], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"v"}], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "timestamp": pa.array([1_700_000_000_123_000, None, None], pa.timestamp("us", "UTC")),
            "offset": [7, 8, 9],
        }
    )
    folder = folder_of(query.options, query.name)
    staged = stage(query.options, folder, 0, table.to_batches())
    query.commit(0, staged)
    query.commit(0, staged)
    answer = node.http.get(
        f"{node.node.url}/v1/stream/whole?offset=-1",
        headers={"accept": "application/vnd.polynya.records+json"},
    )
    rows = answer.json()
    assert [row["key"] for row in rows] == ["a", {"$base64": "/w=="}, "gone"]
    assert [row["value"] for row in rows] == [{"n": 1}, 2, None]
    assert [row["headers"] for row in rows] == [[["h", "v"]], [], []]
    assert rows[0]["timestamp"] == 1_700_000_000_123


def test_objects_of_rows_are_exact_or_refused() -> None:
    table = pa.table(
        {
            "m": pa.array([[("a", 1.5)], [], None], pa.map_(pa.string(), pa.float64())),
            "d": pa.array([Decimal("2.50"), None, Decimal(1)], pa.decimal128(5, 2)),
        }
    )
    assert [json.loads(row) for _, row in rows_of(table.to_batches()[0], "s")] == [
        {"m": {"a": 1.5}, "d": 2.5},
        {"m": {}, "d": None},
        {"m": None, "d": 1},
    ]
    hidden = pa.table({"s": pa.array([{"x": [1.0, float("nan")]}])}).to_batches()[0]
    with pytest.raises(PolynyaError, match=r"'s\.x\[\]' has the value nan"):
        list(rows_of(hidden, "s"))
    extra = pa.table({"value": ["1"], "colour": ["red"], "key": ["k"]}).to_batches()[0]
    with pytest.raises(ConfigError, match="no room for colour"):
        list(rows_of(extra, "s"))


@pytest.mark.process
def test_rows_go_to_the_partitions_of_a_topic_once(node: PipeWorld) -> None:
    url = node.node.url
    for at in range(3):
        node.http.put(
            f"{url}/v1/stream/numbered/{at}", headers={"content-type": "application/json"}
        )
    body = {"streams": [f"numbered/{at}" for at in range(3)]}
    assert node.http.put(f"{url}/v1/topics/numbered", json=body).status_code == 201
    assert node.http.put(f"{url}/v1/topics/pure", json={"partitions": 2}).status_code == 201
    query = Query(node, "numbered")
    options = SinkOptions(Connection(url), "", "stages", "", "numbered")
    table = pa.table(
        {
            "value": ["0", "1", "2", "3"],
            "key": ["a", "b", "a", "c"],
            "partition": pa.array([None, 2, None, 0], pa.int32()),
        }
    )
    staged = stage(options, folder_of(options, "numbered"), 0, table.to_batches())
    for _ in range(2):
        BatchCommit(options, "numbered", 0).run([staged])
    found = [query._json(f"stream/numbered/{at}?offset=-1") for at in range(3)]
    by_key = partition_of_key(b"a", 3)
    expected: list[list[int]] = [[], [], []]
    for number, at in ((0, by_key), (1, 2), (2, by_key), (3, 0)):
        expected[at].append(number)
    assert found == expected
    for topic, words in (("pure", "'kafka/pure/0' of topic 'pure'"), ("none", "no topic 'none'")):
        wrong = SinkOptions(Connection(url), "", "stages", "", topic)
        with pytest.raises(ConfigError, match=words):
            stage(wrong, folder_of(wrong, "w"), 0, table.to_batches())
    far = pa.table({"value": ["1"], "partition": [3]}).to_batches()
    with pytest.raises(PolynyaError, match="has the partitions 0 to 2"):
        stage(options, folder_of(options, "far"), 0, far)
