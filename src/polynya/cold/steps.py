"""Steps that every new pack takes: put the object, log it in its owner group, publish it to the
indexes. Each step is idempotent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.levels import COMPRESSION_LEVEL, ENTRY_LEVEL
from polynya.base.limits import WRITE_MS_MAX
from polynya.cold.groups import Groups
from polynya.jobs import BACKOFF_SECONDS, pause_after
from polynya.objectstore.api import ObjectStore, StoreError, StoreUnavailable, put_again
from polynya.stream.command import Command
from polynya.stream.features.packs.commands import PackWritten
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice
from polynya.stream.replies import Code, Reply
from polynya.stream.state.entries import as_v1

TRIES = 3  # attempts of one step, with the same key and command
BESIDE_SECONDS_MAX = 2.0  # longest pause of a step that clients wait for
OWNER_GROUP_SECONDS = (
    1.0  # for an intent, longer than most elections take; then another group may be faster
)

YIELD_SECONDS = 0.0001

FAULTS = (StoreError, Unavailable, OutcomeUnknown)  # a pack that met them is tried again
T = TypeVar("T")
Outcome = Reply | Unavailable | OutcomeUnknown


class OwnerGroupLate(Exception):
    """The owner group did not log an intent in time, and another group may be faster."""


class Steps:
    """The write path shared by a core's flusher, merger and evictor."""

    def __init__(
        self, groups: Groups, store: ObjectStore, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.groups = groups
        self.store = store
        self.sleep = sleep

    async def write(
        self, key: str, parts: Sequence[bytes], owner_group: int, groups: list[int]
    ) -> None:
        """Put the object and log its existence before any index names it. Raises StoreError,
        Unavailable, OutcomeUnknown."""
        now_ms = self.groups.now_ms()
        await self._insist(lambda: put_again(self.store, key, parts))
        await self._insist(lambda: self._intend(owner_group, key, groups, now_ms))
        if self.groups.now_ms() - now_ms > WRITE_MS_MAX:
            raise Unavailable(
                "writing the pack took more than 5 minutes: the sweep may delete it as an orphan"
            )

    async def write_beside(  # noqa: PLR0913
        self,
        key: str,
        parts: Sequence[bytes],
        owner_group: int,
        groups: list[int],
        seconds: float,
        leaves: Callable[[], bool] = lambda: False,
    ) -> int:
        """Put the object while its owner group logs it, and return the log time of that intent.
        Both are tried for so many seconds. While the intent is late, `leaves` is called each
        second: True ends both with OwnerGroupLate. Raises as `write`."""
        now_ms, loop = self.groups.now_ms(), asyncio.get_running_loop()
        intent = loop.create_task(
            self._insist_for(seconds, lambda: self._intend(owner_group, key, groups, now_ms))
        )
        put = loop.create_task(self._insist_for(seconds, lambda: put_again(self.store, key, parts)))
        try:
            while not (await asyncio.wait([intent], timeout=OWNER_GROUP_SECONDS))[0]:
                if leaves():
                    raise OwnerGroupLate
            await asyncio.wait([put])
            await put
            await intent
        finally:
            intent.cancel()
            put.cancel()
            await asyncio.gather(put, intent, return_exceptions=True)
        return now_ms

    async def _intend(self, owner_group: int, key: str, groups: list[int], now_ms: int) -> None:
        """Log the intent of a pack that no index names yet. If the group's log time is far ahead
        of this core's, the intent gets that time. Raises Unavailable, OutcomeUnknown."""
        reply = await self.groups.propose(owner_group, PackWritten(key, groups, now_ms))
        in_time = self.groups.now_ms() - now_ms <= WRITE_MS_MAX
        if reply.code == Code.GONE and isinstance(reply.detail, int) and in_time:
            reply = await self.groups.propose(owner_group, PackWritten(key, groups, reply.detail))
        if reply.code == Code.GONE:
            raise Unavailable("the intent of the pack came too late")

    async def propose_all(self, commands: Mapping[int, Command]) -> list[tuple[int, Outcome]]:
        """Propose commands to all groups concurrently and return each outcome.

        A failure in one group does not affect the others; the collector later asks that group again
        whether it holds the pack.
        """
        outcomes = await asyncio.gather(
            *(self._propose(group, command) for group, command in commands.items())
        )
        return list(zip(commands, outcomes, strict=True))

    async def _propose(self, group: int, command: Command) -> Outcome:
        try:
            return await self._insist(lambda: self.groups.propose(group, command))
        except (Unavailable, OutcomeUnknown) as fault:
            return fault

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run an idempotent step, with up to TRIES attempts."""
        for attempt in range(TRIES - 1):
            try:
                return await step()
            except (StoreUnavailable, Unavailable, OutcomeUnknown):
                await self.sleep(BACKOFF_SECONDS * 2**attempt)
        return await step()

    async def _insist_for(self, seconds: float, step: Callable[[], Awaitable[T]]) -> T:
        """Run an idempotent step until it succeeds, or the time is over."""
        now, failures = asyncio.get_running_loop().time, 0
        until = now() + seconds
        while True:
            try:
                return await step()
            except (StoreUnavailable, Unavailable, OutcomeUnknown):
                pause = min(pause_after(failures), BESIDE_SECONDS_MAX)
                if now() + pause > until:
                    raise
            await self.sleep(pause)
            failures += 1


def entries_for(
    groups: Groups, machine: Machine | None, listed: list[tuple[int, ColdSlice]]
) -> list[tuple[int, ColdSlice]]:
    """Return slices as the group's log may have them: of version 1, which has no flags, while some
    nodes run an older release. Without the machine, since this node leads the group no more, its
    level is not known: they stay as they are, and the leader refuses what is above that level."""
    if machine is None or groups.may_log(machine, ENTRY_LEVEL):
        return listed
    return [(uid, as_v1(cold)) for uid, cold in listed]


def zstd_levels(groups: Groups, members: Iterable[int], level: int) -> dict[int, int]:
    """Return the level of zstd for the slices of each group: 0 for all while some nodes run an
    older release, which cannot read compressed ones."""
    machines = groups.machines()
    return {
        group: level
        if (machine := machines.get(group)) and groups.may_log(machine, COMPRESSION_LEVEL)
        else 0
        for group in members
    }


def let_the_loop_run() -> None:
    """Sleep briefly. A thread that only yields the GIL takes it back before the loop wakes, for up
    to 5 ms."""
    time.sleep(YIELD_SECONDS)
