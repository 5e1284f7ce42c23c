"""The cut-over: when everything is here and nothing is written at the source, the topics here take
records."""

from __future__ import annotations

import time

from polynya.cli.mirror.copying import Copy
from polynya.cli.mirror.positions import Positions
from polynya.cli.mirror.source import Source
from polynya.cli.mirror.target import Target
from polynya.cli.mirror.topics import MIRROR_FROM, MirrorTopics
from polynya.cli.terminal import exits, output

_LOG_SECONDS = 10.0  # between two lines that say what is waited for
_NAMED_MAX = 3
_ACLS_MAX = 50
NOT_CARRIED = (
    "not carried over: ACLs, users and their passwords, quotas, transactional ids, broker configs, and "
    "the schemas of a registry that is no topic (docs/migration.md)"
)


class CutOver:
    """The end of a mirror. Each step looks once; two good looks in a row end it."""

    def __init__(
        self,
        copy: Copy,
        topics: MirrorTopics,
        positions: Positions,
        ways: tuple[Source, Target],
        *,
        force: bool,
    ) -> None:
        self._copy, self._topics, self._positions = copy, topics, positions
        self._source, self._target = ways
        self._force = force
        self._level: dict[object, int] | None = None  # the ends at the last look, if all were here
        self._logged_at = 0.0

    async def step(self) -> bool:
        """Return True if the cut-over is done. Raises BrokerLost and `exits.Ended`."""
        if self._topics.deleted:
            raise exits.Refused(
                f"the source has deleted {', '.join(sorted(self._topics.deleted))}: a cut-over needs "
                "its topics",
                hint="Leave the name out of --topics, or remove its config mirror.from.",
            )
        await self._copy.look()
        await self._positions.copy(self._copy.parts)
        waits = self._waits()
        ends: dict[object, int] = {
            partition: part.high for partition, part in self._copy.parts.items()
        }
        if waits:
            self._level = None
            self._log_waits(waits)
            return False
        if self._level != ends:
            self._level = ends
            return False
        await self._end()
        return True

    def _waits(self) -> list[str]:
        """Return what the cut-over waits for."""
        waits = []
        behind = [part for part in self._copy.alive if part.next != part.stable]
        if behind:
            named = ", ".join(f"{part.name} ({part.lag:,})" for part in behind[:_NAMED_MAX])
            waits.append(f"records that are not here yet: {named}")
        open_ = [part for part in self._copy.alive if part.stable != part.high]
        if open_:
            named = ", ".join(part.name for part in open_[:_NAMED_MAX])
            waits.append(f"open transactions at the source: {named}")
        active = [] if self._force else sorted(self._positions.active)
        if active:
            named = ", ".join(active[:_NAMED_MAX])
            waits.append(f"groups with members at the source (--force does not wait): {named}")
        return waits

    def _log_waits(self, waits: list[str]) -> None:
        if time.monotonic() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = time.monotonic()
            output.notice(f"the cut-over waits for {'; '.join(waits)}")

    async def _end(self) -> None:
        names = sorted(self._topics.known)
        for name in names:
            await self._target.change(name, {MIRROR_FROM: None})
        for name in sorted(self._topics.left_alone):
            output.notice(f"topic {name} is no mirror, or was cut over before: it is left as it is")
        if not names:
            output.notice("nothing is left to cut over")
            return
        groups = len(self._positions.groups)
        output.notice(
            f"cut over: {output.counted(len(names), 'topic')} take records here now; the positions of "
            f"{output.counted(groups, 'group')} are here"
        )
        if self._positions.joined:
            output.notice(f"without positions: {', '.join(sorted(self._positions.joined))}")
        output.notice(
            "now change bootstrap.servers of producers and consumers, and their credentials; topics, "
            "groups and offsets stay"
        )
        output.notice(NOT_CARRIED)
        await self._log_acls()

    async def _log_acls(self) -> None:
        """Print the access rules of the source that the tokens here are to replace."""
        rules = [
            each
            for each in await self._source.acls()
            if any(each.covers("topic", name) for name in self._topics.known)
            or any(each.covers("group", group) for group in self._positions.groups)
        ]
        for each in rules[:_ACLS_MAX]:
            output.notice(f"  ACL at the source: {each.rule} on {each.kind} {each.name}")
        if len(rules) > _ACLS_MAX:
            output.notice(f"  and {len(rules) - _ACLS_MAX} more; 'kafka-acls --list' prints them")
