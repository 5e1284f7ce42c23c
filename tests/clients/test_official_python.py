"""The official Python client from PyPI, feature by feature, against a node; readers that resume
over restarts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from durable_streams import (
    AsyncDurableStream,
    DurableStream,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
    astream,
    stream,
)
from long_tests import long
from polling import wait_until
from product import running_node
from worlds.steady_node import steady_node

JSON = "application/json"

pytestmark = pytest.mark.process


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, id="2-cores"),
        pytest.param(1, id="1-core", marks=pytest.mark.long),
    ],
)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_node(
        tmp_path_factory.mktemp("node") / "data", "--cores", str(request.param)
    ) as server:
        yield f"{server.url}/v1/stream/python/"


@pytest.fixture
def url(root: str) -> str:
    return root + secrets.token_hex(4)


def test_a_stream_is_made_filled_read_described_and_deleted(url: str) -> None:
    with DurableStream.create(url, content_type=JSON, body='[{"n": 0}]') as made:
        first = made.append({"n": 1}).next_offset
        assert made.append([2, 3]).next_offset > first
        assert made.stream(live=False).read_json() == [{"n": 0}, {"n": 1}, [2, 3]]
        assert made.stream(offset=first, live=False).read_json() == [[2, 3]]
        with pytest.raises(StreamExistsError):
            DurableStream.create(url, content_type="text/plain")
        with DurableStream.connect(url) as connected:
            head = connected.head()
            assert (head.content_type, head.offset) == (JSON, made.head().offset)
        made.delete()
        with pytest.raises(StreamNotFoundError):
            DurableStream.connect(url)
        with pytest.raises(StreamNotFoundError):
            stream(url, live=False)


def test_text_and_bytes_come_back_as_they_are(url: str) -> None:
    with DurableStream.create(url, content_type="text/plain") as text:
        for piece in ("one ", "two\r\n", "drei ä"):
            text.append(piece)
        assert text.stream(live=False).read_text() == "one two\r\ndrei ä"
    data = bytes(range(256)) * 300
    with DurableStream.create(url + "-bytes", content_type="application/octet-stream") as binary:
        binary.append(data)
        assert binary.stream(live=False).read_bytes() == data
        assert b"".join(binary.stream(live=False)) == data


def test_appends_of_many_threads_are_batched_and_none_is_lost(url: str) -> None:
    posts = []
    watch = httpx.Client(
        event_hooks={"request": [lambda asked: posts.append(asked.method)]}, timeout=60
    )
    with (
        watch,
        DurableStream.create(url, content_type=JSON, client=watch) as made,
        ThreadPoolExecutor(16) as threads,
    ):
        list(threads.map(lambda number: made.append({"n": number}), range(200)))
        assert sorted(item["n"] for item in made.stream(live=False).read_json()) == list(range(200))
        assert posts.count("POST") < 200


def test_a_sequence_that_does_not_grow_is_refused(url: str) -> None:
    with DurableStream.create(url, content_type=JSON) as made:
        made.append(1, seq="b")
        with pytest.raises(SeqConflictError):
            made.append(2, seq="a")
        assert made.stream(live=False).read_json() == [1]


@pytest.mark.parametrize("live", ["auto", "sse", "long-poll"])
def test_live_reads_give_what_was_there_then_what_comes(live: str, url: str) -> None:
    with DurableStream.create(url, content_type=JSON) as made, ThreadPoolExecutor(1) as thread:
        made.append(0)
        got = []
        with stream(url, offset="-1", live=live) as reading:
            for item in reading.iter_json():
                got.append(item)
                if len(got) == 1:
                    thread.submit(lambda: [made.append(number) for number in range(1, 30)])
                if len(got) == 30:
                    break
        assert got == list(range(30))


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_the_asynchronous_client_does_the_same(live: str, url: str) -> None:
    async def story() -> list[int]:
        async with await AsyncDurableStream.create(url, content_type=JSON) as made:
            await made.append(0)
            got: list[int] = []
            async with (
                await astream(url, offset="-1", live=live) as reading,
                asyncio.TaskGroup() as tasks,
            ):
                async for event in reading.iter_events(mode="json"):
                    got += event.data if isinstance(event.data, list) else [event.data]
                    if got == [0]:
                        tasks.create_task(append_all(made))
                    if len(got) == 20:
                        break
            assert await (await made.stream(live=False)).read_json() == got
            return got

    async def append_all(made: AsyncDurableStream) -> None:
        for number in range(1, 20):
            await made.append(number)

    assert asyncio.run(story()) == list(range(20))


def test_a_fork_begins_as_its_source_and_goes_its_own_way(url: str) -> None:
    with DurableStream.create(url, content_type=JSON) as source:
        at = [source.append(number).next_offset for number in range(3)]
        asked = {"Stream-Forked-From": urlsplit(url).path, "Stream-Fork-Offset": at[1]}
        with DurableStream.create(url + "-fork", content_type=JSON, headers=asked):
            pass
        with DurableStream.connect(url + "-fork") as fork:
            fork.append("fork")
            assert fork.stream(live=False).read_json() == [0, 1, "fork"]
        assert source.stream(live=False).read_json() == [0, 1, 2]


def test_a_stream_with_a_time_to_live_goes(url: str) -> None:
    def gone() -> bool:
        try:
            return not made.head().exists
        except StreamNotFoundError:
            return True

    with DurableStream.create(url, content_type=JSON, ttl_seconds=1) as made:
        wait_until(gone, what="the stream to expire")


@pytest.mark.parametrize("live", ["long-poll", *long(["sse"])])
def test_a_reader_resumes_where_it_was_after_a_crash_and_a_restart(
    live: str, tmp_path: Path
) -> None:
    with steady_node(tmp_path / "data") as server:
        url = f"{server.url}/v1/stream/followed"
        got: list[int] = []
        offset = "-1"
        DurableStream.create(url, content_type=JSON).close()
        for again in (server.crash, server.restart, None):
            wanted = len(got) + 10
            with DurableStream.connect(url) as writer:
                for number in range(len(got), wanted):
                    writer.append(number)
            with stream(url, offset=offset, live=live) as reading:
                for event in reading.iter_events(mode="json"):
                    got += event.data if isinstance(event.data, list) else [event.data]
                    offset = event.next_offset
                    if len(got) >= wanted:
                        break
            if again:
                again()
        assert got == list(range(30))
