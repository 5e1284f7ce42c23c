"""How new the rules are by which a group applies its log (F10).

A release whose machines do something that the release before would not do with the same log (a new command, another rule) is one level higher,
and does it only in groups whose log says so (`SetLevel`): that is written when all nodes of the cluster know the level. So nodes of two
releases apply the same log to the same state, and an upgrade can be taken back until the last node is through.
"""

from __future__ import annotations

from polynya.base.errors import ConfigError

LEVEL = 2  # that this release knows: 1 is that of the first release with clusters
LEVELS: dict[int, int] = {  # of commands that came later: tag -> the level that a group must have reached before one is logged
    35: 2,  # Evict
    36: 2,  # Return
    91: 2,  # ReaderAdd
    92: 2,  # NodePromote
    99: 2,  # Bundle
}


def check_level(level: int, group: int) -> None:
    """Raises ConfigError when a group is beyond what this release knows."""
    if level > LEVEL:
        raise ConfigError(
            f"group {group} works at level {level}, this release knows levels up to {LEVEL}: start this node with the release that the other nodes have"
        )
