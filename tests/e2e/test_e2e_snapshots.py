"""Snapshots of streams on a real node: no client sees the streams with their bodies, and a kill
loses none that was acknowledged."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from missing import needed_module
from polling import wait_until
from product import RunningNode, polynya, running_node

import polynya as polynya_package
from polynya.client import Client, ClientError

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

HIDDEN = "_snapshots/docs/a"
MODULE = b"\0asm"
MODULES = f"_modules/{hashlib.sha256(MODULE).hexdigest()}"  # the stream of a module
SPELLINGS = (
    HIDDEN,
    MODULES,
    "%5Fsnapshots/docs/a",
    "default/_snapshots/docs/a",
    "_snapshots%2Fdocs/a",
)
LISTS = (
    "/v1/streams",
    "/v1/streams?prefix=",
    "/v1/streams?prefix=_snapshots/",
    "/v1/streams?attrs=1",
    "/v1/topics",
    "/v1/tables",
    "/v1/groups",
    "/v1/buckets",
    "/v1/cluster",
    "/v1/cost",
    "/v1/node",
    "/v1/node/recent",
    "/v1/node/kafka-owners",
    "/v1/kafka/clients",
    "/v1/transactions",
    "/v1/reducers/due?all=1",
    "/v1/tables/everything",
    "/v1/tables/everything/runs",
    "/v1/tables/derived",
    "/v1/live?match=**&live=long-poll&timeout_ms=1",
    "/v1/live?prefix=&live=long-poll&timeout_ms=1",
    "/registry/subjects",
    "/iceberg/v1/namespaces",
    "/v1/stream/__ds/subscriptions",
    "/v1/stream/__ds/subscriptions/all",
    "/metrics",
)
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH")
PARTS = ("", "/retention", "/attrs", "/snapshot", "/snapshots", "/bootstrap", "/snapshot/0")
# the routes of streams, and others that take a name
ONCE = ("",)
BELOW = {
    "/v1/stream/": PARTS,
    "/v1/streams/": PARTS,
    "/": PARTS,
    "/v1/segments/": ONCE,
    "/v1/profile/": ONCE,
    "/v1/compaction/": ONCE,
    "/v1/mirror/": ONCE,
}
# roots of the paths of the product that are walked above and below; a new one has to be added
WALKED = {
    *("stream", "streams", "segments", "profile", "compaction", "mirror", "topics", "tables"),
    *("groups", "buckets", "cluster", "cost", "node", "kafka", "transactions", "reducers", "live"),
    *("ranges", "append", "append-all", "modules", "sql", "admin"),
}
NAMES_NO_STREAM = {"tokens"}  # `/v1/tokens/short` signs a name, and shows nothing of it


def planted(client: Client) -> str:
    """Create a stream with a snapshot, and return where that is."""
    stream = client.stream("docs/a")
    stream.create()
    at = stream.append(1, 2, 3).offset
    assert stream.publish_snapshot(at, {"sum": 6})
    assert httpx.put(f"{client.server}/v1/modules", content=MODULE).status_code == 201
    return at


def test_no_api_shows_or_takes_the_stream_with_the_bodies(tmp_path: Path) -> None:
    _check_that_all_is_walked()
    flags = ("--cores", "2", "--kafka-listen", "127.0.0.1:0")
    with running_node(tmp_path / "data", *flags) as node, Client(node.url) as client:
        at = planted(client)
        with httpx.Client(base_url=node.url, timeout=30) as http:
            _check_names(http)
            _check_requests_that_name_streams(http)
            _check_lines_of_many_appends(http)
            subscription = {"type": "pull-wake", "pattern": "**", "wake_stream": "wakes"}
            http.put("/v1/stream/wakes", headers={"content-type": "application/json"})
            made = http.put("/v1/stream/__ds/subscriptions/all", json=subscription)
            assert made.status_code == 201, made.text
            assert http.put("/v1/tables/everything", json={"prefix": ""}).status_code < 300
            derived = {"from": "everything", "query": "select count(*) as n from everything"}
            http.put("/v1/tables/derived", json=derived)
            for pattern, status in (("**", 201), ("_snapshots/**", 400), (HIDDEN, 400)):
                reducer = {"pattern": pattern, "builtin": "count"}
                assert http.put("/v1/reducers/r0", json=reducer).status_code == status
            client.stream("docs/a").publish_snapshot(client.stream("docs/a").append(4).offset, 10)
            _check_lists(node, http)
            live = http.stream("GET", "/v1/live?match=**&offset=-1&live=sse", timeout=3)
            with suppress(httpx.ReadTimeout), live as events:
                for line in events.iter_lines():
                    assert "_snapshots/" not in line and "_modules/" not in line
                    if "allUpToDate" in line:
                        break
        assert [facts.name for facts in client.streams()] == ["wakes", "docs/a"]
        assert "_" not in polynya("ls", server=node.url).out
        _check_kafka(node.kafka)
        for source, target in ((HIDDEN, "copy"), ("docs/a", HIDDEN)):
            copied = polynya("import", f"{node.url}/v1/stream/{source}", target, server=node.url)
            assert copied.code == 1, copied
            assert "reserved" in copied.err or "400 Bad Request" in copied.err, copied
        ran = polynya("reduce", "run", "--once", server=node.url)
        assert ran.code == 0 and "_snapshots/" not in ran.out + ran.err, ran
        backup = polynya("backup", str(tmp_path / "backup"), server=f"http://{_admin(node)}")
        assert backup.code == 0, backup.err
    _check_recovery(tmp_path, at)


def _admin(node: RunningNode) -> str:
    return node.admin.removeprefix("http://")


def _check_names(http: httpx.Client) -> None:
    for below, parts in BELOW.items():
        for name in SPELLINGS:
            for part in parts:
                for method in METHODS:
                    headers = {"content-type": "application/octet-stream"}
                    answer = http.request(method, f"{below}{name}{part}", headers=headers)
                    assert 400 <= answer.status_code < 500, (method, below, name, part)


def _check_requests_that_name_streams(http: httpx.Client) -> None:
    fork = {"stream-forked-from": f"/v1/stream/{HIDDEN}", "content-type": "text/plain"}
    pull: dict[str, Any] = {"type": "pull-wake", "wake_stream": "wakes"}
    for answer in (
        http.put("/v1/stream/fork", headers=fork),
        http.post("/v1/ranges", json={"streams": [{"name": HIDDEN, "record": 0}]}),
        http.put("/v1/topics/t", json={"partitions": 1, "streams": [HIDDEN]}),
        http.put("/v1/stream/__ds/subscriptions/s", json={**pull, "streams": [HIDDEN]}),
        http.put("/v1/tables/t", json={"prefix": "_snapshots/"}),
        http.put("/v1/buckets/_snapshots/retention", json={"bytes": 0}),
        http.get(f"/v1/live?stream={HIDDEN}&live=sse"),
        http.get(f"/v1/live?stream={HIDDEN}&live=long-poll"),
        http.post("/v1/reducers/r/verify", json={"stream": HIDDEN}),
        http.post("/v1/append-all", content=json.dumps({"stream": HIDDEN, "records": [1]})),
        http.put("/v1/buckets/_snapshots/profile", json={"profile": "diskless"}),
        http.put("/v1/topics/_snapshots%2Fdocs%2Fa", json={"partitions": 1}),
        http.delete("/v1/topics/_snapshots%2Fdocs%2Fa"),
        http.post("/v1/sql", json={"sql": f'select * from "{HIDDEN}"'}),
    ):
        assert 400 <= answer.status_code < 500, (answer.request.url, answer.text)


def _check_lines_of_many_appends(http: httpx.Client) -> None:
    """Assert that each line of one request has an outcome of its own: none reaches a hidden
    stream."""
    lines = "\n".join(json.dumps({"stream": name, "records": [1]}) for name in SPELLINGS)
    answer = http.post("/v1/append", content=lines)
    assert answer.status_code == 200, answer.text
    assert {each["status"] for each in answer.json()} <= {400, 404}, answer.text


def _check_kafka(address: str) -> None:
    """Assert that no request of a Kafka client lists, makes or reads a hidden stream."""
    needed_module("confluent_kafka")
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    where = {"bootstrap.servers": address, "topic.metadata.propagation.max.ms": 0}
    admin = AdminClient(where)
    assert admin.list_topics(timeout=30).topics == {}
    for name in ("_snapshots/docs/a", "docs/a"):
        known = admin.list_topics(name, timeout=30).topics[name]
        assert known.error is not None and not known.partitions, name
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("_snapshots/docs/a", 1)])["_snapshots/docs/a"].result(30)
    failed = []
    producer = Producer({**where, "message.timeout.ms": 2000})
    producer.produce("_snapshots/docs/a", b"1", on_delivery=lambda error, _: failed.append(error))
    producer.flush(30)
    assert failed and failed[0] is not None
    consumer = Consumer({**where, "group.id": "g"})
    with pytest.raises(KafkaException):
        consumer.get_watermark_offsets(TopicPartition("_snapshots/docs/a", 0), timeout=5)
    consumer.close()


def _check_that_all_is_walked() -> None:
    """Assert that the routes of the product are the walked ones and those that name no stream."""
    source = Path(polynya_package.__file__).parent
    found = set()
    for folder in ("front", "admin"):
        for path in (source / folder).rglob("*.py"):
            found |= set(re.findall(r'"/v1/([a-z-]+)', path.read_text()))
    assert found == WALKED | NAMES_NO_STREAM


def _check_lists(node: RunningNode, http: httpx.Client) -> None:
    seen = 0
    with httpx.Client(base_url=f"http://{_admin(node)}", timeout=30) as admin:
        for path in LISTS:
            for port in (http, admin):
                answer = port.get(path)
                seen += answer.status_code == 200
                assert "_snapshots/" not in answer.text, path
                assert "_modules/" not in answer.text, path
        wait_until(lambda: _streams(admin) == 2.0, what="the count of the streams")
    assert seen > len(LISTS)
    table = json.loads(http.get("/v1/tables/everything").text)
    assert "_snapshots/" not in json.dumps(table)


def _streams(admin: httpx.Client) -> float:
    """Return the metric of the number of streams."""
    lines = admin.get("/metrics").text.splitlines()
    (found,) = [line for line in lines if line.startswith("polynya_streams ")]
    return float(found.split()[1])


def _check_recovery(tmp_path: Path, at: str) -> None:
    """Assert that a restore keeps the snapshots, and that a recovery of all streams takes no
    companion."""
    restored = polynya(
        "restore", str(tmp_path / "backup"), "--data", str(tmp_path / "again"), "--cores", "2"
    )
    assert restored.code == 0, restored.err
    with running_node(tmp_path / "again", "--cores", "2") as node, Client(node.url) as client:
        stream = client.stream("docs/a")
        assert stream.snapshot(at).value == {"sum": 6}
        begun = stream.bootstrap()
        assert begun.snapshot is not None and (begun.snapshot.value, begun.records) == (10, [])
        stream.delete()


class Counter(threading.Thread):
    """A client that appends numbers and publishes their sum. `acknowledged` are its snapshots."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.ends = threading.Event()
        self.acknowledged: list[tuple[str, int]] = []

    def run(self) -> None:
        with Client(self.url) as client, suppress(ClientError):
            stream, total, number = client.stream("sum"), 0, 0
            while not self.ends.is_set():
                number += 1
                total += number
                at = stream.append(number).offset
                if number % 5 == 0 and stream.publish_snapshot(at, {"sum": total, "n": number}):
                    self.acknowledged.append((at, total))


