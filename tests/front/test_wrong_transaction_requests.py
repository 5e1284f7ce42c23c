"""Requests about transactions that are wrong: each gets Kafka's error, changes no group's state, and
leaves the open transaction of another producer as it is."""

from __future__ import annotations

import pytest
from front.test_kafka_producers_in_transactions import (
    NEW,
    OLD,
    TransactionalProducer,
    values,
    with_protocols,
)
from front.test_transactions_of_tokens import settle
from worlds.kafka import KafkaWorld, play

from polynya.front.kafka.errors import Error
from polynya.service.transactions import coordinator

FENCED = Error.PRODUCER_FENCED
STALE = Error.INVALID_PRODUCER_EPOCH  # of a batch, of offsets, and for old clients
UNKNOWN = Error.INVALID_PRODUCER_ID_MAPPING


async def errors(one: TransactionalProducer) -> list[int]:
    """Ask for everything that a producer may ask for; return the errors."""
    found = []
    if one.protocol == OLD:
        found += await one.add(0)
    return [
        *found,
        await one.send(0, b"wrong", sequence=0),
        await one.commit_offset("g", 7),
        await one.end(commit=True),
        await one.end(commit=False),
    ]


@with_protocols()
def test_a_wrong_pair_or_id_changes_nothing(protocol: int) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        own = TransactionalProducer(await world.wire(), protocol, "own")
        other = TransactionalProducer(await world.wire(), protocol, "other")
        for each in (own, other):
            assert await each.init() == 0
            await each.write(0, each.id.encode())
            assert await each.commit_offset("g", 5) == 0
        producer, epoch = own.pair
        fenced = [FENCED] * 2 if protocol == NEW else [STALE] * 2
        added = [] if protocol == NEW else [STALE]
        before = world.core.state()
        for id_, pair, expected in (
            ("own", (producer, epoch + 1), [*added, STALE, STALE, *fenced]),
            ("own", (producer + 1, epoch), [*added, STALE, STALE, *fenced]),
            ("own", other.pair, [*added, STALE, STALE, *fenced]),
            ("other", own.pair, [*added, STALE, STALE, *fenced]),
            ("none", own.pair, [UNKNOWN] * (4 + len(added))),
        ):
            wrong = TransactionalProducer(await world.wire(), protocol, id_)
            wrong.pair = pair
            assert await errors(wrong) == expected, (id_, pair)
            if id_ != "none":
                assert await wrong.init(pair=pair) == FENCED
        assert world.core.state() == before
        for each in (own, other):
            assert await each.end(commit=True) == 0
            assert await each.init() == 0
        assert await values(own.wire, 1) == [b"own", b"other"]

    play(story)


@with_protocols()
def test_an_unknown_id_is_new_whatever_pair_is_sent(protocol: int) -> None:
    """Kafka does the same: platformatic's first request has (0, 0), and an id may have expired."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        for id_, pair in (("first", (0, 0)), ("expired", (77, 5))):
            one = TransactionalProducer(await world.wire(), protocol, id_)
            assert await one.init(pair=pair) == 0
            assert one.pair[0] not in (0, 77) and one.pair[1] == 0
            await one.write(0, id_.encode())
            assert await one.end(commit=True) == 0

    play(story)


@with_protocols()
def test_a_transaction_with_all_its_participants_takes_no_more(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.stream.features.transactions.rules.MARKED_MAX", 2)
    monkeypatch.setattr(coordinator, "MARKED_MAX", 2)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        one = TransactionalProducer(await world.wire(), protocol)
        assert await one.init() == 0
        await one.write(0, b"a")
        assert await one.commit_offset("g", 5) == 0
        before = world.core.state()
        if protocol == OLD:
            assert await one.add(1) == [Error.POLICY_VIOLATION]
        else:
            assert await one.send(1, b"b") == Error.POLICY_VIOLATION
        assert await one.commit_offset("h", 5) == Error.POLICY_VIOLATION
        assert world.core.state() == before
        await one.write(0, b"c")
        assert await one.end(commit=True) == 0
        assert await one.init() == 0
        assert await values(one.wire, 1) == [b"a", b"c"]

    play(story)


def test_markers_of_a_client_change_nothing() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), NEW)
        assert await one.init() == 0
        await one.write(0, b"a")
        present = one.pair
        before = world.core.state()
        assert await settle(one, commit=True) == Error.INVALID_TXN_STATE
        one.pair = (present[0] + 1, 0)
        assert await settle(one, commit=False) == UNKNOWN
        one.pair = (present[0], -2)
        assert await settle(one, commit=False) == STALE
        one.pair = present
        assert world.core.state() == before
        assert await one.end(commit=True) == 0
        assert await one.init() == 0
        assert await values(one.wire, 1) == [b"a"]

    play(story)
