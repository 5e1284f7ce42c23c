"""The offsets of the source's consumer groups, which become those of groups of the same names."""

from __future__ import annotations

from collections.abc import Mapping

from polynya.cli.mirror.copying import Part
from polynya.cli.mirror.source import Source, TopicPartition
from polynya.cli.mirror.target import Target
from polynya.cli.terminal import output

_IDLE = frozenset(("Empty", "Dead"))


class Positions:
    """Copies what groups have committed in mirrored topics, never beyond what is mirrored."""

    def __init__(self, source: Source, target: Target) -> None:
        self._source, self._target = source, target
        self._sent: dict[str, dict[TopicPartition, int]] = {}
        self.active: dict[str, str] = {}  # groups with members at the source, and their states
        self.groups: set[str] = set()  # those with offsets in mirrored topics
        self.joined: set[str] = set()  # those that have members here: nothing is copied

    async def copy(self, parts: Mapping[TopicPartition, Part]) -> None:
        """Copy the positions that changed. Raises BrokerLost and `exits.Ended`."""
        states = await self._source.groups()
        committed = await self._source.positions(states)
        self.groups, self.active = set(), {}
        for group, offsets in committed.items():
            here = {
                partition: offset for partition, offset in offsets.items() if partition in parts
            }
            if states[group] not in _IDLE and (here or not offsets):
                self.active[group] = states[group]
            if not here:
                continue
            self.groups.add(group)
            await self._send(
                group, {partition: min(at, parts[partition].next) for partition, at in here.items()}
            )

    async def _send(self, group: str, offsets: dict[TopicPartition, int]) -> None:
        if self._sent.get(group) == offsets:
            return
        if await self._target.commit(group, offsets):
            self._sent[group] = offsets
            self.joined.discard(group)
        elif group not in self.joined:
            self.joined.add(group)
            output.notice(f"group {group} has members here already: its positions are not copied")
