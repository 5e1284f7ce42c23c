"""The client's verbs against a real node, blocking and asynchronous: data survives the round trip,
and refusals have their types."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from polling import wait_until
from product import RunningNode, running_node

from polynya.client import (
    NOW,
    START,
    AsyncClient,
    Batching,
    Client,
    ConditionFailed,
    NewRecord,
    Outcome,
    ProducerFailed,
    ProducerFenced,
    Refused,
    SequenceRegression,
    StreamClosed,
    StreamExists,
    StreamNotFound,
    StreamReplaced,
    Trimmed,
)
from polynya.client.reading import Live

pytestmark = pytest.mark.process
names = (f"verbs/{number}" for number in itertools.count())


@dataclass
class Order:
    item: int


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node") / "data", "--cores", "2") as node:
        yield node


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    with Client(node.url) as client:
        yield client


def asynchronously(node: RunningNode, story: Any) -> None:
    async def run() -> None:
        async with AsyncClient(node.url) as client:
            await story(client)

    work: Coroutine[Any, Any, None] = run()
    asyncio.run(work)


def test_keys_headers_and_times_come_back_with_whole_records(
    node: RunningNode, client: Client
) -> None:
    stream = client.stream(next(names))
    stream.create()
    time = datetime(2026, 11, 1, tzinfo=UTC)
    headers = {"trace": b"\xff", "none": None}
    stream.append(NewRecord(value={"n": 1}, key="k", headers=headers, timestamp=time), [2])
    stream.append(3)
    records = list(stream.read(whole_records=True))
    assert [each.value for each in records] == [{"n": 1}, [2], 3]
    first, second, third = records
    assert (first.key, first.headers) == (b"k", (("trace", b"\xff"), ("none", None)))
    assert first.timestamp == time.timestamp() * 1000
    assert (second.key, second.headers) == (third.key, third.headers) == (None, ())
    assert second.timestamp is not None and third.timestamp is None
    rest = stream.read(first.offset, whole_records=True)
    assert [each.value for each in rest] == [[2], 3], "an offset between records of a batch"
    assert [each.value for each in stream.read()] == [{"n": 1}, [2], 3]
    raw = client.stream(next(names))
    raw.create(content_type="application/octet-stream")
    raw.append(NewRecord(value=b"\xff", key=b"\0\xfe"), "text", NewRecord(key="gone"))
    with raw.tail(START, whole_records=True) as reader:
        found = [next(reader) for _ in range(3)]
    assert [(each.data, each.key) for each in found] == [
        (b"\xff", b"\0\xfe"),
        (b"text", None),
        (b"", b"gone"),
    ]

    async def story(client: AsyncClient) -> None:
        reader = client.stream(stream.name).read(whole_records=True)
        assert [each.key async for each in reader] == [b"k", None, None]

    asynchronously(node, story)


def test_values_come_back_as_they_went_in(client: Client) -> None:
    stream = client.stream(next(names))
    assert stream.create().created and not stream.create().created
    exact = msgspec.Raw(b' {"n": 12345678901234567890, "x": 1.0} ')
    stream.append({"item": 1}, [1, [2]], None, "ü", exact)
    records = list(stream.read())
    assert [record.value for record in records[:4]] == [{"item": 1}, [1, [2]], None, "ü"]
    assert records[4].data == b'{"n": 12345678901234567890, "x": 1.0}'
    assert records[0].decode(Order) == Order(1)
    for number, record in enumerate(records):
        assert [later.data for later in stream.read(record.offset)] == [
            later.data for later in records[number + 1 :]
        ]


def test_what_is_no_record_is_refused_before_it_is_sent(client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()
    with pytest.raises(TypeError, match="Raw"):
        stream.append(b"{}")
    with pytest.raises(ValueError, match="not valid JSON"):
        stream.append(msgspec.Raw(b"{"))
    with pytest.raises(ValueError, match="at least one"):
        stream.append()
    with stream.producer() as producer, pytest.raises(TypeError):
        producer.append(b"{}")
    assert stream.head().offset.startswith("0000000000000000")


def test_bytes_and_text_come_back_as_they_went_in(client: Client) -> None:
    for content_type in ("application/octet-stream", "text/plain"):
        stream = client.stream(next(names))
        stream.create(content_type=content_type)
        parts = [bytes(range(256)) * 300, b"a\r\nb\rc\n", "über".encode()[:1], "über".encode()[1:]]
        seen: list[bytes] = []

        def follow(name: str = stream.name, seen: list[bytes] = seen) -> None:
            with client.stream(name).tail(START) as reader:
                seen.extend(page.body for page in reader.pages())

        thread = threading.Thread(target=follow)
        thread.start()
        for part in parts:
            stream.append(part)
        stream.close()
        thread.join(60)
        assert b"".join(seen) == b"".join(parts)
        assert b"".join(page.body for page in stream.read(max_bytes=1000).pages()) == b"".join(
            parts
        )


def test_refusals_have_their_types(client: Client) -> None:
    stream = client.stream(next(names))
    with pytest.raises(StreamNotFound):
        stream.append(1)
    with pytest.raises(StreamNotFound):
        list(stream.read())
    assert not stream.exists()
    stream.create()
    with pytest.raises(StreamExists):
        client.stream(stream.name).create(content_type="text/plain")
    stream.append(1, sequence="b")
    with pytest.raises(SequenceRegression) as refused:
        stream.append(1, sequence="a")
    assert refused.value.outcome is Outcome.REFUSED and refused.value.request_id
    stream.append(2, close=True)
    with pytest.raises(StreamClosed) as closed:
        stream.append(3)
    assert closed.value.offset == stream.head().offset
    with pytest.raises(Refused, match="is not a valid offset: it must be"):
        list(stream.read("nonsense"))
    with pytest.raises(ValueError, match="not a server's URL"):
        Client("ftp://somewhere")


def test_an_append_may_name_the_tail(node: RunningNode, client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()
    first = stream.append(1, 2, if_match=stream.head().offset)
    with pytest.raises(ConditionFailed) as failed:
        stream.append(3, if_match="0000000000000000_0000000000000000")
    assert (failed.value.code, failed.value.status) == ("PRECONDITION", 412)
    assert failed.value.outcome is Outcome.REFUSED
    assert failed.value.offset == first.offset == stream.head().offset
    second = stream.append(NewRecord(value=3, key="k"), if_match=f'"{first.offset}"')
    assert [each.value for each in stream.read()] == [1, 2, 3]

    async def story(client: AsyncClient) -> None:
        same = client.stream(stream.name)
        with pytest.raises(ConditionFailed):
            await same.append(4, if_match=first.offset)
        together = [same.append(number, if_match=second.offset) for number in range(4, 12)]
        ended = await asyncio.gather(*together, return_exceptions=True)
        assert [type(each) for each in ended].count(ConditionFailed) == 7
        closed = await same.append(
            12, if_match=(await same.head()).offset, sequence="a", close=True
        )
        assert closed.closed

    asynchronously(node, story)
    assert len(list(stream.read())) == 5
    with pytest.raises(StreamClosed):
        stream.append(13, if_match=first.offset)


def test_refusals_name_what_is_there_whichever_core_has_it(client: Client) -> None:
    for _ in range(8):
        stream = client.stream(next(names))
        stream.create(ttl_seconds=60)
        with pytest.raises(
            Refused, match=r"holds application/json, and the request's Content-Type is text/plain"
        ) as refused:
            client.stream(stream.name, content_type="text/plain").append("x")
        assert refused.value.code == "CONTENT_TYPE_MISMATCH"
        with pytest.raises(StreamExists, match="its Stream-TTL is 60, and the request's is 30"):
            stream.create(ttl_seconds=30)


def test_a_tail_notices_that_its_stream_is_another(client: Client) -> None:
    stream = client.stream(next(names))
    for live in ("sse", "long-poll"):
        stream.create()
        stream.append(1)
        with stream.tail(START, live=live) as reader:  # type: ignore[arg-type]
            assert next(reader).value == 1
            stream.delete()
            stream.create()
            stream.append(2)
            with pytest.raises((StreamReplaced, StreamNotFound)):
                next(reader)
        stream.delete()


def test_a_tail_from_now_that_is_left_early_goes_on_where_it_was(node: RunningNode) -> None:
    """Save the tail's offset before the first record: later records are delivered after it."""

    async def story(client: AsyncClient) -> None:
        stream = client.stream(next(names))
        await stream.create()
        await stream.append("before")
        offset = NOW
        async with stream.tail() as reader:
            for _ in range(600):  # the answer that names the tail may take a while
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await anext(reader)
                if (offset := reader.offset) != NOW:
                    break
        await stream.append("between")
        async with stream.tail(offset) as reader:
            assert (await anext(reader)).value == "between"

    asynchronously(node, story)


