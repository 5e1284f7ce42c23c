"""The documentation of topic configs, as DescribeConfigs returns it."""

from __future__ import annotations

from polynya.front.kafka.configs import CONFIGS

_INERT = "Kept and shown for Kafka's tools, without an effect here."
_TEXTS = {
    "cleanup.policy": "Retention deletes old records with `delete`; of each key the newest stays with `compact`.",
    "compression.gzip.level": "The level of gzip where the server compresses.",
    "compression.lz4.level": "The level of lz4 where the server compresses.",
    "compression.type": "Batches are stored as their producers compressed them.",
    "compression.zstd.level": "The level of zstd where the server compresses.",
    "content.type": "The media type of the values, for HTTP and tables. It is fixed when the topic "
    "is created.",
    "delete.retention.ms": "The time for which compaction keeps a delete marker.",
    "file.delete.delay.ms": "The time between the deletion of a segment and that of its file.",
    "flush.messages": "The number of records after which the log is flushed. Each batch is on disk "
    "before it is acknowledged.",
    "flush.ms": "The time after which the log is flushed. Each batch is on disk before it is "
    "acknowledged.",
    "follower.replication.throttled.replicas": "The replicas whose replication is throttled at the "
    "follower.",
    "index.interval.bytes": "The bytes between two entries of the offset index.",
    "leader.replication.throttled.replicas": "The replicas whose replication is throttled at the "
    "leader.",
    "local.retention.bytes": "The bytes of a partition that stay on local disks with tiered storage.",
    "local.retention.ms": "The time for which records stay on local disks with tiered storage.",
    "max.compaction.lag.ms": "The longest time before a record is compacted.",
    "max.message.bytes": "The largest batch; a larger one gets MESSAGE_TOO_LARGE.",
    "message.timestamp.after.max.ms": "How far a record's time may be after that of the server.",
    "message.timestamp.before.max.ms": "How far a record's time may be before that of the server.",
    "message.timestamp.type": "`CreateTime` keeps the times of the producers; with `LogAppendTime` "
    "the server sets the time of each record.",
    "min.cleanable.dirty.ratio": "The part of a log without compaction at which it begins.",
    "min.compaction.lag.ms": "The shortest time before a record is compacted.",
    "min.insync.replicas": "A batch is acknowledged when a majority of the replicas has it on disk; "
    "a larger number is refused.",
    "mirror.from": "The brokers whose topic this one mirrors until the cut-over.",
    "preallocate": "Segment files are created with their full size.",
    "profile": "`replicated`, `diskless` or `leased`: where the records of the topic are stored.",
    "records.check": "`quick` or `full`: how the records of a batch are checked before it is "
    "accepted.",
    "remote.log.copy.disable": "Tiered storage copies no further records.",
    "remote.log.delete.on.disable": "Tiered data is deleted when tiered storage is disabled.",
    "remote.storage.enable": "Kafka's tiered storage is disabled here; with the setting "
    "`cold.backend` the old data of each topic is in the object store.",
    "retention.bytes": "The oldest records of a partition beyond this size are deleted; -1: none.",
    "retention.ms": "Records older than this time since their append are deleted; -1: none.",
    "segment.bytes": "The size of a segment of a topic with the profile `leased`.",
    "segment.index.bytes": "The size of the offset index of a segment.",
    "segment.jitter.ms": "A random time that is subtracted from `segment.ms`.",
    "segment.ms": "The time after which a segment is closed.",
    "unclean.leader.election.enable": "A replica that lacks records may become leader. None does "
    "here.",
}


def documentation_of(name: str) -> str:
    """Return the documentation of a topic config."""
    text = _TEXTS[name]
    return text if CONFIGS[name].effect else f"{text} {_INERT}"
