"""Requests about a transactional id that come late, on a connection that its client has replaced."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest
from front.test_kafka_producers_in_transactions import NEW, OLD, TransactionalProducer, values
from polling import turns, wait_for
from worlds.kafka import KafkaWire, KafkaWorld, play

from polynya.base.errors import NotLeader
from polynya.front.kafka.errors import Error
from polynya.front.kafka.transactions import refusals
from polynya.routing import rpc
from polynya.service.transactions.calls import ACT, ConnectionUse, TransactionRefused
from polynya.stream.command import Command
from polynya.stream.features.consumer_groups.calls import FetchOffsets, Offsets
from polynya.stream.features.topics.state import Topic
from polynya.stream.features.transactions.commands import TxnAdd, TxnEnd, TxnInit
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.replies import Code, Done

PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


async def opened(world: KafkaWorld) -> KafkaWire:
    """A connection whose first request is answered."""
    wire = await world.wire()
    await wire.ask("ApiVersions", 0)
    return wire


def test_an_older_connection_cannot_end_the_next_transaction() -> None:
    """Both transactions have one epoch in the older protocol."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        former, unused = await opened(world), await opened(world)
        one = TransactionalProducer(former, OLD)
        assert await one.init() == 0
        await one.write(0, b"a")
        one.wire = await opened(world)
        assert await one.end(commit=True) == 0
        await one.write(0, b"half")
        newest = one.wire
        for one.wire in (former, unused):
            assert await one.end(commit=True) == Error.NOT_COORDINATOR
            assert await one.wire.ended(), "the client finds a connection that is closed"
        one.wire = newest
        assert await values(newest, 1) == [b"a"]
        await one.write(0, b"whole")
        assert await one.end(commit=True) == 0
        assert await one.init() == 0
        assert await values(newest, 1) == [b"a", b"half", b"whole"]

    play(story)


def test_a_fenced_instance_gets_its_error_and_leaves_the_live_one_alone() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        two = TransactionalProducer(await opened(world), OLD)
        assert await two.init() == 0
        one.wire = await opened(world)  # newer than that of the live instance
        assert await one.end(commit=True) == Error.INVALID_PRODUCER_EPOCH
        await two.write(0, b"a")
        assert await two.end(commit=True) == 0

    play(story)


def test_a_connection_of_before_the_leaders_term_is_replaced() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        parts = world.front.context.transaction_parts
        parts.connections.leadership_changed(parts.service.group_of(one.id))
        assert await one.end(commit=True) == Error.NOT_COORDINATOR
        assert await one.wire.ended()
        one.wire = await opened(world)
        await one.write(0, b"a")
        assert await one.end(commit=True) == 0

    play(story)


def test_another_nodes_connection_is_not_judged_here() -> None:
    async def story(world: KafkaWorld) -> None:
        parts = world.front.context.transaction_parts
        group = parts.service.group_of("x")
        use = ConnectionUse(group, "x", -1, -1, 1.0, 9)
        assert await parts.connections._judge(use) is None

    play(story)


class Delayed:
    """Commands for coordinators on their way to the core that leads them: the first one of a kind
    waits until it may come, as in a core or a node that is paused."""

    def __init__(self, world: KafkaWorld, kind: type[Command]) -> None:
        self._rpc, self._kind = world.core.service.rpc, kind
        self._at_home = self._rpc.at_home
        self.waits, self.may_come, self.came = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._rpc.at_home = self._pass_on  # type: ignore[method-assign]

    async def _pass_on(self, group: int, kind: int, question: Any, *more: Any, **named: Any) -> Any:
        is_first = kind == ACT and isinstance(question.command, self._kind)
        if not is_first or self.waits.is_set():
            return await self._at_home(group, kind, question, *more, **named)
        self.waits.set()
        await self.may_come.wait()
        try:
            return await self._at_home(group, kind, question, *more, **named)
        finally:
            self.came.set()

    async def come(self) -> None:
        self.may_come.set()
        await self.came.wait()


def test_a_late_init_does_not_fence_the_producer_that_its_client_has_become() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), NEW)
        delayed = Delayed(world, TxnInit)
        given_up = asyncio.ensure_future(one.init())
        await delayed.waits.wait()
        one.wire.close()
        one.wire = await opened(world)
        assert await one.init() == 0
        await one.write(0, b"a")
        await delayed.come()
        assert await one.end(commit=True) == 0
        assert await one.init() == 0
        assert await values(one.wire, 1) == [b"a"]
        with pytest.raises(asyncio.IncompleteReadError):
            await given_up

    play(story)


