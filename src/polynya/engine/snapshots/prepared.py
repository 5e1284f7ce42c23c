"""The captures of a backup's round on one core: encoded before commits of transactions are held, so
that only a last step of each is left while they wait."""

from __future__ import annotations

import asyncio

from polynya.base.errors import Unavailable
from polynya.engine.snapshots.capture import Capture, Captured
from polynya.replica import Group

PREPARED_SECONDS = 30.0  # until captures that were not fixed are dropped: snapshots wait for them


class PreparedCaptures:
    """The captures of one round, which hold the core's lock until all are fixed or dropped."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._round = ""
        self._has_lock = False
        self._captures: dict[int, Capture] = {}
        self._fixing: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def prepare(self, backup: str, number: int, group: Group) -> None:
        """Encode a group for a round. Raises Unavailable while another round has the lock."""
        if self._round != backup and backup_of(self._round) == backup_of(backup):
            self.drop()  # that round could not hold commits
        if self._round not in ("", backup):
            raise Unavailable("another backup is capturing groups: retry in a moment")
        self._round = backup
        self._start_timer()
        try:
            async with asyncio.timeout(PREPARED_SECONDS):
                while not self._has_lock:
                    await self._acquire(backup)
        except TimeoutError:
            raise Unavailable("a snapshot of the core takes long: retry in a moment") from None
        if self._round != backup or number in self._captures:
            return
        capture = self._captures[number] = Capture(group, hot=True).__enter__()
        await capture.prepare()

    async def fix(self, backup: str, number: int) -> Captured | None:
        """Return the capture of a group as it is now; None if it was not prepared."""
        capture = self._captures.get(number)
        if self._round != backup or capture is None or number in self._fixing:
            return None
        self._fixing.add(number)
        try:
            moment = await capture.fix()
        finally:
            capture.__exit__()
            self._fixing.discard(number)
            if self._captures.get(number) is capture:
                del self._captures[number]
                if not self._captures:
                    self.drop()
        return await capture.put_together(moment)

    def go_first(self, backup: str) -> None:
        """Drop what another round has prepared, which excludes other captures: commits are held for
        this one. A backup that was killed leaves such a round, and one that goes on prepares again."""
        if self._round != backup:
            self.drop()

    def drop(self) -> None:
        """Drop what is prepared, and let snapshots go on."""
        for capture in self._captures.values():
            capture.__exit__()
        self._captures, self._round = {}, ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._has_lock:
            self._has_lock = False
            self._lock.release()

    async def _acquire(self, backup: str) -> None:
        await self._lock.acquire()
        if self._has_lock or self._round != backup:
            self._lock.release()  # another group of the round was first, or the round is over
            if self._round != backup:
                raise Unavailable("the round of the backup is over")
        else:
            self._has_lock = True

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(PREPARED_SECONDS, self.drop)


def backup_of(round_: str) -> str:
    """Return the backup that a round belongs to."""
    return round_.rpartition("/")[0]
