"""Streams that were deleted by accident come back out of a backup, into the server that runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from e2e_world import Answer, Client, World
from free_ports import free_ports
from product import Ran, polynya
from test_e2e_backup import killed_when, started

from polynya.base.names import spelled_name

pytestmark = pytest.mark.process
JSON = "application/json"
APPENDS = 12  # of the long one, each so large that it is one when it comes back, too


class Kept:
    """The readers' view of streams: bytes, content type, closed, and the records of byte
    streams."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def of(self, name: str) -> dict[str, Any]:
        head = self._client.ask("HEAD", path(name))
        assert head.status == 200, (name, head)
        body, offset, headers = b"", "-1", head.headers
        while True:
            page = self._client.ask("GET", f"{path(name)}?offset={offset}")
            body, offset = body + page.body, page.headers["stream-next-offset"]
            if page.headers.get("stream-up-to-date"):
                break
        kept = {
            key: headers.get(key)
            for key in ("content-type", "stream-closed", "stream-ttl", "stream-retention-age")
        }
        return {**kept, "body": body}


def path(name: str) -> str:
    return f"/v1/stream/{name}"


def made(world: World, client: Client) -> None:
    """Create streams of all kinds: in packs, hot, both, trimmed, closed, empty, forked, forked
    again."""

    def ok(answer: Answer) -> Answer:
        assert answer.status < 300, answer
        return answer

    def put(name: str, kind: str = JSON, body: bytes | None = None, **headers: str) -> Answer:
        return ok(client.ask("PUT", path(name), body, **{"Content-Type": kind}, **headers))

    def post(name: str, body: bytes, kind: str = JSON, **headers: str) -> Answer:
        return ok(client.ask("POST", path(name), body, **{"Content-Type": kind}, **headers))

    put("lost/json", body=b'[{"n": 1.0}, [2]]')
    put("lost/bytes", "text/plain", **{"Stream-TTL": "86400"})
    put("lost/empty", "text/plain")
    put("lost/shut", **{"Stream-Retention-Age": "3600"})
    put("lost/trimmed")
    for number in range(10):
        post("lost/bytes", b"<%d>" % number, "text/plain")
        post("lost/trimmed", b"[%d, %d]" % (number, number))
    assert world.flush().status == 200
    post("lost/json", b'["hot"]')
    post("lost/shut", b"[1]", **{"Stream-Closed": "true"})
    trim = client.ask(
        "POST",
        f"{path('lost/trimmed')}/retention",
        b'{"before": "%016d_%016d"}' % (5, 10),
        **{"Content-Type": JSON},
    )
    assert trim.status == 200, trim
    ok(client.ask("PUT", path("lost/fork"), **{"Stream-Forked-From": path("lost/trimmed")}))
    post("lost/fork", b'["own"]')
    ok(client.ask("PUT", path("lost/fork2"), **{"Stream-Forked-From": path("lost/fork")}))
    post("lost/fork2", b'["second"]')
    put("long/one")
    for number in range(APPENDS):
        post("long/one", json.dumps([number, "x" * 700_000]).encode())


LOST = [f"lost/{name}" for name in ("json", "bytes", "empty", "shut", "trimmed", "fork", "fork2")]


def recovered(world: World, *arguments: str) -> Ran:
    return polynya("recover", *arguments, server=world.url)


def test_deleted_streams_come_back_under_their_names_or_others_and_once(
    world: World, tmp_path: Path
) -> None:
    location = str(tmp_path / "backup.tar")
    world.start("--cores", "2")
    with contextlib.closing(world.connect()) as client:
        made(world, client)
        kept = Kept(client)
        before = {name: kept.of(name) for name in (*LOST, "long/one")}
        assert polynya("backup", location, server=world.url).code == 0

        ran = recovered(world, location, "lost/json")
        assert (ran.code, "the stream lost/json already exists" in ran.err) == (1, True), ran
        ran = recovered(world, location, "--prefix", "lost/", "--as", "found/", "--json")
        report = json.loads(ran.out)
        assert (ran.code, len(report["streams"]), report["failed"]) == (0, len(LOST), []), ran
        for name in LOST:
            assert kept.of(name.replace("lost", "found")) == before[name], name
        for name in reversed(LOST):
            assert client.ask("DELETE", path(name)).status == 204
        for _ in range(2):  # the second time nothing is there twice
            assert recovered(world, location, *LOST).code == 0
        for name in LOST:
            assert kept.of(name) == before[name], name

        assert client.ask("DELETE", path("long/one")).status == 204
        process = started("recover", location, "long/one", server=world.url)
        while process.poll() is None and client.ask("HEAD", path("long/one")).status == 404:
            pass
        killed_when(process, tmp_path, "*")
        assert len(kept.of("long/one")["body"]) > 700_000
        ran = recovered(world, location, "long/one", "--json")
        assert (ran.code, json.loads(ran.out)["streams"][0]["resumed"]) == (0, True), ran
        assert kept.of("long/one") == before["long/one"]

    ran = recovered(world, location, "--prefix", "", "--list", "--json")
    assert {row["name"] for row in json.loads(ran.out)["streams"]} == {
        spelled_name(name) for name in before
    }
    ran = recovered(world, location, "lost/jason")
    assert (ran.code, "has no such stream" in ran.err) == (1, True), ran


