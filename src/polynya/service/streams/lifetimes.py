"""Reads that extend sliding TTLs, and the end of streams whose time is over (F14): when to log a touch, when to propose an expiry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.service.streams.feeds import Feeds
from polynya.stream.commands import Command, Create, Touch
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.rules.writes import judge_known
from polynya.stream.state.model import Stream

TOUCH_MS_MAX = 60_000  # a read extends a TTL in the log at least this often, or every eighth of it
END_IS_NEAR_MS = 1000  # the clocks of two cores differ by less
EXPIRIES_MAX = 1000  # of one sweep
NEVER_MS = 2**62  # the grace of a restart has no end


class Lifetimes:
    """Of the streams of one core. A read counts at once, in memory; what a restart forgets of it is less than the grace given then. Where the
    groups have other members, a read there is known here as late as after a restart: the grace is always given."""

    def __init__(
        self, machines: dict[int, Machine], feeds: Feeds, propose: Callable[[int, Command, Done], None], now_ms: Callable[[], int]
    ) -> None:
        self._machines = machines
        self._feeds = feeds
        self._now_ms = now_ms
        self.propose = propose
        self._began_ms = now_ms()
        self._touched: dict[int, int] = {}  # uid → time of the last read that is not yet in the log
        self._logging: set[int] = set()  # uids with a touch in flight
        self._rounds = self._groups()

    def __len__(self) -> int:
        """Reads remembered and not yet logged."""
        return len(self._touched)

    def spread(self) -> None:
        """The groups have other members."""
        self._began_ms = NEVER_MS

    def is_over(self, machine: Machine, stream: Stream) -> bool:
        """Whether the stream has expired, reads that only this process knows of considered."""
        now = self._now_ms()
        if stream.expires_at_ms is not None or stream.ttl_seconds is None:
            return machine.expired(stream, now)
        if self._feeds.watched(stream.uid):
            return False  # attached live readers keep it
        touched = self._touched.get(stream.uid, 0)
        if stream.activity_ms < self._began_ms:  # the process before this one may have known of a read as late as this
            touched = max(touched, stream.activity_ms + _patience_ms(stream.ttl_seconds))
        return machine.expired(stream, now, touched)

    def is_in_grace(self, machine: Machine, stream: Stream) -> bool:
        """Whether the log, as far as it goes, says that the stream has expired, or soon will, and a read that is not in it may have kept it."""
        if stream.ttl_seconds is None or not machine.expired(stream, self._now_ms() + END_IS_NEAR_MS):
            return False
        return not self.is_over(machine, stream)

    def touch(self, group: int, stream: Stream) -> None:
        """The stream is read now."""
        if stream.ttl_seconds is None:
            return
        now = self._now_ms()
        self._touched[stream.uid] = now
        if now - stream.activity_ms >= _patience_ms(stream.ttl_seconds) and stream.uid not in self._logging:
            self._log(group, stream)

    def log_before_end(self, group: int, stream: Stream) -> None:
        """A read seen here must come into the log before a command that may otherwise find the stream expired."""
        if stream.ttl_seconds is not None and self._machines[group].expired(stream, self._now_ms() + END_IS_NEAR_MS):
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
            if isinstance(reply, Reply) and reply.code == Code.OK and self._touched.get(uid, 0) <= touched:
                self._touched.pop(uid, None)

        self.propose(group, Touch([(uid, touched)], now), logged)

    def forget(self, uid: int) -> None:
        """The stream is no more."""
        self._touched.pop(uid, None)

    def sweep(self) -> list[tuple[int, Stream]]:
        """To be called about every second. Logs the touches that are due; returns streams of one group, another each time, that have
        expired without anybody asking for them."""
        for uid in (*self._touched, *self._feeds.uids()):
            machine = self._machines.get(uid >> 48)
            stream = None if machine is None else machine.by_uid.get(uid)
            if stream is None or stream.ttl_seconds is None:
                self.forget(uid)
            elif self._now_ms() - stream.activity_ms >= _patience_ms(stream.ttl_seconds) and uid not in self._logging:
                self._log(uid >> 48, stream)
        group = next(self._rounds)
        machine = self._machines.get(group)
        if machine is None:  # it has just left
            return []
        timed = (stream for stream in machine.streams.values() if stream.ttl_seconds is not None or stream.expires_at_ms is not None)
        over = (stream for stream in timed if not stream.deleted and self.is_over(machine, stream))
        return [(group, stream) for stream in islice(over, EXPIRIES_MAX)]

    def _groups(self) -> Iterator[int]:
        while True:
            yield from tuple(self._machines) or (0,)


def found_in_grace(machine: Machine | None, uid: int, command: Create, reply: Reply | BaseException) -> Reply | BaseException | None:
    """What a create of a stream that was in its grace is answered, when the log has given this `reply` to something that changes nothing. None: it is not
    the same stream any more, and the log has to say."""
    if not isinstance(reply, Reply):
        return Unavailable("it is not known whether this node still leads; retry") if isinstance(reply, OutcomeUnknown) else reply
    known = None if machine is None else machine.lookup(command.name)
    return None if known is None or known.uid != uid or known.deleted else judge_known(known, command, over=False)


def _patience_ms(ttl_seconds: int) -> int:
    """How long a read may stay out of the log: an eighth of the TTL, at most a minute."""
    return min(ttl_seconds * 125, TOUCH_MS_MAX)