def test_a_fork_goes_its_own_way(client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()
    stream.append(1, 2)
    half = next(stream.read()).offset
    fork = stream.fork(next(names), offset=half)
    fork.append("own")
    assert [record.value for record in fork.read()] == [1, "own"]
    assert stream.delete() and fork.delete()


def test_many_streams_are_listed_in_pages(client: Client) -> None:
    wanted = [f"listed/{number:04d}" for number in range(12)]
    for name in wanted:
        client.stream(name).create()
    assert [facts.name for facts in client.streams("listed/")] == wanted


def test_reads_begin_by_record_times(node: RunningNode, client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()
    for number, second in enumerate((5, 1, 9, 3)):  # times decrease
        stream.append(NewRecord(value=number, timestamp=second * 1000))
    late = datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC)
    assert [each.value for each in stream.read(from_record_time=late)] == [2, 3]
    assert [each.value for each in stream.read(from_record_time="1000", max_bytes=1)] == [*range(4)]
    stream.close()
    assert [each.value for each in stream.tail(from_record_time="9000")] == [2, 3]
    with pytest.raises(ValueError, match="not both"):
        stream.read(from_time="1h", from_record_time="1h")

    async def story(client: AsyncClient) -> None:
        found = client.stream(stream.name).read(from_record_time=late)
        assert [each.value async for each in found] == [2, 3]
        found = client.stream(stream.name).tail(from_record_time=late)
        assert [each.value async for each in found] == [2, 3]

    asynchronously(node, story)


def test_reads_begin_by_record_numbers(node: RunningNode, client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()
    stream.append(*range(6))
    assert [each.value for each in stream.read(record=4)] == [4, 5]
    assert [each.value for each in stream.read(tail_records=2)] == [4, 5]
    assert [each.value for each in stream.read(tail_records=100, max_records=1)] == [*range(6)]
    page = next(stream.read(max_records=4).pages())
    assert [each.value for each in page.records] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="not both"):
        stream.read(record=1, from_time="1h")
    for wrong in ({"record": -1}, {"tail_records": 0}, {"max_records": 0}):
        with pytest.raises(ValueError, match="at least"):
            stream.read(**wrong)
    stream.close()
    for start in ({"record": 4}, {"tail_records": 2}):
        for live in ("sse", "long-poll"):
            assert [each.value for each in stream.tail(**start, live=live)] == [4, 5]

    async def story(client: AsyncClient) -> None:
        other = client.stream(stream.name)
        assert [each.value async for each in other.read(record=5, max_records=1)] == [5]
        assert [each.value async for each in other.tail(tail_records=1)] == [5]

    asynchronously(node, story)


def test_trims_and_times(client: Client) -> None:
    stream = client.stream(next(names))
    stream.create(retain_bytes=10**9)
    stream.append(*range(10))
    offsets = [record.offset for record in stream.read()]
    trimmed = stream.trim(before=offsets[3])
    assert trimmed.records == 4 and trimmed.retained_offset == offsets[3]
    assert [record.value for record in stream.read()] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(Trimmed) as error:
        list(stream.read(offsets[0]))
    assert error.value.retained_offset == offsets[3]
    assert [record.value for record in stream.read(from_time="1h")] == [4, 5, 6, 7, 8, 9]
    assert list(stream.read(from_time=datetime.now(UTC) + timedelta(hours=1))) == []
    with pytest.raises(ValueError, match="zone"):
        stream.read(from_time=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="exactly one"):
        stream.trim()


def asked(node: RunningNode, method: str, name: str, body: str, **headers: str) -> tuple[int, Any]:
    """One request, and its status and error."""
    fields = {"content-type": "application/json"}
    fields |= {key.replace("_", "-"): value for key, value in headers.items()}
    request = Request(  # noqa: S310
        f"{node.url}/v1/stream/{name}", body.encode(), fields, method=method
    )
    try:
        with urlopen(request) as answer:  # noqa: S310
            return answer.status, None
    except HTTPError as error:
        return error.code, json.loads(error.read())["error"]


@pytest.mark.parametrize("profile", ["replicated", "leased", "diskless"])
def test_a_repeat_with_another_body_is_refused(
    node: RunningNode, client: Client, profile: str
) -> None:
    name = next(names)
    assert asked(node, "PUT", name, "", stream_profile=profile)[0] == 201
    one = {"producer_id": "p", "producer_epoch": "0"}
    for sequence in range(7):
        sent = {**one, "producer_seq": str(sequence)}
        assert asked(node, "POST", name, f"[{sequence}]", **sent)[0] == 200
        assert asked(node, "POST", name, f"[{sequence}]", **sent)[0] == 204
        status, error = asked(node, "POST", name, '["other"]', **sent)
        assert (status, error["code"]) == (409, "PRODUCER_CONFLICT")
        assert f"next one, {sequence + 1}" in error["message"]
    assert asked(node, "POST", name, '["other"]', **one, producer_seq="1")[0] == 204
    stream = client.stream(name)
    assert [record.value for record in stream.read()] == [*range(7)]
    quick = Batching(linger_seconds=0.0)
    with stream.producer("q", epoch=1, batching=quick) as producer:
        producer.append("q").result()
    with (
        pytest.raises(ProducerFailed) as failed,
        stream.producer("q", epoch=1, batching=quick) as other,
    ):
        other.append("r").result()
    assert not failed.value.applied
    closing = {**one, "producer_seq": "7", "stream_closed": "true"}
    assert asked(node, "POST", name, "[7]", **closing)[0] == 200
    assert asked(node, "POST", name, '["other"]', **closing)[0] == 204


def test_producers_fence_and_fail_with_their_types(client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()
    zombie = stream.producer("billing", batching=Batching(linger_seconds=0.0))
    zombie.append("old").result()
    with stream.producer("billing") as producer:
        producer.append("new").result()
        assert producer.epoch == zombie.epoch + 1
    receipt = zombie.append("late")
    with pytest.raises(ProducerFailed) as failed:
        zombie.close()
    assert isinstance(failed.value.cause, ProducerFenced) and isinstance(
        receipt.exception(), ProducerFailed
    )
    assert (failed.value.applied, failed.value.refused, failed.value.unknown) == (1, 1, 0)
    assert [record.value for record in stream.read()] == ["old", "new"]
    with pytest.raises(ValueError, match="closed"):
        producer.append(1)


@pytest.mark.parametrize("last", [(), ({"n": 3}, {"n": 4})])
def test_a_producer_closes_its_stream(client: Client, last: tuple[Any, ...]) -> None:
    stream = client.stream(next(names))
    stream.create()
    with stream.producer(
        "ends", batching=Batching(batch_records=1, linger_seconds=60.0)
    ) as producer:
        for number in range(3):
            producer.append({"n": number})
        closed = producer.close_stream(*last)
        assert closed.closed and closed.offset == stream.head().offset and stream.head().closed
        assert producer.close_stream() == closed
        with pytest.raises(StreamClosed):
            producer.append({"n": 9})
    assert [record.value["n"] for record in stream.read()] == list(range(3 + len(last)))
    with stream.producer("ends") as again:  # the program is run again
        assert again.close_stream().offset == closed.offset
    with pytest.raises(ProducerFailed) as failed, stream.producer() as late:
        late.close_stream({"n": 9})
    assert isinstance(failed.value.cause, StreamClosed)


def test_an_asynchronous_producer_closes_its_stream(node: RunningNode) -> None:
    async def story(client: AsyncClient) -> None:
        stream = client.stream(next(names))
        await stream.create(content_type="text/plain")
        async with stream.producer() as producer:
            await producer.append("a")
            closed = await producer.close_stream("b", "c")
            assert closed == await producer.close_stream() and closed.closed
        assert b"".join([page.body async for page in stream.read().pages()]) == b"abc"

    asynchronously(node, story)


def test_an_exception_in_the_block_does_not_lose_what_was_appended(client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()

    def fail() -> None:
        with stream.producer(batching=Batching(linger_seconds=60.0)) as producer:
            producer.append(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [record.value for record in stream.read()] == [1]


def test_a_full_buffer_makes_appending_wait(client: Client) -> None:
    stream = client.stream(next(names))
    stream.create()
    with stream.producer(
        batching=Batching(batch_bytes=1000, buffer_bytes=3000, in_flight=2)
    ) as producer:
        for number in range(3000):
            producer.append(number)
            assert producer.buffered_bytes <= 3000
    assert [record.value for record in stream.read()] == list(range(3000))


def test_the_asynchronous_verbs(node: RunningNode) -> None:
    async def story(client: AsyncClient) -> None:
        stream = client.stream(next(names))
        assert (await stream.create()).created
        await stream.append(1, 2)
        async with stream.producer(
            "a", batching=Batching(batch_bytes=100, buffer_bytes=300)
        ) as producer:
            receipts = [await producer.append(number) for number in range(3, 100)]
            assert (await receipts[0]).offset
        assert all(receipt.done for receipt in receipts) and producer.applied == 97
        assert [record.value async for record in stream.read()] == list(range(1, 100))
        facts = await stream.head()
        fork = await stream.fork(next(names))
        assert facts.name in [listed.name async for listed in client.streams("verbs/")]
        assert (await stream.trim(keep_bytes=0)).records == 99
        assert (await fork.close()).closed and await fork.exists()
        with pytest.raises(StreamClosed):
            await fork.append(1)
        assert await fork.delete() and not await fork.delete(missing_ok=True)
        failing = await fork_producer(client)
        with pytest.raises(ProducerFailed):
            await failing.close()

    async def fork_producer(client: AsyncClient) -> Any:
        closed = client.stream(next(names))
        await closed.create()
        producer = await closed.producer(batching=Batching(linger_seconds=0.0))
        await (await producer.append(1))
        await closed.close()
        await producer.append(2)
        return producer

    asynchronously(node, story)


def test_a_cancelled_tail_gives_its_connection_back(node: RunningNode) -> None:
    async def story(client: AsyncClient) -> None:
        stream = client.stream(next(names))
        await stream.create()
        async with stream.tail(NOW) as reader:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(reader)
        await stream.append(1)
        assert [record.value async for record in stream.read()] == [1]

    asynchronously(node, story)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_tail_whose_waits_are_cut_short_gives_every_record_once(
    node: RunningNode, live: Live
) -> None:
    async def story(client: AsyncClient) -> None:
        stream = client.stream(next(names))
        await stream.create()

        async def write() -> None:
            for number in range(40):
                await stream.append(number)
                await asyncio.sleep(0.002)
            await stream.close()

        seen, cut = [], 0
        async with stream.tail(START, live=live) as reader, asyncio.TaskGroup() as group:
            group.create_task(write())
            while not reader.closed:
                try:
                    async with asyncio.timeout(0.001):
                        seen += [(await anext(reader)).value]
                except TimeoutError:
                    cut += 1
                except StopAsyncIteration:
                    break
        assert seen == list(range(40)) and reader.closed and cut

    asynchronously(node, story)


def test_a_worker_whose_wait_is_cut_short_goes_on(node: RunningNode) -> None:
    async def story(client: AsyncClient) -> None:
        stream = client.stream("patient/a")
        await stream.create()
        async with client.share("patient", "patient/*", lanes=1) as jobs:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(jobs)
            await stream.append(1)
            assert (await anext(jobs)).value == 1
        assert await client.disband("patient") == 1

    asynchronously(node, story)


def test_asynchronous_workers_share(node: RunningNode) -> None:
    async def story(client: AsyncClient) -> None:
        stream = client.stream("shared/a")
        await stream.create()
        handled: list[int] = []

        async def work() -> None:
            async with client.share("team", "shared/*", lanes=2) as jobs:
                async for job in jobs:
                    handled.append(job.value)
                    if job.value < 0:
                        job.ack()
                        return

        async with client.share("team", "shared/*", lanes=2):
            pass
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(work())
            await stream.append(*range(50))
            while set(range(50)) - set(handled):
                await asyncio.sleep(0.01)
            await stream.append(-1, -1)  # one for each lane
        assert sorted(handled) == [-1, -1, *range(50)]
        assert await client.disband("team") == 2
        with pytest.raises(StreamNotFound):
            await client.stream("groups/team").head()

    asynchronously(node, story)


def test_what_a_worker_did_not_acknowledge_goes_to_another(client: Client) -> None:
    client.stream("handed/a").create()
    with client.share("hands", "handed/a", lanes=1) as first:
        client.stream("handed/a").append(*range(5))
        assert [next(first).value for _ in range(3)] == [0, 1, 2]
        assert list(client.share("hands", "handed/a", lanes=1, wait=False)) == [], (
            "the lane is taken"
        )
    assert [job.value for job in client.share("hands", "handed/a", lanes=1, wait=False)] == [
        2,
        3,
        4,
    ]
    with pytest.raises(StreamExists), client.share("hands", "handed/a", lanes=3):
        pass


def test_a_lease_is_kept_up_while_a_job_takes_long(client: Client) -> None:
    client.stream("slow/a").create()
    taken = threading.Event()
    with client.share("slow", "slow/a", lanes=1, lease_seconds=10.0) as work:
        client.stream("slow/a").append(1)
        job = next(work)
        assert not taken.wait(12.0), "it takes longer than the lease"
        assert list(client.share("slow", "slow/a", lanes=1, lease_seconds=10.0, wait=False)) == []
        job.ack()
    assert (
        list(client.share("slow", "slow/a", lanes=1, lease_seconds=10.0, wait=False)) == []
        and work.leases_lost == 0
    )


def test_what_a_dead_worker_had_is_given_again_when_its_lease_is_over(client: Client) -> None:
    client.stream("dead/a").create()
    dead = client.share("dead", "dead/a", lanes=1, lease_seconds=1.0, handle_seconds=0.0)
    with dead:
        client.stream("dead/a").append(1)
        assert next(dead).value == 1
        with client.share("dead", "dead/a", lanes=1, lease_seconds=1.0) as successor:
            assert next(successor).value == 1


def test_streams_stay_at_their_worker_until_it_leaves(client: Client) -> None:
    streams = [client.stream(f"kept/{number}") for number in range(6)]
    for stream in streams:
        stream.create()
    done: dict[str, list[tuple[str, int]]] = {stream.name: [] for stream in streams}

    def work(jobs: Any) -> None:
        for job in jobs:
            done[job.stream].append((jobs.name, job.value))
            if job.value < 0:
                job.ack()
                return

    def appended(value: int) -> list[str]:
        """Append to each stream, and return the worker that handled that, by stream."""
        for stream in streams:
            stream.append(value)
        wait_until(
            lambda: all(each and each[-1][1] == value for each in done.values()),
            what=f"each stream's record {value}",
        )
        return [each[-1][0] for each in done.values()]

    def share() -> Any:
        return client.share("kept", "kept/*", lanes=4, by="stream")

    with share() as first:
        threads = [threading.Thread(target=work, args=(first,), daemon=True)]
        threads[0].start()
        assert set(appended(1)) == {first.name}
        with share() as second:
            threads.append(threading.Thread(target=work, args=(second,), daemon=True))
            threads[1].start()
            wait_until(
                lambda: sorted(first.lanes + second.lanes) == [0, 1, 2, 3] and second.lanes,
                what="a share of the lanes",
            )
            kept = appended(2)
            assert set(kept) == {first.name, second.name}
            assert [appended(value) for value in (3, 4)] == [kept, kept]
            mine = kept.index(second.name)
            streams[mine].append(-1)
            threads[1].join()
        assert set(appended(5)) == {first.name}
        streams[0].append(-1)
        threads[0].join()
    assert client.disband("kept") == 4


def test_a_name_with_dot_segments_is_refused_and_touches_no_other_stream(client: Client) -> None:
    stream = client.stream("dots-x")
    stream.create()
    with pytest.raises(Refused, match="segments"):
        client.stream("other/../dots-x").delete()
    assert stream.exists()