RECORDS = "application/vnd.polynya.records+json"


def test_records_of_kafka_batches_keep_their_keys_headers_and_times(
    world: World, tmp_path: Path
) -> None:
    location = str(tmp_path / "backup.tar")
    world.start("--cores", "1", "--kafka-listen", f"127.0.0.1:{(port := free_ports(1)[0])}")
    with contextlib.closing(world.connect()) as client:

        def shown(name: str) -> list[dict[str, Any]]:
            answer = client.ask("GET", f"{path(name)}?offset=-1", Accept=RECORDS)
            assert answer.headers["stream-up-to-date"], "one page"
            found: list[dict[str, Any]] = json.loads(answer.body)
            assert all(each.pop("append_time") for each in found), "of the append, here or there"
            return found

        def post(name: str, kind: str, body: bytes, **headers: str) -> None:
            answer = client.ask("POST", path(name), body, **{"Content-Type": kind}, **headers)
            assert answer.status == 200 or answer.status == 204, answer

        for name, kind, value in (
            ("json", JSON, b'["v", {"a": 1.0}]'),
            ("text", "text/plain", b"v"),
        ):
            assert client.ask("PUT", path(f"k/{name}"), **{"Content-Type": kind}).status == 201
            post(f"k/{name}", kind, value, **{"Record-Key": ":/w==:", "Record-Timestamp": "5"})
            post(f"k/{name}", kind, value)
            post(f"k/{name}", kind, value, **{"Record-Header": "h=1, n", "Record-Timestamp": "7"})
        post("k/json", JSON, b"[3]", **{"Record-Key": "end", "Stream-Closed": "true"})
        made = polynya("topic", "create", "clicks", "--partitions", "2", server=world.url)
        assert made.code == 0, made
        sent = send_batches(port, "clicks")
        assert world.flush().status == 200
        sent += send_batches(port, "clicks")
        before = {name: shown(name) for name in ("k/json", "k/text", "kafka/clicks/1")}
        assert [record["value"] for record in before["kafka/clicks/1"]] == sent
        assert polynya("backup", location, server=world.url).code == 0

        for _ in range(2):
            ran = recovered(world, location, "--prefix", "k/", "--as", "found/")
            assert ran.code == 0, ran
            ran = recovered(world, location, "--prefix", "kafka/clicks/", "--as", "found/clicks-")
            assert ran.code == 0, ran
        for old, new in (("k/json", "json"), ("k/text", "text"), ("kafka/clicks/1", "clicks-1")):
            assert shown(f"found/{new}") == before[old]
        ran = recovered(world, location, "kafka/clicks/1")
        assert (ran.code, "partition of a Kafka topic" in ran.err) == (1, True), ran

        adopted = ("--from", "found/clicks-0", "--from", "found/clicks-1")
        assert polynya("topic", "adopt", "again", *adopted, server=world.url).code == 0
        assert consumed(port, "again") == [
            (location, record["key"], record["value"])
            for location, record in enumerate(before["kafka/clicks/1"])
        ], "the batches have the offsets of their new places"

        delete_before(port, "clicks", 6)
        later = str(tmp_path / "later.tar")
        assert polynya("backup", later, server=world.url).code == 0
        ran = recovered(world, later, "kafka/clicks/1", "--as", "later/1", "--json")
        assert (ran.code, json.loads(ran.out)["streams"][0]["records"]) == (0, len(sent) - 6), ran
        assert [record["value"] for record in shown("later/1")] == sent[6:]


def delete_before(port: int, topic: str, offset: int) -> None:
    """Delete the records of partition 1 before an offset inside a batch."""

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
        await admin.start()
        try:
            partition = TopicPartition(topic, 1)
            done = await admin.delete_records({partition: RecordsToDelete(offset)})
            assert done == {partition: offset}
        finally:
            await admin.close()

    asyncio.run(delete())


def send_batches(port: int, topic: str) -> list[str]:
    """Send compressed batches of an idempotent producer to partition 1, and return the values."""

    async def send() -> list[str]:
        values = []
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{port}",
            compression_type="gzip",
            enable_idempotence=True,
        )
        await producer.start()
        try:
            for number in range(3):
                batch = producer.create_batch()
                for each in range(4):
                    values.append(f"{number}-{each}")
                    batch.append(key=b"k%d" % each, value=values[-1].encode(), timestamp=100 + each)
                await (await producer.send_batch(batch, topic, partition=1))
        finally:
            await producer.stop()
        return values

    return asyncio.run(send())


def consumed(port: int, topic: str) -> list[tuple[int, str, str]]:
    """Return the offset, key and value of each record of partition 1, as a client that checks the
    checksums of batches reads them."""

    async def read() -> list[tuple[int, str, str]]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{port}", check_crcs=True, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            partition = TopicPartition(topic, 1)
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            found: list[tuple[int, str, str]] = []
            while len(found) < end:
                more = (await consumer.getmany(timeout_ms=1000)).get(partition, [])
                found += [(each.offset, each.key.decode(), each.value.decode()) for each in more]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())
