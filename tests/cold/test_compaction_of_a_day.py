"""Topics of Connect, a schema registry and Kafka Streams over a day of virtual time: their keys change all the
time, and what is stored, and what a restart reads, stays as small as the keys."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from worlds.cold import play
from worlds.compaction import KeyedTier, Pair

from polynya.cold.compaction.planner import CompactionPolicy
from polynya.registry.records import (
    AVRO,
    Content,
    Version,
    config_record,
    marker_record,
    schema_record,
)

MINUTES = 24 * 60
FLUSH_MINUTES = 10
UPDATES = 10  # of a changelog in a minute
SCHEMA = '{"type":"record","name":"order","fields":[{"name":"id","type":"long"}]}'
POLICY = CompactionPolicy(delete_retention_ms=3_600_000)


class Churn(NamedTuple):
    """The records of a topic in a minute of the day, and how many keys it has at most."""

    records: list[Pair]
    keys: int


def connect_config(minute: int) -> Churn:
    """Three connectors with two tasks; a rebalance writes all each 15 minutes, and one connector is
    deleted and created again each two hours."""
    names = [f"{kind}-{at}" for at in range(3) for kind in ("connector", "commit")]
    names += [f"task-{at}-{task}" for at in range(3) for task in range(2)]
    made: list[Pair] = []
    if minute % 15 == 0:
        made = [(name.encode(), b'{"properties":{"minute":%d}}' % minute) for name in names]
    if minute % 120 == 7:
        made = [(name.encode(), None) for name in names if "-2" in name]
    return Churn(made, len(names))


def connect_offsets(minute: int) -> Churn:
    """Sources of three connectors commit each minute."""
    files = [b'["source-%d",{"file":"%d"}]' % (at, file) for at in range(3) for file in range(2)]
    return Churn([(key, b'{"position":%d}' % minute) for key in files], len(files))


def connect_status(minute: int) -> Churn:
    """Workers tell of each connector and task each minute, and topics are never new."""
    keys = [b"status-connector-%d" % at for at in range(3)]
    keys += [b"status-task-%d-%d" % (at, task) for at in range(3) for task in range(2)]
    return Churn(
        [(key, b'{"state":"RUNNING","generation":%d}' % minute) for key in keys], len(keys)
    )


def schemas(minute: int) -> Churn:
    """A client registers, changes and reads compatibility; each write marks the newest id."""
    version = Version(f"orders-{minute % 5}-value", 1, 1 + minute % 5, Content(AVRO, SCHEMA))
    level = {"compatibilityLevel": ("BACKWARD", "FULL")[minute % 2]}
    records = [schema_record(version), config_record(version.subject, level), marker_record(1, 5)]
    return Churn(list(records), 11)


def changelog(minute: int) -> Churn:
    """A Streams application counts words; a quarter of the keys expires each hour."""
    keys = [b"word-%d" % ((minute * 7 + each) % 40) for each in range(UPDATES)]
    made: list[Pair] = [(key, (minute * UPDATES + at).to_bytes(8)) for at, key in enumerate(keys)]
    if minute % 60 == 30:
        made += [(b"word-%d" % each, None) for each in range(10)]
    return Churn(made, 40)


TOPICS = {
    "connect-configs": connect_config,
    "connect-offsets": connect_offsets,
    "connect-status": connect_status,
    "_schemas": schemas,
    "app-counts-changelog": changelog,
}


def stored_records(tier: KeyedTier, name: str) -> int:
    """Count the records in packs."""
    index = tier.machine(name).packs.index_of(tier.stream(name))
    return sum(cold.records - cold.missing_records for cold in index)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_stays_as_small_as_its_keys_over_a_day(topic: str) -> None:
    churn, name = TOPICS[topic], f"kafka/{topic}/0"

    async def story() -> None:
        tier = KeyedTier()
        tier.policies = {name: POLICY}
        written = most = 0
        for minute in range(MINUTES):
            records, keys = churn(minute)
            if records:
                tier.produce(*records, name=name)
                written += len(records)
            tier.world.now += 60_000
            if minute % FLUSH_MINUTES == FLUSH_MINUTES - 1:
                await tier.flush()
                await tier.merger.merge_due()
                await tier.compactor.compact_due()
                most = max(most, stored_records(tier, name))
        per_flush = written // (MINUTES // FLUSH_MINUTES)
        assert written > 10 * keys, "there is nothing to compact"
        # by the dirty ratio of 0.5 as many again; and tombstones of the last hour
        assert most <= 3 * (keys + per_flush) + 40, f"{most} records of {keys} keys were stored"
        await tier.compact(name)
        found = await tier.check_keys(name)
        live = {key for key, (_, value) in tier.newest(name).items() if value is not None}
        restored = {key: value for key, value in found.values() if value is not None}
        assert restored == {key: tier.newest(name)[key][1] for key in live}, (
            "the state of a restart"
        )
        assert len(found) <= 2 * keys + per_flush, f"a restart reads {len(found)} records"
        assert len(tier.machine(name).packs.index_of(tier.stream(name))) <= 8, (
            "nor is the index long"
        )

    play(story)
