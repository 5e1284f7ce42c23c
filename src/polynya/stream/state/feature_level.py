"""The feature level of a group, which selects the rules that apply its log (base/levels.py)."""

from __future__ import annotations

from polynya.base.levels import LEVELS
from polynya.base.names import is_internal
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, AppendIf, Bundle, Produce, ProducerIds
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PublishSlices, ReplaceSlices
from polynya.stream.features.placement.commands import NodeAnnounce
from polynya.stream.features.profiles.commands import CommitSlices, Profile, SetProfile
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.topics.commands import TopicPut
from polynya.stream.parts import Encoding, Retention

ENTRY_LEVEL = 3  # of index entries of version 2
RECORD_TIME_LEVEL = 3  # of a retention by record times
INTERNAL_LEVEL = 4  # of streams that no pattern and no table has


def level_of(kind: type[Command]) -> int:
    """Return the feature level that a group must have before a command of this kind is logged."""
    return LEVELS.get(tag_of(kind), 1)


def level_for(command: Command) -> int:
    """Return the feature level that a group must have before this command is logged."""
    if type(command) is Produce:  # the hot path
        return level_of(Produce)
    if isinstance(command, Bundle):
        return max([level_of(Bundle), *map(level_for, command.commands)])
    if isinstance(command, AppendIf):
        return level_of(AppendIf)
    if isinstance(command, Append):
        batch = command.batch
        is_kafka = batch is not None and batch.encoding == Encoding.KAFKA
        return level_of(Produce if is_kafka else Append)
    if isinstance(command, CommitSlices) and any(
        type(packed.command) is AppendIf for part in command.slices for packed in part.appends
    ):
        return level_of(AppendIf)
    if isinstance(command, Create) and is_internal(command.name):
        return INTERNAL_LEVEL
    if isinstance(command, Create) and command.encoding == Encoding.KAFKA:
        return level_of(Produce)
    if isinstance(command, Create) and command.producer_id_max >= 0:
        return level_of(ProducerIds)
    if isinstance(command, Create) and command.segments is not None:
        return level_of(Rollover)
    if isinstance(command, Create) and command.profile == Profile.DISKLESS:
        return level_of(SetProfile)
    retention = getattr(command, "retention", None)
    if isinstance(retention, Retention) and retention.record_time:
        return RECORD_TIME_LEVEL
    if isinstance(command, PublishSlices | ReplaceSlices):
        parts = command.slices if isinstance(command, PublishSlices) else command.replacements
        return ENTRY_LEVEL if any(cold.encoding >= 0 for _, cold in parts) else 1
    # an older node would not keep the addresses
    if isinstance(command, NodeAnnounce) and (command.kafka or command.kafka_ports):
        return level_of(TopicPut)
    return level_of(type(command))


def tag_of(kind: type[Command]) -> int:
    """Return the number that identifies this kind in logs. It survives a rename of the class."""
    tag = kind.__struct_config__.tag
    assert isinstance(tag, int)
    return tag