def followed(url: str, last_id: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the events of a live bootstrap: id, kind, data."""
    headers = {"last-event-id": last_id} if last_id else {}
    path = f"{url}/v1/stream/sum/bootstrap?live=sse"
    with httpx.stream("GET", path, headers=headers, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        event: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(":")
                event[name] = event.get(name, "") + value.strip()
            elif "data" in event:
                yield event["id"], event["event"], json.loads(event["data"])
                event = {}


def test_an_acknowledged_snapshot_outlives_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_node(data, "--cores", "2") as node:
        with Client(node.url) as client:
            client.stream("sum").create()
            client.stream("sum").append(0)
        counter = Counter(node.url)
        counter.start()
        wait_until(lambda: len(counter.acknowledged) >= 4, what="four snapshots")
        node.kill()
        counter.ends.set()
        counter.join()
    with running_node(data, "--cores", "2") as node, Client(node.url) as client:
        stream = client.stream("sum")
        flushed = httpx.post(f"http://{_admin(node)}/v1/admin/flush", timeout=30)
        assert flushed.status_code < 300, flushed.text
        _check_wrong_byte(node.url, counter.acknowledged[-1][0])
        begun = stream.bootstrap()
        assert begun.snapshot is not None and begun.snapshot.offset >= counter.acknowledged[-1][0]
        for at, total in counter.acknowledged[-2:]:
            assert stream.snapshot(at).value["sum"] == total
        numbers = [record.value for record in stream.read()]
        known = begun.snapshot.value
        assert known["sum"] == sum(numbers[: known["n"] + 1])
        assert begun.records == numbers[known["n"] + 1 :]
        stream.trim(before=begun.snapshot.offset)
        last_id = _begin_live(node.url, known)
        stream.append(-1)
        events = followed(node.url, last_id)
        kind, data_of = next((kind, found) for _, kind, found in events if kind != "control")
        assert (kind, data_of[-1]) == ("data", -1), "no second snapshot"


def _check_wrong_byte(url: str, at: str) -> None:
    """Check that an offset inside a record of a cold slice is refused."""
    record, byte = at.split("_")
    wrong = f"{record}_{int(byte) + 1:016d}"
    answer = httpx.put(f"{url}/v1/stream/sum/snapshot/{wrong}", content=b"1", timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_OFFSET")


def _begin_live(url: str, known: dict[str, int]) -> str:
    """Check that the first event of a live bootstrap is the snapshot, and return its id."""
    last_id, kind, found = next(followed(url))
    assert (kind, found) == ("snapshot", known)
    return last_id
