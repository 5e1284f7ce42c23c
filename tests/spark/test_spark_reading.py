"""Reads of a Spark task, without Spark: plans of a real node, deleted packs, the server as a
source; and refusals of `POST /v1/ranges`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest
from polling import wait_until
from worlds.pipeline import PipeWorld

from polynya.base.errors import Unavailable
from polynya.client import Client, NewRecord
from polynya.lakehouse.jobs.plan import store_settings
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.reading.slices import BASE_TYPES
from polynya.spark.options import source_options
from polynya.spark.planning import DataLoss, Split, batch_spans, splits
from polynya.spark.reading import batches
from polynya.spark.server import Server
from polynya.wire.slices import parse_slice

ROUNDS_MAX = 10  # of repeats; one is enough if four requests arrive within a second

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipeWorld]:
    world = PipeWorld(tmp_path_factory.mktemp("reading") / "data")
    try:
        world.start("--cores", "2")
        yield world
    finally:
        world.close()


def planned(node: PipeWorld, **options: str) -> list[Split]:
    wanted = source_options({"server": node.node.url, **options})
    with Server(wanted.connection) as server:
        spans = batch_spans(server.tails(wanted.streams, wanted.prefix), wanted)
        return splits(server, spans, wanted)


def rows(found: list[Split], *columns: str) -> list[tuple[Any, ...]]:
    names = columns or ("stream", "offset", "value")
    batch = [batch for split in found for batch in batches(split, names)]
    return [tuple(row.values()) for part in batch for row in part.to_pylist()]


def test_the_last_values_of_a_compacted_stream_are_read_from_both_sources(node: PipeWorld) -> None:
    with Client(node.node.url) as client:
        stream = client.stream("keyed")
        stream.create()
        for number in range(12):
            stream.append(NewRecord(value={"n": number}, key=f"k{number % 3}"))
        stream.set_retention(compact=True)

    def ended() -> bool:
        url = f"{node.node.url}/v1/compaction/keyed"
        with urlopen(Request(url, method="POST")) as answer:
            seen = json.load(answer)
        return bool(seen["passes"]) and not seen["dirty_bytes"]

    wait_until(ended, what="a pass")
    for source in ("store", "server"):
        found = rows(planned(node, stream="keyed", readFrom=source), "offset", "value")
        assert [(at, json.loads(value)["n"]) for at, value in found] == [(9, 9), (10, 10), (11, 11)]


def test_every_record_is_read_from_both_sources(node: PipeWorld) -> None:
    for number in range(4):
        node.append(f"both/{number}", {"n": 1}, {"n": 2})
        node.append(f"both/{number}", {"n": 3})
    expected = [row for row in sorted(node.rows) if row[0].startswith("both/")]
    assert sorted(rows(planned(node, prefix="both/"))) == expected
    assert sorted(rows(planned(node, prefix="both/", readFrom="server"))) == expected
    some = {
        "stream": "both/1",
        "startingOffsets": '{"both/1": 1}',
        "endingOffsets": '{"both/1": 2}',
    }
    for source in ("store", "server"):
        assert rows(planned(node, **some, readFrom=source)) == [("both/1", 1, b'{"n": 2}')]
    whole = rows(planned(node, stream="both/1"), *BASE_TYPES)
    assert [(row[2], row[4]) for row in whole] == [(0, 0), (1, 0), (2, 2)]
    assert all(row[1] > 0 and row[5] == row[6] for row in whole)


def test_compressed_packs_are_read_and_divided_by_their_records(node: PipeWorld) -> None:
    for number in range(3):
        node.append(
            "small/x", *({"n": number * 100 + at, "pad": "word " * 50} for at in range(100))
        )
        found = planned(node, stream="small/x")
    (part,) = found[0].ranges[:1]
    assert len(found) == 1 and 5 * part.stored < part.length == part.read_bytes
    expected = [row for row in node.rows if row[0] == "small/x"]
    assert sorted(rows(found)) == sorted(expected)
    divided = planned(node, stream="small/x", partitionBytes="30000")
    assert len(divided) > 1 and sorted(rows(divided)) == sorted(expected)


def test_bytes_are_records_in_the_store_and_refused_from_the_server(node: PipeWorld) -> None:
    node.append("raw/x", b"one", content_type="application/octet-stream")
    node.append("raw/x", b"two", content_type="application/octet-stream")
    assert rows(planned(node, stream="raw/x"), "value") == [(b"one",), (b"two",)]
    with pytest.raises(ValueError, match="readFrom must be 'store'"):
        rows(planned(node, stream="raw/x", readFrom="server"))


def test_a_pack_that_is_gone_is_planned_again(node: PipeWorld) -> None:
    node.append("gone/x", {"n": 1}, {"n": 2}, {"n": 3})
    (split,) = planned(node, stream="gone/x", startingOffsets='{"gone/x": 1}')
    moved = [msgspec.structs.replace(part, pack=f"{part.pack}0") for part in split.ranges]
    stale = msgspec.structs.replace(split, ranges=moved)
    assert rows([stale], "offset") == [(1,), (2,)]
    node.delete("gone/x")
    with pytest.raises(DataLoss, match="stream 'gone/x' was deleted"):
        rows([stale])
    assert rows([msgspec.structs.replace(stale, fail_on_data_loss=False)]) == []


def test_a_pack_that_is_always_gone_ends_the_read(
    node: PipeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.append("never/x", {"n": 1})
    (split,) = planned(node, stream="never/x")
    assert split.store is not None
    missing = msgspec.structs.replace(split.store, root=str(node.data))  # a folder without packs
    with pytest.raises(Unavailable, match="stream 'never/x' were replaced 3 times"):
        rows([msgspec.structs.replace(split, store=missing)])


def test_a_fork_has_the_rows_behind_its_fork_point(node: PipeWorld) -> None:
    node.append("fork/source", {"n": 1})
    node.create("fork/copy", Stream_Forked_From="/v1/stream/fork/source")
    assert rows(planned(node, stream="fork/copy")) == []
    path = f"{node.node.url}/v1/stream/fork/copy"
    node.http.post(path, content=b"[2]", headers={"content-type": "application/json"})
    assert rows(planned(node, stream="fork/copy")) == [("fork/copy", 1, b"2")]


def test_wrong_requests_for_ranges_are_refused(node: PipeWorld) -> None:
    path = f"{node.node.url}/v1/ranges"
    assert node.http.get(path).status_code == 405
    for body in (
        b"{}",
        b'{"streams": []}',
        b'{"streams": [{"name": "x", "first": -1}]}',
        b'{"streams": [{"name": "__ds/x"}]}',
        msgspec.json.encode({"streams": [{"name": "x"}] * 65}),
    ):
        assert node.http.post(path, content=body).status_code == 400, body
    absent = node.http.post(path, content=b'{"streams": [{"name": "no/such"}]}')
    assert absent.status_code == 200 and absent.json()["streams"] == [None]


def names_parts(node: PipeWorld, stream: str) -> bool:
    """Report whether an index entry covers only a part of its slice: the same pack held a
    duplicate."""
    (split,) = planned(node, stream=stream)
    assert split.store is not None
    blobs = open_blobs(store_settings(split.store))
    stored = [blobs.get_range(part.pack, part.offset, part.stored) for part in split.ranges]
    return any(
        parse_slice(data, part.crc).batches > part.batches
        for data, part in zip(stored, split.ranges, strict=True)
    )


@pytest.fixture
def one_core(tmp_path: Path) -> Iterator[PipeWorld]:
    """A node whose single writer collects the appends of a second into one pack."""
    world = PipeWorld(tmp_path / "data")
    try:
        world.start("--cores", "1", "--diskless-interval", "1s")
        yield world
    finally:
        world.close()


def test_a_diskless_stream_has_the_accepted_records_alone(one_core: PipeWorld) -> None:
    """Repeats of a producer are in the packs, and in no index entry: entries are parts of
    slices."""
    node = one_core
    node.create("nodisk/x", Stream_Profile="diskless")
    path = f"{node.node.url}/v1/stream/nodisk/x"

    def post(sequence: int) -> int:
        headers = {
            "content-type": "application/json",
            "producer-id": "p",
            "producer-epoch": "0",
            "producer-seq": str(sequence),
        }
        return node.http.post(path, content=b'[{"n":%d}]' % sequence, headers=headers).status_code

    assert post(0) == 200  # the core was idle, so the pack closes at once and the interval begins
    count, has_parts = 1, False
    with ThreadPoolExecutor(4) as threads:
        while count < ROUNDS_MAX and not has_parts:
            assert sorted(threads.map(post, [count] * 4)) == [200, 204, 204, 204]
            count, has_parts = count + 1, names_parts(node, "nodisk/x")
    assert has_parts
    node.note("nodisk/x", [b'{"n":%d}' % sequence for sequence in range(count)])
    expected = [("nodisk/x", number, b'{"n":%d}' % number) for number in range(count)]
    assert rows(planned(node, stream="nodisk/x")) == expected
    found = node.http.get(path, params={"offset": "-1"}).json()
    assert found == [{"n": number} for number in range(count)]
    body = {"prefix": "nodisk/"}
    assert node.http.put(f"{node.node.url}/v1/tables/nodisk", json=body).status_code == 201
    node.compact_here("nodisk")
    node.check_exactly_once("nodisk", Counter(expected))
