"""The options of Spark's Kafka source and sink that have a meaning here, as those of this source, and
hints for those that have none."""

from __future__ import annotations

from collections.abc import Mapping

from polynya.base.errors import ConfigError

ALIASES = {"maxoffsetspertrigger": "maxRecordsPerTrigger"}
_HINTS = {
    "kafka.bootstrap.servers": "set 'server' to the HTTP address of a node, such as "
    "http://127.0.0.1:4437",
    "includeheaders": "leave it out: the column 'headers' is always there",
    "minpartitions": "set 'partitionBytes', the bytes of one task",
    "maxrecordsperpartition": "set 'partitionBytes', the bytes of one task",
    "minoffsetspertrigger": "set the interval of the query's trigger",
    "maxtriggerdelay": "set the interval of the query's trigger",
    "endingoffsetsbytimestampstrategy": "leave it out: a read without a later record ends at the tail",
    "groupidprefix": "leave it out: the checkpoint holds the offsets, and no consumer group does",
    "kafka.group.id": "leave it out: the checkpoint holds the offsets, and no consumer group does",
}


def translated(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with lower-case names and without Kafka's aliases. Raises ConfigError."""
    found: dict[str, str] = {}
    for name, value in options.items():
        own = ALIASES.get(name.lower(), name).lower()
        if own in found:
            raise ConfigError(f"the options '{own}' and '{name}' mean the same: set one of them")
        found[own] = value
    return found


def hint(name: str) -> str:
    """Return what to do instead of setting one of Kafka's options; "" for another name."""
    if name in _HINTS:
        return _HINTS[name]
    if name.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.")):
        return "leave it out: the source speaks HTTP to the node, and reads its object store"
    return ""
