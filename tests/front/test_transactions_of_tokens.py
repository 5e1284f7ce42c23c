"""Access to transactional ids, and the keys of administrators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from front.test_kafka_access import Gate, guarded
from front.test_kafka_producers_in_transactions import NEW, OLD, TransactionalProducer, ask, values
from worlds.kafka import KafkaWire, KafkaWorld, play

from polynya.front.kafka.errors import Error
from polynya.front.kafka.transactions.admin import matcher_of

FORBIDDEN = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_token_needs_append_on_the_id_and_on_each_topic(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        await world.topic("t")
        gate.token(
            "own", "append:kafka/x/", "append:kafka/t/", "read:kafka/t/", "subscribe:kafka/g/"
        )
        gate.token("id", "append:kafka/x/")
        gate.token("other", "append:kafka/y/", "append:kafka/t/", "subscribe:kafka/g/")
        for protocol in (OLD, NEW):
            own = TransactionalProducer(await gate.wire(world, "own"), protocol)
            other = TransactionalProducer(await gate.wire(world, "other"), protocol)
            assert await other.init() == FORBIDDEN
            found = await ask(other.wire, "FindCoordinator", 2, key="x", key_type=1)
            assert found.error_code.value == FORBIDDEN
            assert await own.init() == 0
            other.pair = own.pair
            assert await other.add(0) == [FORBIDDEN]
            assert await other.send(0, b"a") == FORBIDDEN
            assert await other.commit_offset("g", 1) == FORBIDDEN
            assert await other.end(commit=True) == FORBIDDEN
            part = TransactionalProducer(await gate.wire(world, "id"), protocol)
            part.pair = own.pair
            assert await part.add(0) == [Error.TOPIC_AUTHORIZATION_FAILED]
            assert await part.send(0, b"a") == Error.TOPIC_AUTHORIZATION_FAILED
            assert await part.commit_offset("g", 1) == Error.GROUP_AUTHORIZATION_FAILED
            await own.write(0, b"a")
            assert await own.commit_offset("g", 1) == 0
            assert await own.commit_offset("h", 1) == Error.GROUP_AUTHORIZATION_FAILED
            assert await own.end(commit=True) == 0
            refused = await settle(own, commit=False)
            assert refused == Error.CLUSTER_AUTHORIZATION_FAILED
        listed = await ask(other.wire, "ListTransactions", 0)
        assert not listed.transaction_states
        listed = await ask(own.wire, "ListTransactions", 0)
        assert [each.transactional_id for each in listed.transaction_states] == ["x"]

    guarded(tmp_path, story)


async def settle(one: TransactionalProducer, *, commit: bool) -> int:
    """Ask for markers, as an administrator."""
    marker = {
        "producer_id": one.pair[0],
        "producer_epoch": one.pair[1],
        "transaction_result": commit,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    answer = await ask(one.wire, "WriteTxnMarkers", 1, markers=[marker])
    return int(answer.markers[0].topics[0].partitions[0].error_code.value)


def test_an_administrator_aborts_an_open_transaction_and_commits_none() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), OLD)
        assert await settle(one, commit=False) == Error.INVALID_PRODUCER_ID_MAPPING
        assert await one.init() == 0
        await one.write(0, b"a")
        asked = [{"name": "t", "partition_indexes": [0, 9]}]
        found = await ask(one.wire, "DescribeProducers", 0, topics=asked)
        known, missing = found.topics[0].partitions
        assert missing.error_code.value == Error.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (each.producer_id, each.producer_epoch, each.current_txn_start_offset)
            for each in known.active_producers
        ] == [(*one.pair, 0)]
        assert await settle(one, commit=True) == Error.INVALID_TXN_STATE
        assert await settle(one, commit=False) == 0
        assert await one.end(commit=True) == Error.INVALID_PRODUCER_EPOCH
        assert await one.init() == 0
        assert await values(one.wire, 1) == []

    play(story)


def test_transactions_are_described_and_listed() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        one, two = (TransactionalProducer(wire, OLD, id_) for id_ in ("x1", "y2"))
        assert [await one.init(), await two.init()] == [0, 0]
        await one.write(0, b"a")
        found = await ask(wire, "DescribeTransactions", 0, transactional_ids=["x1", "z", ""])
        states = {each.transactional_id: each for each in found.transaction_states}
        assert states["x1"].transaction_state == "Ongoing"
        assert [(each.topic, each.partitions) for each in states["x1"].topics] == [("t", (0,))]
        assert states["z"].error_code.value == Error.TRANSACTIONAL_ID_NOT_FOUND
        assert states[""].error_code.value == Error.INVALID_REQUEST

        async def listed(**filters: Any) -> list[str]:
            every: dict[str, Any] = {
                "state_filters": [], "producer_id_filters": [], "duration_filter": -1,
                "transactional_id_pattern": None,
            }  # fmt: skip
            answer = await ask(wire, "ListTransactions", 2, **every | filters)
            assert not answer.error_code.value
            return [each.transactional_id for each in answer.transaction_states]

        assert await listed() == ["x1", "y2"]
        assert await listed(state_filters=["Ongoing", "None"]) == ["x1"]
        assert await listed(state_filters=["None"]) == []
        assert await listed(producer_id_filters=[two.pair[0]]) == ["y2"]
        assert await listed(duration_filter=3_600_000) == []
        assert await listed(transactional_id_pattern="x.*") == ["x1"]
        every = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        answer = await ask(wire, "ListTransactions", 2, transactional_id_pattern="(x+)+", **every)
        assert answer.error_code.value == Error.INVALID_REGULAR_EXPRESSION

    play(story)


@pytest.mark.parametrize(
    ("pattern", "id_", "expected"),
    [
        ("a.c", "abc", True),
        ("a.c", "abbc", False),
        (".*", "", True),
        ("a.*b.*c", "a-b-b-c", True),
        ("a.*b.*c", "a-c", False),
        (r"a\.c", "a.c", True),
        (r"a\.c", "abc", False),
        ("any", "any", True),
        (".*a" * 20, "a" * 200 + "b", False),
    ],
)
def test_a_pattern_of_ids_matches_whole_ids(pattern: str, id_: str, expected: bool) -> None:
    matches = matcher_of(pattern)
    assert matches is not None and matches(id_) is expected


@pytest.mark.parametrize("pattern", ["a+", "(a)", "[a]", "a|b", "a{2}", "*", "\\d", "x" * 2000])
def test_other_patterns_are_refused(pattern: str) -> None:
    assert matcher_of(pattern) is None


async def feature(wire: KafkaWire, version: int) -> tuple[int, int, int] | None:
    """Return the least, the highest and the finalized version of the protocol, if it is told."""
    who = {"client_software_name": "a", "client_software_version": "1"}
    answer = await ask(wire, "ApiVersions", version, **who)
    supported = {each.name: each for each in answer.supported_features}
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    found = supported.get("transaction.version")
    if found is None:
        assert "transaction.version" not in finalized
        return None
    assert answer.finalized_features_epoch >= 4
    return found.min_version, found.max_version, finalized["transaction.version"]


def test_the_newer_protocol_is_told_once_all_nodes_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await feature(wire, 3) == (1, 2, 2)
        assert await feature(wire, 4) == (0, 2, 2)
        monkeypatch.setattr(type(world.core.service), "level", property(lambda _: 3))
        assert await feature(wire, 3) is None
        found = await ask(wire, "FindCoordinator", 2, key="x", key_type=1)
        assert found.error_code.value == Error.COORDINATOR_NOT_AVAILABLE
        assert "upgrade" in found.error_message
        one = TransactionalProducer(wire, OLD)
        assert await one.init() == Error.COORDINATOR_NOT_AVAILABLE

    play(story)
