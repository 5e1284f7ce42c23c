"""The calls to the coordinators of transactions, on one core."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from worlds.service import World

from polynya.base.limits import MARKED_MAX
from polynya.service.transactions.calls import TransactionRefused
from polynya.service.transactions.coordinator import TransactionService
from polynya.stream.command import Command
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.replies import Code, Done

MINUTE = 60_000


async def refusal(call: Awaitable[object]) -> Code:
    with pytest.raises(TransactionRefused) as refused:
        await call
    return refused.value.code


async def begun(world: World) -> tuple[TransactionService, list[tuple[int, int, str]]]:
    """The service, and two streams in two groups."""
    names = [f"kafka/orders/{number}" for number in range(8)]
    streams = []
    for name in names:
        reply = await world.create(name)
        streams.append((world.service.group_of(name), reply.uid, name))
    other = next(each for each in streams if each[0] != streams[0][0])
    return world.engine.transactions, [streams[0], other]


def test_a_transaction_commits() -> None:
    async def story() -> None:
        world = World().start()
        transactions, streams = await begun(world)
        pair = await transactions.init("a", MINUTE)
        assert pair[0] >> 47 == transactions.group_of("a")
        assert pair[1] == 0
        assert await refusal(transactions.end("a", pair, commit=True, version=2)) == Code.TXN_STATE
        assert await transactions.add("a", pair, streams[:1], [], version=2) == 1
        assert await transactions.add("a", pair, streams, ["g"], version=2) == 1
        uids = sorted(uid for _, uid, _ in streams)
        number, added, groups = await transactions.participants("a", pair)
        assert (number, sorted(added), groups) == (1, uids, ["g"])
        then = await transactions.end("a", pair, commit=True, version=2)
        assert then == (pair[0], 1)
        await world.settle()
        assert await transactions.end("a", pair, commit=True, version=2) == then, "a repeat"
        assert (await transactions.describe(["a", "b"]))["a"].state.name == "COMPLETE_COMMIT"
        assert await transactions.add("a", then, streams, [], version=2) == 2
        await world.stop()

    asyncio.run(story())


def test_wrong_input_changes_nothing() -> None:
    async def story() -> None:
        world = World().start()
        transactions, streams = await begun(world)
        pair = await transactions.init("a", MINUTE)
        before = world.state()
        too_many = streams[:1] * (MARKED_MAX + 1)
        for call, code in (
            (transactions.add("b", pair, streams, [], version=2), Code.NOT_FOUND),
            (transactions.add("a", (pair[0], 1), streams, [], version=2), Code.FENCED),
            (transactions.add("a", (pair[0] + 1, 0), streams, [], version=2), Code.FENCED),
            (transactions.add("a", (-1, -1), streams, [], version=2), Code.FENCED),
            (transactions.add("a", pair, too_many, [], version=2), Code.TOO_LARGE),
            (transactions.end("a", (-1, -1), commit=False, version=2), Code.FENCED),
            (transactions.end("a", pair, commit=True, version=1), Code.TXN_STATE),
            (transactions.end("b", pair, commit=False, version=2), Code.NOT_FOUND),
            (transactions.init("a", MINUTE, (pair[0], 7)), Code.FENCED),
            (transactions.participants("a", pair), Code.TXN_STATE),
            (transactions.participants("a", (pair[0], 1)), Code.FENCED),
            (transactions.abort("a"), Code.TXN_STATE),
            (transactions.abort("b"), Code.NOT_FOUND),
        ):
            assert await refusal(call) == code
        assert world.state() == before
        await world.stop()

    asyncio.run(story())


def test_an_operator_aborts_and_lists() -> None:
    async def story() -> None:
        world = World().start()
        transactions, streams = await begun(world)
        first = await transactions.init("a", MINUTE)
        second = await transactions.init("b", MINUTE)
        await transactions.add("a", first, streams, [], version=2)
        world.clock.ms += 1000
        await transactions.add("b", second, streams, [], version=2)

        async def listed(**filters: object) -> list[str]:
            return [each.id for each in await transactions.list_transactions(**filters)]  # type: ignore[arg-type]

        assert await listed() == ["a", "b"]
        assert await listed(open_ms=500) == ["a"]
        assert await listed(producers=[second[0]]) == ["b"]
        assert await listed(states=[TransactionState.EMPTY]) == []
        assert (await transactions.abort("a")).number == 1
        assert await refusal(transactions.end("a", first, commit=True, version=2)) == Code.FENCED
        assert await listed(states=[TransactionState.ONGOING]) == ["b"]
        await world.settle()
        assert await listed(states=[TransactionState.COMPLETE_ABORT]) == ["a"]
        assert await transactions.init("a", MINUTE) == (first[0], 2)
        await world.stop()

    asyncio.run(story())


def test_the_next_transaction_is_logged_right_behind_the_acknowledgement_of_the_one_before() -> (
    None
):
    """Ask for it once: the core of the coordinator waits, and the log refuses none."""

    async def story() -> None:
        world = World().start()
        transactions, streams = await begun(world)
        pair = await transactions.init("a", MINUTE)
        await transactions.add("a", pair, streams, [], version=2)
        proposals, owner_group = world.service.proposals, transactions.group_of("a")
        propose_to, logged = proposals.propose_to, list[str]()

        def propose(group: int, command: Command, done: Done) -> None:
            if group == owner_group and not isinstance(command, TxnMarkers):
                logged.append(type(command).__name__)
            propose_to(group, command, done)

        proposals.propose_to = propose  # type: ignore[method-assign]
        then = await transactions.end("a", pair, commit=True, version=2)
        assert await transactions.add("a", then, streams, [], version=2) == 2
        assert logged[0] == "TxnEnd"
        assert logged[-2:] == ["AcknowledgeAll", "TxnAdd"]
        assert logged.count("TxnAdd") == 1
        await world.stop()

    asyncio.run(story())
