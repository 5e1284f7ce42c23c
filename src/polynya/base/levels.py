"""Feature levels: the version of the rules that apply a group's log.

A release that applies the same log differently (a new command, a changed rule) has a higher level.
It applies the new rules only in groups whose log has a `SetLevel`, written once all nodes of the
cluster support that level. So nodes of two releases reach the same state from the same log. An
upgrade can be rolled back until the last node is upgraded.
"""

from __future__ import annotations

from polynya.base.errors import ConfigError

LEVEL = 4  # the highest level of this release; 1 is that of the first release with clusters
LEVELS: dict[
    int, int
] = {  # command tag -> the level that a group must have before the command is logged
    8: 3,  # Produce
    9: 3,  # ProducerIds
    10: 3,  # Rollover
    35: 2,  # Evict
    36: 2,  # Return
    37: 3,  # PageEntries
    38: 3,  # ReleasePaged
    66: 3,  # TableMake
    67: 3,  # TableFail
    68: 3,  # TableRetry
    69: 3,  # WatchStreams
    70: 3,  # TableAlter
    71: 3,  # TableDrop
    72: 3,  # ForgetTable
    73: 3,  # TableMove
    74: 3,  # TableFault
    91: 2,  # ReaderAdd
    92: 2,  # NodePromote
    99: 2,  # Bundle
    100: 3,  # TopicPut
    101: 3,  # TopicReady
    102: 3,  # TopicDrop
    103: 3,  # TopicGone
    104: 3,  # TopicChange
    120: 3,  # CommitSlices
    121: 3,  # SetProfile
    122: 3,  # SealRegime
    130: 3,  # GroupPut
    131: 3,  # CommitOffsets
    132: 3,  # GroupDrop
    133: 3,  # DropOffsets
    134: 3,  # ExpireOffsets
    135: 3,  # ForgetTopic
}


def check_level(level: int, group: int) -> None:
    """Raise ConfigError when a group's level is above that of this release."""
    if level > LEVEL:
        raise ConfigError(
            f"group {group} works at level {level}; this release supports levels up to {LEVEL}: "
            "start this node with the release of the other nodes"
        )
