"""The client against a real server through a network that cuts, delays, truncates and repeats:
nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fault_proxy import FaultProxy, Faults, fault_proxy
from free_ports import refusing_url
from long_tests import long
from product import RunningNode, running_node

from polynya.client import (
    START,
    AsyncClient,
    Batching,
    Client,
    Live,
    OutcomeUnknown,
    ProducerFailed,
    Retry,
    Unavailable,
)

RECORDS = 1500
BATCHING = Batching(batch_records=20, linger_seconds=0.001)
RETRY = Retry(seconds=60.0, pause_seconds=0.01, pause_seconds_max=0.1)
KINDS = {
    "cuts": Faults(cut=1.0),
    "refusals": Faults(refuse=0.5, cut=1.0),
    "delays": Faults(delay=0.2, cut=0.3),
    "replays": Faults(replay=1.0, cut=1.0),
    "repeats": Faults(repeat=0.12),
    "all": Faults(refuse=0.2, cut=0.7, replay=0.5, delay=0.1, repeat=0.01),
}
FEW_KINDS = ("replays", "all")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node") / "data", "--cores", "2") as node:
        yield node


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


def truth(url: str, name: str) -> list[int]:
    """Return the stream's records, read without faults."""
    with Client(url) as client:
        return [record.value["n"] for record in client.stream(name).read()]


def follow(url: str, name: str, live: Live, into: list[int]) -> threading.Thread:
    def run() -> None:
        with (
            Client(url, retry=RETRY) as client,
            client.stream(name).tail(START, live=live) as reader,
        ):
            into.extend(record.value["n"] for record in reader)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.process
@pytest.mark.parametrize("seed", [1, *long([2])])
@pytest.mark.parametrize(
    "kind", [*FEW_KINDS, *long(kind for kind in KINDS if kind not in FEW_KINDS)]
)
def test_appends_are_stored_once_and_tails_have_no_gap(
    node: RunningNode, kind: str, seed: int
) -> None:
    name = f"faults/{kind}-{seed}"
    with (
        fault_proxy(address(node.url), KINDS[kind], seed) as proxy,
        Client(proxy.url, retry=RETRY) as client,
    ):
        stream = client.stream(name)
        stream.create()
        seen: dict[Live, list[int]] = {"sse": [], "long-poll": []}
        threads = [follow(proxy.url, name, live, into) for live, into in seen.items()]
        with stream.producer(batching=BATCHING) as producer:
            receipts = [
                producer.append({"n": number, "fill": "x" * (number % 200)})
                for number in range(RECORDS)
            ]
        assert all(receipt.done() for receipt in receipts) and producer.applied == RECORDS
        stream.close()
        for thread in threads:
            thread.join(60)
        read = [record.value["n"] for record in stream.read(max_bytes=10_000)]
        faults = sum(proxy.counts.values()) - proxy.counts["connections"]
    expected = list(range(RECORDS))
    assert truth(node.url, name) == expected, proxy.counts
    assert seen == {"sse": expected, "long-poll": expected} and read == expected
    assert faults > 5, f"this proves nothing: {proxy.counts}"


@pytest.mark.process
def test_the_asynchronous_shell_does_the_same(node: RunningNode) -> None:
    name = "faults/async"

    async def everything(proxy: FaultProxy) -> list[int]:
        async with AsyncClient(proxy.url, retry=RETRY) as client:
            stream = client.stream(name)
            await stream.create()
            seen: list[int] = []

            async def follow() -> None:
                async with stream.tail(START) as reader:
                    seen.extend([record.value["n"] async for record in reader])

            async with asyncio.TaskGroup() as group:
                group.create_task(follow())
                async with await stream.producer("named", batching=BATCHING) as producer:
                    for number in range(RECORDS):
                        receipt = await producer.append({"n": number})
                    assert (await receipt).offset
                await stream.close()
            return seen

    with fault_proxy(address(node.url), KINDS["all"], 3) as proxy:
        assert asyncio.run(everything(proxy)) == list(range(RECORDS))
    assert truth(node.url, name) == list(range(RECORDS))


@pytest.mark.process
def test_workers_are_given_everything_at_least_once(node: RunningNode) -> None:
    handled: Counter[int] = Counter()
    lock = threading.Lock()
    everything = threading.Event()

    def work(url: str) -> None:
        with (
            Client(url, retry=RETRY) as client,
            client.share("crew", "jobs/*", lanes=3, lease_seconds=2.0) as jobs,
        ):
            for job in jobs:
                with lock:
                    handled[job.value["n"]] += 1
                    if len(handled) == 300:
                        everything.set()
                if everything.is_set():
                    return

    with (
        fault_proxy(address(node.url), Faults(cut=0.3, delay=0.1, refuse=0.1), 5) as proxy,
        Client(node.url) as client,
    ):
        for name in ("jobs/a", "jobs/b"):
            client.stream(name).create()
        with client.share("crew", "jobs/*", lanes=3, lease_seconds=2.0):
            pass  # the group is there before the first record
        workers = [threading.Thread(target=work, args=(proxy.url,)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for number in range(0, 300, 10):
            client.stream("jobs/a" if number % 20 else "jobs/b").append(
                *[{"n": number + more} for more in range(10)]
            )
        assert everything.wait(60), f"{300 - len(handled)} of 300 are missing; {proxy.counts}"
        client.stream("jobs/a").append(*[{"n": -1}] * 9)  # each waiting caller returns
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
    assert set(range(300)) <= set(handled)


@pytest.mark.process
def test_a_server_that_is_killed_and_comes_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Restart the server on another port behind a proxy without faults."""
    with (
        running_node(tmp_path / "data") as first,
        fault_proxy(address(first.url), Faults(), 1) as proxy,
        Client(proxy.url, retry=RETRY) as client,
    ):
        stream = client.stream("killed")
        stream.create()
        seen: list[int] = []
        thread = follow(proxy.url, "killed", "auto", seen)
        producer = stream.producer(batching=BATCHING)
        for number in range(RECORDS // 2):
            producer.append({"n": number})
        first.kill()
        rest = threading.Thread(
            target=lambda: [
                producer.append({"n": number}) for number in range(RECORDS // 2, RECORDS)
            ]
        )
        rest.start()  # it waits when there is no more room
        with running_node(tmp_path / "data") as second:
            proxy.server = address(second.url)
            rest.join(60)
            producer.close()
            stream.close()
            thread.join(60)
            assert truth(second.url, "killed") == seen == list(range(RECORDS))


def test_without_a_server_nothing_is_claimed() -> None:
    with refusing_url() as url, Client(url, retry=Retry(seconds=0.5, pause_seconds=0.01)) as client:
        stream = client.stream("gone", content_type="application/json")
        with pytest.raises(Unavailable):
            stream.append(1)
        with pytest.raises(Unavailable):
            stream.head()
        producer = stream.producer()
        receipt = producer.append(1)
        with pytest.raises(ProducerFailed) as failed:
            producer.close()
        assert (failed.value.applied, failed.value.refused, failed.value.unknown) == (0, 1, 0)
        assert isinstance(receipt.exception(), ProducerFailed)


@pytest.mark.process
def test_an_append_whose_answer_is_cut_off_is_unknown(node: RunningNode) -> None:
    with Client(node.url) as client:
        client.stream("faults/plain").create()
    with (
        fault_proxy(address(node.url), Faults(cut=1.0, cut_bytes=1), 1) as proxy,
        Client(proxy.url) as client,
        pytest.raises(OutcomeUnknown),
    ):
        client.stream("faults/plain", content_type="application/json").append({"n": 1})
