"""The source: a Kafka cluster, as a mirror asks it. Every request is in a version that brokers of
Kafka 2.1 to 4.3 serve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from polynya.cli.mirror.connection import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    Address,
    BrokerLost,
    Connection,
    Security,
    schema,
)
from polynya.cli.terminal import exits

FETCH_BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 4 << 20
WAIT_MS = 500
_LATEST, _EARLIEST = -1, -2
_TOPIC = 2  # the type of a topic in DescribeConfigs
_LIST_GROUPS = 16
_STATES_SINCE = 4  # the first version of ListGroups with states
_AT_ONCE = 8
_ANY, _PREFIXED = 1, 4  # in filters of DescribeAcls; a pattern
_PERMISSIONS = {2: "Deny", 3: "Allow"}
_RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional id"}
_OPERATIONS = {
    2: "All", 3: "Read", 4: "Write", 5: "Create", 6: "Delete", 7: "Alter", 8: "Describe",
    10: "DescribeConfigs", 11: "AlterConfigs", 12: "IdempotentWrite",
}  # fmt: skip
TopicPartition = tuple[str, int]  # topic, partition


class SourcePartition(msgspec.Struct, frozen=True):
    """A partition and its leader; -1: it has none."""

    number: int
    leader: int


class SourceTopic(msgspec.Struct, frozen=True):
    """A topic and its partitions, in order."""

    name: str
    partitions: list[SourcePartition]


class SourceConfig(msgspec.Struct, frozen=True):
    """A config of a topic. `own`: set for the topic, not the default of its brokers."""

    value: str
    own: bool


class Acl(msgspec.Struct, frozen=True):
    """An access rule: a principal with its permission and operation, and the resource."""

    rule: str
    kind: str
    name: str

    def covers(self, kind: str, name: str) -> bool:
        """Report whether the rule is about a resource."""
        if self.kind != kind:
            return False
        return self.name in ("*", name) or (
            self.name.endswith("*") and name.startswith(self.name[:-1])
        )


class Fetched(msgspec.Struct):
    """A partition's part of a Fetch response. `error`: the name of its error, "" without one."""

    partition: TopicPartition
    error: str
    start: int
    stable: int
    high: int
    records: bytes
    aborted: list[tuple[int, int]]


