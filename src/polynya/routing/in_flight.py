"""The attempts of one core to propose: their order, those in flight, and the retries of those that
wait."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import attrgetter

import msgspec

from polynya.base.errors import NotLeader, Unavailable
from polynya.base.limits import INFLIGHT_BYTES_PER_CORE
from polynya.routing.send import Target
from polynya.stream.command import Command
from polynya.stream.parts import Batch
from polynya.stream.replies import Done

PATIENCE_SECONDS = 2.5  # retry timeout while a group has no leader
HOPS_MAX = 3  # immediate retries of an attempt after redirects; later retries wait for the timer
# before the first retries of an attempt: a leadership that is transferred arrives in a few ms
SOON_SECONDS = 0.003
SOON_MAX = 10  # such retries of an attempt
LOOK_SECONDS = 0.05  # retry interval for waiting attempts, even without news
# A refusal comes at once: a target that has not answered for this long has accepted what it got.
SILENCE_SECONDS = 0.1
_number = attrgetter("number")


class Attempt(msgspec.Struct):
    """A proposal on its way to the leader of its group. Times are of the loop, in seconds."""

    number: int  # in proposal order
    group: int
    command: Command
    body: bytes  # empty until first sent to another core
    done: Done
    deadline: float
    hops: int = 0  # redirects so far

    def size(self) -> int:
        """Return the approximate bytes that the attempt holds, encoded or not."""
        batch = getattr(self.command, "batch", None)  # of markers it is their bytes
        return len(self.body) or 1024 + (len(batch.payload) if isinstance(batch, Batch) else 0)


class WaitingAttempts:
    """The attempts of one core that wait for a leader. `free_target` returns the target that one
    can go to now, with -1 if it must wait; `go` sends it there.

    Those of a group are sent in proposal order."""

    def __init__(
        self,
        free_target: Callable[[Attempt], Target],
        go: Callable[[Attempt, Target], None],
    ) -> None:
        self.by_group: dict[int, deque[Attempt]] = {}
        self.refused = 0  # total
        self._free_target = free_target
        self._go = go
        self._loop = asyncio.get_running_loop()
        self._count = self._bytes = 0
        self._soon: set[int] = set()  # groups that are retried soon
        self._looking: asyncio.TimerHandle | None = None

    def new(self, group: int, command: Command, done: Done) -> Attempt:
        """Return the next attempt in proposal order."""
        self._count += 1
        return Attempt(self._count, group, command, b"", done, self._loop.time() + PATIENCE_SECONDS)

    def close(self) -> None:
        """Reject the waiting attempts."""
        if self._looking is not None:
            self._looking.cancel()
        for group in list(self.by_group):
            for attempt in self.by_group.pop(group):
                attempt.done(Unavailable("this node is stopping"))

    def add(self, attempt: Attempt) -> bool:
        """Let an attempt wait at its position in proposal order. Return False if there is no room; it
        was rejected then."""
        size = attempt.size()
        if self._bytes + size > INFLIGHT_BYTES_PER_CORE:
            self.refused += 1
            attempt.done(Unavailable("too many proposals are waiting for a leader election; retry"))
            return False
        self._bytes += size
        waiting = self.by_group.setdefault(attempt.group, deque())
        if waiting and waiting[-1].number > attempt.number:  # it was in flight when those arrived
            waiting.insert(bisect_right(waiting, attempt.number, key=_number), attempt)
        else:
            waiting.append(attempt)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        return True

    def redirected(self, attempt: Attempt, *, learned: bool) -> None:
        """Retry an attempt that was refused, at once if another leader was `learned`, or soon. If
        it was refused often, it waits for news or the timer."""
        group = attempt.group
        attempt.hops += 1
        if learned and attempt.hops <= HOPS_MAX:
            self._loop.call_soon(self.retry, group)
        elif attempt.hops <= SOON_MAX and group not in self._soon:
            self._soon.add(group)
            self._loop.call_later(SOON_SECONDS, self._retry_soon, group)

    def notify(self, group: int) -> None:
        """Retry the attempts of a group after this pass of the loop: its leader may be known."""
        if group in self.by_group:
            self._loop.call_soon(self.retry, group)

    def retry(self, group: int) -> None:
        """Send the waiting attempts in order, as far as possible, and reject those past their
        deadline."""
        waiting, now = self.by_group.get(group, deque()), self._loop.time()
        for _ in range(len(waiting)):  # an attempt that returns at once waits for the timer
            attempt = waiting[0]
            target = self._free_target(attempt)
            if target[0] < 0 and attempt.deadline > now:
                return
            waiting.popleft()
            self._bytes -= attempt.size()
            if target[0] >= 0:
                self._go(attempt, target)
            else:
                self.refused += 1
                attempt.done(NotLeader(0))
        if not waiting:
            self.by_group.pop(group, None)

    def _retry_soon(self, group: int) -> None:
        self._soon.discard(group)
        self.retry(group)

    def _look(self) -> None:
        for group in list(self.by_group):
            self.retry(group)
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look) if self.by_group else None


class InFlight:
    """The attempts in flight of each group. To keep their order, all of a group go to one target.

    A target that was just elected refuses what comes before it has applied the earlier terms, and
    accepts what comes a moment later. So only one attempt at a time goes to a target that has
    accepted none since it became the leader or refused one: else it could refuse the first of two
    and accept the second. `now` returns the loop's time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.counts: dict[int, int] = {}  # by group; a bundle is one attempt
        self._targets: dict[int, int] = {}  # of those in flight
        self._since: dict[int, float] = {}  # when the first of those in flight set out
        self._accepting: dict[int, int] = {}  # the targets that have accepted an attempt
        self._now = now

    def begin(self, group: int, target: int) -> None:
        """Count an attempt that sets out."""
        count = self.counts.get(group, 0)
        if not count:
            self._targets[group], self._since[group] = target, self._now()
        self.counts[group] = count + 1

    def end(self, group: int) -> None:
        """Count an attempt that was answered."""
        self.counts[group] -= 1

    def accept(self, group: int, target: int) -> bool:
        """Record that the target accepted an attempt. Return True if more may join it now."""
        is_first = self._accepting.get(group) != target
        if is_first:
            self._accepting[group] = target
        return is_first

    def suspect(self, group: int) -> None:
        """Record a refusal, or another leader or epoch."""
        self._accepting.pop(group, None)

    def can_join(self, group: int, target: int, *, is_local: bool) -> bool:
        """Return True if another attempt for the leader `target` keeps its position behind those in
        flight. A core judges its own in their order."""
        return self._targets[group] == target and (
            is_local
            or self._accepting.get(group) == target
            or self._now() - self._since[group] >= SILENCE_SECONDS
        )
