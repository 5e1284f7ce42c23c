"""Sliding TTLs and the expiry of streams: when to log a touch, and when to propose an expiry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.feeds import Feeds
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create, Touch
from polynya.stream.features.lifetimes.creation import judge_known
from polynya.stream.features.lifetimes.rules import is_expired
from polynya.stream.features.tables.watches import held_from
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import Stream

TOUCH_MS_MAX = 60_000  # a read extends a TTL in the log after at most this, or an eighth of the TTL
END_IS_NEAR_MS = 1000  # more than the clocks of two cores differ
EXPIRIES_MAX = 1000  # per sweep
NEVER_MS = 2**62  # the restart grace period never ends


class Lifetimes:
    """The TTL tracker of one core. A read counts at once, in memory. A restart loses less of it
    than the grace period that it grants. In a cluster, reads on other nodes arrive equally late, so
    the grace period always applies."""

    def __init__(
        self,
        machines: dict[int, Machine],
        feeds: Feeds,
        propose: Callable[[int, Command, Done], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._machines = machines
        self._feeds = feeds
        self._now_ms = now_ms
        self.propose = propose
        self._began_ms = now_ms()
        self._touched: dict[int, int] = {}  # uid → time of the last unlogged read
        self._logging: set[int] = set()  # uids with a touch in flight
        self._rounds = self._groups()

    def __len__(self) -> int:
        """Return the number of unlogged reads."""
        return len(self._touched)

    def spread(self) -> None:
        """Switch to replicated groups."""
        self._began_ms = NEVER_MS

    def is_over(self, machine: Machine, stream: Stream) -> bool:
        """Report whether the stream has expired, including reads that only this process has
        seen. The clock of a replica may be behind the log."""
        now = max(self._now_ms(), machine.counters.log_ms)
        if stream.expires_at_ms is not None or stream.ttl_seconds is None:
            return is_expired(stream, now)
        if self._feeds.watched(stream.uid):
            return False  # live readers keep the stream
        touched = self._touched.get(stream.uid, 0)
        # the previous process may have seen a read as late as this
        if stream.activity_ms < self._began_ms:
            touched = max(touched, stream.activity_ms + _patience_ms(stream.ttl_seconds))
        return is_expired(stream, now, touched)

    def is_in_grace(self, machine: Machine, stream: Stream) -> bool:
        """Report whether the log says that the stream has expired, or is about to, but an unlogged
        read may have kept it."""
        if stream.ttl_seconds is None or not is_expired(stream, self._now_ms() + END_IS_NEAR_MS):
            return False
        return not self.is_over(machine, stream)

    def touch(self, group: int, stream: Stream) -> None:
        """Record a read of the stream now."""
        if stream.ttl_seconds is None:
            return
        now = self._now_ms()
        self._touched[stream.uid] = now
        if (
            now - stream.activity_ms >= _patience_ms(stream.ttl_seconds)
            and stream.uid not in self._logging
        ):
            self._log(group, stream)

    def log_before_end(self, group: int, stream: Stream) -> None:
        """Log a local read before a command that might otherwise find the stream expired."""
        if stream.ttl_seconds is not None and is_expired(stream, self._now_ms() + END_IS_NEAR_MS):
            self._log(group, stream)

    def _log(self, group: int, stream: Stream) -> None:
        uid, now = stream.uid, self._now_ms()
        touched = now if self._feeds.watched(uid) else self._touched.get(uid, 0)
        if touched <= stream.activity_ms:
            self._touched.pop(uid, None)
            return
        self._logging.add(uid)

        def logged(reply: Reply | BaseException) -> None:
            self._logging.discard(uid)
            if (
                isinstance(reply, Reply)
                and reply.code == Code.OK
                and self._touched.get(uid, 0) <= touched
            ):
                self._touched.pop(uid, None)

        self.propose(group, Touch([(uid, touched)], now), logged)

    def forget(self, uid: int) -> None:
        """Drop the state of an ended stream."""
        self._touched.pop(uid, None)

    def sweep(self) -> list[tuple[int, Stream]]:
        """Log the touches that are due, and return expired streams that no request has found. Each
        call checks the next group. Call this about once a second."""
        for uid in (*self._touched, *self._feeds.uids()):
            machine = self._machines.get(uid >> 48)
            stream = None if machine is None else machine.directory.by_uid.get(uid)
            if stream is None or stream.ttl_seconds is None:
                self.forget(uid)
            elif (
                self._now_ms() - stream.activity_ms >= _patience_ms(stream.ttl_seconds)
                and uid not in self._logging
            ):
                self._log(uid >> 48, stream)
        group = next(self._rounds)
        machine = self._machines.get(group)
        if machine is None:  # it has just left
            return []
        timed = (
            stream
            for stream in machine.directory.streams.values()
            if stream.ttl_seconds is not None or stream.expires_at_ms is not None
        )
        over = (
            each
            for each in timed
            if not each.deleted and self.is_over(machine, each) and held_from(machine, each) is None
        )
        return [(group, stream) for stream in islice(over, EXPIRIES_MAX)]

    def _groups(self) -> Iterator[int]:
        while True:
            yield from tuple(self._machines) or (0,)


def found_in_grace(
    machine: Machine | None, uid: int, command: Create, reply: Reply | BaseException
) -> Reply | BaseException | None:
    """Return the reply to a create of a stream in its grace period, after a no-op got `reply` from
    the log. None: the stream has changed, so the log must decide."""
    if not isinstance(reply, Reply):
        return (
            Unavailable("this node may have lost the leadership of the group; retry")
            if isinstance(reply, OutcomeUnknown)
            else reply
        )
    known = None if machine is None else machine.directory.lookup(command.name)
    return (
        None
        if known is None or known.uid != uid or known.deleted
        else judge_known(known, command, over=False)
    )


def _patience_ms(ttl_seconds: int) -> int:
    """Return how long a read may stay unlogged: an eighth of the TTL, at most a minute."""
    return min(ttl_seconds * 125, TOUCH_MS_MAX)
