"""Commits of transactions while a backup captures the groups: they are counted, and held for a moment
if they go on all the time (docs/design/transactions.md).

No copy of a group may have half of a commit. So between the first and the last capture none is
decided, and before the first one all markers of the former have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from polynya.backup.source import BackupSource, GroupCommits
from polynya.base.errors import Unavailable
from polynya.base.limits import HOLD_MS_MAX

LOGGED_SECONDS = 2.0  # until the hold is logged in every group
DRAIN_SECONDS = 5.0  # for the markers of the last commits; the captures need the rest of the hold
LOOK_SECONDS = 0.02  # between two looks at them


class NotHeld(Exception):
    """The commits of some group could not be held, or went on. The message says why."""


class CommitHold:
    """The commits of all groups during one backup, in one round after another."""

    def __init__(self, source: BackupSource, backup: str, groups: int) -> None:
        self._source, self._backup = source, backup
        self._groups = range(1, groups + 1)  # the meta group has no transactions
        self._number = 0
        self._counted: frozenset[int] = frozenset()

    @property
    def round(self) -> str:
        """The name under which groups count now."""
        return f"{self._backup}/{self._number}"

    async def count(self) -> bool:
        """Begin to count, where there are transactional ids; hold nothing. Return False if a commit
        is on its way already."""
        found = await self._all(self._groups, None)
        self._counted = frozenset(each.group for each in found if each.ids)
        found = await self._all(sorted(self._counted), 0)
        return all(each.backup == self.round and not each.deciding for each in found)

    async def is_untouched(self) -> bool:
        """Report whether no commit was decided since the count began."""
        found = await self._all(self._groups, None)
        return all(self._is_untouched(each) for each in found)

    def next_round(self) -> str:
        """Begin another round, in which groups count from 0."""
        self._number += 1
        return self.round

    async def hold(self) -> None:
        """Hold commits in every group, and wait until those before are complete. Raises NotHeld, with
        nothing held."""
        self._counted = frozenset(self._groups)
        try:
            async with asyncio.timeout(LOGGED_SECONDS):
                found = await self._all(self._groups, HOLD_MS_MAX)
            for each in found:
                if each.backup != self.round:
                    raise NotHeld(f"another backup holds the commits of group {each.group}")
            await self._drain(found)
        except (NotHeld, Unavailable, TimeoutError) as fault:
            await self.release()
            raise NotHeld(str(fault) or "not all groups logged the hold of commits") from None
        except BaseException:
            await self.release()
            raise

    async def release(self) -> bool:
        """Let commits go on. Return whether none was decided since the hold began. In a group that
        cannot be reached the hold expires."""
        try:
            found = await self._all(self._groups, 0)
        except Unavailable:
            return False
        return all(self._is_untouched(each) for each in found)

    async def keep(self) -> None:
        """Keep the captures of this round on their leaders."""
        await self._all(self._groups, None)

    def _is_untouched(self, found: GroupCommits) -> bool:
        if found.group not in self._counted:
            return not found.ids
        return found.backup == self.round and not found.commits

    async def _drain(self, found: list[GroupCommits]) -> None:
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while deciding := [each for each in found if each.deciding]:
            if asyncio.get_running_loop().time() > deadline:
                names = ", ".join(name for each in deciding for name in each.deciding)
                raise NotHeld(f"the markers of a commit do not arrive ({names})")
            await asyncio.sleep(LOOK_SECONDS)
            found = await self._all([each.group for each in deciding], None)

    async def _all(self, groups: Iterable[int], hold_ms: int | None) -> list[GroupCommits]:
        asked = [self._source.commits(group, self.round, hold_ms) for group in groups]
        return list(await asyncio.gather(*asked))