class Source:
    """The brokers of the source. Calls raise BrokerLost, and `exits.Refused` for what a retry would
    meet again."""

    def __init__(self, bootstrap: Sequence[Address], security: Security) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._addresses: dict[int, Address] = {}  # of the brokers by id; -1: the bootstrap broker
        self._connections: dict[tuple[int, str], Connection] = {}  # by broker and purpose
        self._opening: dict[tuple[int, str], asyncio.Lock] = {}
        self._versions: dict[int, int] = {}  # the highest version of each key

    def close(self) -> None:
        """Close all connections."""
        for each in self._connections.values():
            each.close()
        self._connections.clear()

    # --- connections ------------------------------------------------------------------------------

    async def _connection(self, broker: int, purpose: str = "") -> Connection:
        """Return the connection to a broker, -1 for any. Fetches wait at the broker, so they have
        connections of their own."""
        key = (broker, purpose)
        async with self._opening.setdefault(key, asyncio.Lock()):
            known = self._connections.get(key)
            if known is None:
                known = self._connections[key] = await self._open(broker)
            return known

    async def _open(self, broker: int) -> Connection:
        if broker >= 0:
            address = self._addresses.get(broker)
            if address is None:
                raise BrokerLost(f"the source has no broker {broker}")
            return await Connection.open(address, self._security)
        failed: list[str] = []
        for address in (*self._bootstrap, *self._addresses.values()):
            try:
                return await Connection.open(address, self._security)
            except BrokerLost as lost:
                failed.append(str(lost))
        raise BrokerLost("; ".join(dict.fromkeys(failed)))

    async def _ask(
        self,
        broker: int,
        api: str,
        version: int,
        *,
        purpose: str = "",
        seconds: float = ANSWER_SECONDS,
        **fields: Any,
    ) -> Any:
        connection = await self._connection(broker, purpose)
        try:
            return await connection.ask(api, version, seconds, **fields)
        except BrokerLost:
            if self._connections.get((broker, purpose)) is connection:
                del self._connections[broker, purpose]
            raise

    # --- the cluster ------------------------------------------------------------------------------

    async def greet(self) -> None:
        """Learn the versions that the source serves."""
        answer = await self._ask(-1, "api_versions", 0, seconds=CONNECT_SECONDS)
        self._versions = {each.api_key: each.max_version for each in answer.api_keys}
        if not {1, 3} <= self._versions.keys():
            raise BrokerLost("the source does not serve Metadata and Fetch: it is no Kafka broker")

    async def topics(self) -> dict[str, SourceTopic]:
        """Return all topics but Kafka's internal ones."""
        answer = await self._ask(-1, "metadata", 7, topics=None, allow_auto_topic_creation=False)
        self._addresses = {each.node_id: (each.host, each.port) for each in answer.brokers}
        found = {}
        for topic in answer.topics:
            if topic.error_code.value or topic.is_internal:
                continue
            partitions = sorted(topic.partitions, key=lambda each: each.partition_index)
            found[topic.name] = SourceTopic(
                topic.name,
                [SourcePartition(each.partition_index, each.leader_id) for each in partitions],
            )
        return found

    async def configs(self, topics: Sequence[str]) -> dict[str, dict[str, SourceConfig]]:
        """Return the configs of topics."""
        r = schema("describe_configs", 2, "request")
        asked = tuple(
            r.DescribeConfigsResource(
                resource_type=_TOPIC, resource_name=name, configuration_keys=None
            )
            for name in topics
        )
        answer = await self._ask(-1, "describe_configs", 2, resources=asked, include_synonyms=False)
        found: dict[str, dict[str, SourceConfig]] = {}
        for result in answer.results:
            if result.error_code.value:
                why = result.error_message or result.error_code.name
                raise exits.Refused(
                    f"the source does not tell the configs of topic {result.resource_name}: {why}",
                    hint="The login needs DescribeConfigs on the topics.",
                )
            found[result.resource_name] = {
                each.name: SourceConfig(each.value, each.config_source == 1)
                for each in result.configs
                if each.value is not None
            }
        return found

    async def ends(
        self, leaders: Mapping[TopicPartition, int], *, start: bool = False, committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the end of each partition, its last stable offset if `committed`, or its
        `start`. Partitions without an answer are left out."""
        r = schema("list_offsets", 4, "request")
        stamp = _EARLIEST if start else _LATEST
        found: dict[TopicPartition, int] = {}
        for broker, partitions in _by_leader(leaders).items():
            topics = tuple(
                r.ListOffsetsTopic(
                    name=topic,
                    partitions=tuple(
                        r.ListOffsetsPartition(
                            partition_index=number, current_leader_epoch=-1, timestamp=stamp
                        )
                        for number in numbers
                    ),
                )
                for topic, numbers in partitions.items()
            )
            answer = await self._ask(
                broker, "list_offsets", 4, replica_id=-1, isolation_level=committed, topics=topics
            )
            for topic in answer.topics:
                for each in topic.partitions:
                    if not each.error_code.value:
                        found[topic.name, each.partition_index] = each.offset
        return found

    async def fetch(self, broker: int, positions: Mapping[TopicPartition, int]) -> list[Fetched]:
        """Return committed batches of partitions that a broker leads. Waits for some."""
        r = schema("fetch", 10, "request")
        topics = tuple(
            r.FetchTopic(
                topic=topic,
                partitions=tuple(
                    r.FetchPartition(
                        partition=number,
                        fetch_offset=positions[topic, number],
                        partition_max_bytes=PARTITION_BYTES_MAX,
                    )
                    for number in numbers
                ),
            )
            for topic, numbers in _by_topic(positions).items()
        )
        answer = await self._ask(
            broker,
            "fetch",
            10,
            purpose="fetch",
            replica_id=-1,
            max_wait=timedelta(milliseconds=WAIT_MS),
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=(),
        )
        return [
            Fetched(
                (topic.topic, each.partition_index),
                each.error_code.name if each.error_code.value else "",
                each.log_start_offset,
                each.last_stable_offset,
                each.high_watermark,
                bytes(each.records or b""),
                [(one.producer_id, one.first_offset) for one in each.aborted_transactions or ()],
            )
            for topic in answer.responses
            for each in topic.partitions
        ]

    async def acls(self) -> list[Acl]:
        """Return the access rules; none where the source has none, or does not tell."""
        try:
            answer = await self._ask(
                -1,
                "describe_acls",
                1,
                resource_type_filter=_ANY,
                resource_name_filter=None,
                pattern_type_filter=_ANY,
                principal_filter=None,
                host_filter=None,
                operation=_ANY,
                permission_type=_ANY,
            )
        except BrokerLost:
            return []
        return [
            Acl(
                f"{each.principal} {_named(_PERMISSIONS, each.permission_type)} "
                f"{_named(_OPERATIONS, each.operation)}",
                _named(_RESOURCES, resource.resource_type),
                resource.resource_name + ("*" if resource.pattern_type == _PREFIXED else ""),
            )
            for resource in answer.resources
            for each in resource.acls
        ]

    # --- consumer groups --------------------------------------------------------------------------

    async def groups(self) -> dict[str, str]:
        """Return the state of each consumer group."""
        found: dict[str, str] = {}
        has_states = self._versions.get(_LIST_GROUPS, 0) >= _STATES_SINCE
        for broker in self._addresses:
            if has_states:
                answer = await self._ask(broker, "list_groups", _STATES_SINCE, states_filter=())
                found |= {each.group_id: each.group_state for each in answer.groups}
                continue
            answer = await self._ask(broker, "list_groups", 2)
            ids = tuple(each.group_id for each in answer.groups)
            if ids:
                described = await self._ask(broker, "describe_groups", 2, groups=ids)
                found |= {each.group_id: each.group_state for each in described.groups}
        return found

    async def positions(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
        """Return the committed offsets of groups. A group whose coordinator moves is left out."""
        gate = asyncio.Semaphore(_AT_ONCE)
        found: dict[str, dict[TopicPartition, int]] = {}

        async def one(group: str) -> None:
            async with gate:
                with contextlib.suppress(BrokerLost):
                    found[group] = await self._committed(group)

        await asyncio.gather(*map(one, groups))
        return found

    async def _committed(self, group: str) -> dict[TopicPartition, int]:
        where = await self._ask(-1, "find_coordinator", 2, key=group, key_type=0)
        if where.error_code.value:
            raise BrokerLost(f"group {group}: {where.error_code.name}")
        answer = await self._ask(where.node_id, "offset_fetch", 5, group_id=group, topics=None)
        if answer.error_code.value:
            raise BrokerLost(f"group {group}: {answer.error_code.name}")
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
            if not each.error_code.value and each.committed_offset >= 0
        }


def _by_leader(leaders: Mapping[TopicPartition, int]) -> dict[int, dict[str, list[int]]]:
    found: dict[int, dict[str, list[int]]] = {}
    for (topic, number), leader in leaders.items():
        if leader >= 0:
            found.setdefault(leader, {}).setdefault(topic, []).append(number)
    return found


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def _named(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))
