"""The configs of a broker, which are only shown, and why a change of each is refused.

A node has settings instead. The default of a topic config is shown under its name in Kafka's broker
configs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from polynya.base import limits
from polynya.front.kafka.admin.cluster import LOG_DIR
from polynya.front.kafka.admin.config_texts import documentation_of
from polynya.front.kafka.admin.partitions import PARTITIONS_SHOWN_MAX
from polynya.front.kafka.configs import BOOLEAN, CONFIGS, INT, LIST, STRING
from polynya.front.kafka.context import Context

# topic configs whose broker config has another name
_RENAMED = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
_SAME = (
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
_TOPIC_NAMES = {broker: topic for topic, broker in _RENAMED.items()} | {
    each: each for each in _SAME
}
_SETTINGS = {  # of a node, by the config in whose place they are
    "advertised.listeners": "kafka.advertised",
    "auto.create.topics.enable": "kafka.auto_create",
    "broker.rack": "cluster.nodes",
    "listeners": "kafka.listen",
    "log.dir": "data",
    "log.dirs": "data",
    "num.partitions": "kafka.partitions",
    "offsets.retention.minutes": "kafka.offsets_retention",
    "sasl.enabled.mechanisms": "auth.required",
}
_NAMED_MAX = 5  # configs of a refused request that its message explains


class BrokerConfig(msgspec.Struct, frozen=True, gc=False):
    """A config of this broker."""

    name: str
    value: str | None
    type: int
    documentation: str

    @property
    def has_setting(self) -> bool:
        """Report whether a setting of the node has the value."""
        return self.name in _SETTINGS


def broker_name(topic_config: str) -> str:
    """Return the name that the default of a topic config has among those of brokers."""
    return _RENAMED.get(topic_config, topic_config)


def broker_configs(context: Context) -> list[BrokerConfig]:
    """Return the configs of this broker, by name."""
    found = [
        BrokerConfig(name, CONFIGS[topic].default, CONFIGS[topic].type, documentation_of(topic))
        for name, topic in _TOPIC_NAMES.items()
    ]
    return sorted([*found, *_own(context)], key=lambda config: config.name)


def _own(context: Context) -> Iterator[BrokerConfig]:
    """Yield the configs that are not defaults of topics."""
    brokers, defaults = context.brokers, context.defaults
    sizes = (
        (
            "group.max.session.timeout.ms",
            limits.GROUP_SESSION_MS_MAX,
            "The longest session timeout.",
        ),
        ("group.max.size", limits.GROUP_MEMBERS_MAX, "The members of a consumer group."),
        (
            "group.min.session.timeout.ms",
            limits.GROUP_SESSION_MS_MIN,
            "The shortest session timeout.",
        ),
        (
            "max.request.partition.size.limit",
            PARTITIONS_SHOWN_MAX,
            "The partitions in one response of DescribeTopicPartitions.",
        ),
        (
            "offset.metadata.max.bytes",
            limits.OFFSET_METADATA_BYTES_MAX,
            "The metadata of one committed offset.",
        ),
        (
            "producer.id.expiration.ms",
            limits.PRODUCER_IDLE_MS,
            "A partition forgets an idempotent producer after this time without a batch.",
        ),
        ("socket.request.max.bytes", limits.KAFKA_REQUEST_BYTES_MAX, "The largest request."),
    )
    for name, value, text in sizes:
        yield BrokerConfig(name, str(value), INT, text)
    replicas = len(brokers.replicas_of(1)[0])
    id_text = "The id of this broker: the node's, or the node's times 256 plus the core's number."
    for name in ("broker.id", "node.id"):
        yield BrokerConfig(name, str(brokers.own), INT, id_text)
    yield from (
        _set(
            "auto.create.topics.enable",
            str(defaults.auto_create).lower(),
            BOOLEAN,
            "A missing topic is created when a client that allows it names the topic.",
        ),
        _set("broker.rack", brokers.zone or None, STRING, "The zone of this node."),
        _set("log.dirs", LOG_DIR, LIST, "The name of the directory in DescribeLogDirs."),
        _set(
            "num.partitions",
            str(defaults.partitions),
            INT,
            "Partitions of a topic whose creator sets no number.",
        ),
        _set(
            "offsets.retention.minutes",
            str(round(defaults.offsets_retention_seconds / 60)),
            INT,
            "The committed offsets of a group without members expire after this time.",
        ),
        BrokerConfig(
            "default.replication.factor", str(replicas), INT, "The replicas of each partition."
        ),
        BrokerConfig("delete.topic.enable", "true", BOOLEAN, "Topics can be deleted."),
        BrokerConfig(
            "remote.log.storage.system.enable", "false", BOOLEAN, "Kafka's tiered storage."
        ),
    )


def _set(name: str, value: str | None, type_: int, text: str) -> BrokerConfig:
    """Return the config in whose place a node has a setting."""
    return BrokerConfig(
        name, value, type_, f"{text} It is the setting {_SETTINGS[name]} of the node."
    )


def refusal_of(names: Iterable[str]) -> str:
    """Say why configs of brokers do not change, and what to change instead."""
    given = list(dict.fromkeys(names))
    reasons = [_reason(name) for name in given[:_NAMED_MAX]]
    if len(given) > _NAMED_MAX:
        reasons.append(f"and {len(given) - _NAMED_MAX} more")
    if not reasons:
        return "brokers have no configs that change here: a node has settings, see docs/kafka.md"
    return "; ".join(reasons)


def _reason(name: str) -> str:
    if name in _SETTINGS:
        setting = _SETTINGS[name]
        return (
            f"broker config {name} is the setting {setting} of a node: set it there and start the "
            "node again"
        )
    if name in _TOPIC_NAMES:
        return f"broker config {name} does not change: set {_TOPIC_NAMES[name]} of each topic"
    return f"broker config {name[:100]} is unknown or does not change: see docs/kafka.md"
