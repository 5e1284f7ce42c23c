"""The steps that every new pack takes: into the store, into its home group's log, into the indexes. Each may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.cold.groups import Groups
from polynya.objectstore.api import ObjectStore, StoreUnavailable, put_again
from polynya.stream.commands import Command, PackWritten
from polynya.stream.replies import Reply

TRIES = 3  # of one step, with the same key and command
BACKOFF_SECONDS = 0.25  # the first pause after a failure; doubled up to …
BACKOFF_SECONDS_MAX = 30.0
WRITE_MS_MAX = 300_000  # from the begin of a put: after that the pack may have been swept as one that nobody knows

T = TypeVar("T")
Outcome = Reply | Unavailable | OutcomeUnknown


class Steps:
    """The shell of a core's flusher, or of its merger."""

    def __init__(self, groups: Groups, store: ObjectStore, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.groups = groups
        self.store = store
        self.sleep = sleep

    async def write(self, key: str, parts: Sequence[bytes], home_group: int, groups: list[int]) -> None:
        """The object, and that it exists: before any index names it. Raises StoreError, Unavailable, OutcomeUnknown."""
        now_ms = self.groups.now_ms()
        await self._insist(lambda: put_again(self.store, key, parts))
        await self._insist(lambda: self.groups.propose(home_group, PackWritten(key, groups, now_ms)))
        if self.groups.now_ms() - now_ms > WRITE_MS_MAX:
            raise Unavailable("it took the object store and the log too long: the pack may be taken for an orphan")

    async def propose_all(self, commands: Mapping[int, Command]) -> list[tuple[int, Outcome]]:
        """Into all groups at once. One that fails leaves the others alone; the collector asks it again whether it holds the pack."""
        outcomes = await asyncio.gather(*(self._propose(group, command) for group, command in commands.items()))
        return list(zip(commands, outcomes, strict=True))

    async def _propose(self, group: int, command: Command) -> Outcome:
        try:
            return await self._insist(lambda: self.groups.propose(group, command))
        except (Unavailable, OutcomeUnknown) as fault:
            return fault

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """A step that may be repeated, a few times."""
        for attempt in range(TRIES - 1):
            try:
                return await step()
            except (StoreUnavailable, Unavailable, OutcomeUnknown):
                await self.sleep(BACKOFF_SECONDS * 2**attempt)
        return await step()


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failed passes in a row."""
    return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(failures, 16))
