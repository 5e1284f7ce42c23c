"""Feature levels: the version of the rules that apply a group's log.

A release that applies the same log differently (a new command, a changed rule) has a higher level.
It applies the new rules only in groups whose log has a `SetLevel`, written once all nodes of the
cluster support that level. So nodes of two releases reach the same state from the same log. An
upgrade can be rolled back until the last node is upgraded.
"""

from __future__ import annotations

from polynya.base.errors import ConfigError

LEVEL = 4  # the highest level of this release; 1 is that of the first release with clusters
CONDITIONS_LEVEL = 4  # of appends on a condition
ATOMIC_LEVEL = 4  # of appends to many streams at once
MIRROR_LEVEL = 4  # of batches of another Kafka at their own offsets
RECEIPT_LEVEL = 4  # of the checksums in the receipts of producers
ENTRY_LEVEL = 3  # of index entries of version 2
RECORD_TIME_LEVEL = 3  # of a retention by record times
COMPRESSION_LEVEL = 4  # of slices whose payload is compressed
SNAPSHOTS_LEVEL = 4  # of the snapshots of streams
ATTRIBUTES_LEVEL = 4  # of the attributes of streams
COMPACTION_LEVEL = 4  # of key compaction
INTERNAL_LEVEL = 4  # of streams that no pattern and no table has
CONSUMER_PROTOCOL_LEVEL = 4  # of Kafka's consumer protocol (KIP-848)
USER_RULES_LEVEL = 4  # of ACLs, quotas and users by Kafka's tools: older nodes cannot read them
WORK_QUEUE_LEVEL = 4  # of retries and dead letters of subscriptions
DERIVED_LEVEL = 4  # of tables over other tables: a source cannot be dropped
TRANSACTION_LEVEL = 4  # of Kafka's transactions
# command tag -> the level that a group must have before the command is logged, if it is above 1;
# `polynya.stream.command` fills it
LEVELS: dict[int, int] = {}


def check_level(level: int, group: int) -> None:
    """Raise ConfigError when a group's level is above that of this release."""
    if level > LEVEL:
        raise ConfigError(
            f"group {group} works at level {level}; this release supports levels up to {LEVEL}: "
            "start this node with the release of the other nodes"
        )
