"""Wait until the local state of a group includes all acknowledged writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polynya.base.errors import Unavailable
from polynya.base.futures import settle
from polynya.engine.replicas.replica_set import ReplicaSet
from polynya.engine.turns import journal_failed
from polynya.raft import Role

READ_SECONDS = 2.5  # timeout of a linearizable read


class LinearizableReads:
    """The linearizable reads of one core. `kick` schedules a turn."""

    def __init__(
        self, replicas: ReplicaSet, now_ms: Callable[[], int], kick: Callable[[], None]
    ) -> None:
        self.fit = replicas.fit
        self._members, self._now_ms, self._kick = replicas.members, now_ms, kick
        self._stopped = False

    def readable(self, group: int) -> bool:
        """Return True if the local state can serve a linearizable read now."""
        member = self._members.get(group)
        return member is not None and not self._stopped and member.raft.readable(self._now_ms())

    async def linearize(self, group: int) -> None:
        """Wait until the local state includes all writes acknowledged anywhere before this call.
        Raises Unavailable when no leader responds, or when the local replica is missing or still
        catching up."""
        if self._stopped:
            raise journal_failed()
        if not self.fit(group):
            raise Unavailable(
                "this node has no replica of the group to read from; retry, or ask another node"
            )
        if self._members[group].raft.readable(self._now_ms()):
            return
        future = self._begin(group)
        try:
            async with asyncio.timeout(READ_SECONDS):
                await future
        except TimeoutError:
            raise Unavailable(
                "this node has not caught up with acknowledged writes; retry, or ask another node"
            ) from None

    def stop(self) -> None:
        """Refuse all reads from here on: the core is dead."""
        self._stopped = True

    def _begin(self, group: int) -> asyncio.Future[None]:
        """Start a read, or join the one that this turn starts."""
        member = self._members[group]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if member.reading is not None:
            member.reading.append(future)
            return future
        waiting: list[asyncio.Future[None]] = [future]
        refusal = member.raft.read(waiting, self._now_ms())
        if refusal is not None:
            raise Unavailable("too many reads are waiting for this group; retry")
        if member.raft.role is not Role.LEADER:
            # one read index request per turn; a leader's lease may expire before the next read
            member.reading = waiting
        self._kick()
        return future


def settle_all(futures: list[asyncio.Future[None]], fault: BaseException | None) -> None:
    """Settle the waiters of one read."""
    for future in futures:
        settle(future, fault)