def test_an_init_that_was_overtaken_is_to_be_repeated() -> None:
    """Both clients are there: the one that is answered last has fenced the other, in their order."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), NEW)
        two = TransactionalProducer(await opened(world), NEW)
        delayed = Delayed(world, TxnInit)
        waiting = asyncio.ensure_future(one.init())
        await delayed.waits.wait()
        assert await two.init() == 0
        await delayed.come()
        assert await waiting == Error.NOT_COORDINATOR
        await two.write(0, b"a")
        assert await two.end(commit=True) == 0
        assert await one.init() == 0
        assert await two.send(0, b"late") == Error.INVALID_PRODUCER_EPOCH

    play(story)


def test_a_late_end_does_not_decide_the_next_transaction() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        await one.write(0, b"a")
        delayed = Delayed(world, TxnEnd)
        given_up = asyncio.ensure_future(one.end(commit=True))
        await delayed.waits.wait()
        one.wire.close()
        one.wire = await opened(world)
        assert await one.end(commit=True) == 0
        await one.write(0, b"half")
        await delayed.come()
        assert await one.end(commit=False) == 0
        assert await one.init() == 0
        assert await values(one.wire, 1) == [b"a"]
        with pytest.raises(asyncio.IncompleteReadError):
            await given_up

    play(story)


def test_a_late_add_begins_no_transaction() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        delayed = Delayed(world, TxnAdd)
        given_up = asyncio.ensure_future(one.add(0))
        await delayed.waits.wait()
        one.wire.close()
        one.wire = await opened(world)
        await one.write(0, b"a")
        assert await one.end(commit=True) == 0
        await delayed.come()
        described = await world.front.context.transactions.describe([one.id])
        assert described[one.id].state in (PREPARE_COMMIT, COMPLETE_COMMIT)
        with pytest.raises(asyncio.IncompleteReadError):
            await given_up

    play(story)


@pytest.mark.parametrize("command", [TxnInit, TxnEnd])
def test_a_client_that_has_gone_is_not_asked_for_again(
    command: type[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request waits for the transaction before, and its connection closes meanwhile."""
    monkeypatch.setattr(refusals, "_FIRST_PAUSE_SECONDS", 0.0)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        await one.write(0, b"a")
        transactions, asked = world.front.context.transactions, list[str]()
        connections = world.front.connections
        name = "init" if command is TxnInit else "end"

        async def concurrent(id_: str, *_: Any, **__: Any) -> NoReturn:
            asked.append(id_)
            for each in connections:
                asyncio.get_running_loop().call_soon(each.abort)
            raise TransactionRefused(Code.TXN_CONCURRENT)

        setattr(transactions, name, concurrent)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await (one.init() if command is TxnInit else one.end(commit=True))
        await turns()
        assert asked == [one.id]

    play(story)


def test_a_request_does_not_cross_nodes_with_a_leadership(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log of this node refuses it; the next leader may have answered its repeat by then."""
    monkeypatch.setattr(rpc, "PATIENCE_SECONDS", 0.0)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        await one.write(0, b"a")
        service = world.core.service
        crossed = list[Command]()

        def refuse(group: int, command: Command, done: Done) -> None:
            done(NotLeader(0))

        def forward(group: int, command: Command, done: Done) -> None:
            crossed.append(command)
            done(NotLeader(0))

        monkeypatch.setattr(service.local, "propose", refuse)
        monkeypatch.setattr(service.proposals, "propose_to", forward)
        assert await one.end(commit=True) == Error.NOT_COORDINATOR
        assert await one.init() == Error.NOT_COORDINATOR
        assert await one.add(0) == [Error.NOT_COORDINATOR]
        assert crossed == []

    play(story)


def test_a_late_offset_does_not_come_into_the_next_transaction() -> None:
    """The next transaction of the first protocol has the same epoch."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        topics = world.front.context.topics
        find, waits, may_go = topics.find, asyncio.Event(), asyncio.Event()

        async def find_late(name: str) -> Topic | None:
            waits.set()
            await may_go.wait()
            return await find(name)

        topics.find = find_late  # type: ignore[method-assign]
        given_up = asyncio.ensure_future(one.commit_offset("g", 3))
        await waits.wait()
        topics.find = find  # type: ignore[method-assign]
        one.wire.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await given_up
        one.wire = await opened(world)
        assert await one.end(commit=False) == 0
        assert await one.commit_offset("g", 5) == 0
        may_go.set()
        await turns()
        assert await one.end(commit=True) == 0

        async def stable() -> Offsets | None:
            """The commit is answered before its offsets are stable."""
            found = await world.front.context.groups.call(FetchOffsets("g"))
            assert isinstance(found, Offsets)
            return found if found.entries and not found.unstable else None

        found = await wait_for(stable)
        assert [each.offset for each in found.entries] == [5]

    play(story)
