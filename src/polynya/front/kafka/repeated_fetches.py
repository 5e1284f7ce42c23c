"""Fetches of consumers that wait: the same request again, while nothing has changed.

An idle consumer repeats its Fetch twice a second with all its partitions, or in a session with
none of them: then only the epoch differs. What the first answer
said is kept with the connection: as long as no partition grows and no leader changes, a repeat
waits at the same tails and gets the same bytes, without being decoded. It stays at the tails between
its repeats, so that a repeat costs the same for one partition and for a thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from polynya.front.kafka.call import Call
from polynya.front.kafka.fetch_sessions.session import FetchSession
from polynya.front.kafka.tails import ParkedFetch, Tail
from polynya.wire.kafka.primitives import Bytes

# The answer is made from scratch at least so often: a trim changes it, and wakes no fetch.
FRESH_SECONDS = 10.0
_VERSION_END, _CORRELATION_END = 4, 8
# the epoch of a session in the body of a request; since version 15 it has no replica id
_EPOCH_AT, _REPLICA_BYTES, _NO_REPLICA_SINCE = 21, 4, 15
# of a request before the flexible versions: the bytes before its topics, and those of a partition
_FIXED_BYTES = {
    version: (17 + 8 * (version >= 7), 16 + 8 * (version >= 5) + 4 * (version >= 9))
    for version in range(4, 12)
}


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A partition at whose end a consumer waits: its Raft group, the leader epoch, the tail, and
    the ends that the answer gave."""

    group: int
    epoch: int
    tail: Tail
    high: int
    stable: int

    @property
    def has_changed(self) -> bool:
        """Report whether there may be more to tell than there was."""
        tail = self.tail
        return not tail.is_live or tail.high > self.high or tail.stable > self.stable


class RepeatedFetch:
    """A Fetch that was answered without records, and its answer."""

    def __init__(
        self,
        call: Call,
        answer: Sequence[Bytes],
        waiting: Sequence[Waiting],
        wait: tuple[int, float],
        session: FetchSession | None = None,
    ) -> None:
        """`wait`: the bytes for which the client waits, and for how many seconds. `session`: the
        request changed nothing in it, and `answer` tells nothing."""
        data = bytes(call.data)
        self._head, self._body = data[:_VERSION_END], data[_CORRELATION_END:]
        self._session = session
        at = call.header.body + _EPOCH_AT - _REPLICA_BYTES * (call.version >= _NO_REPLICA_SINCE)
        self._epoch_at = at - _CORRELATION_END
        self._signature = [] if session is not None else _signature(call, data)
        whole = b"".join(answer)
        self._size, self._answer = whole[:_VERSION_END], whole[_CORRELATION_END:]
        self._waiting = waiting
        self._groups = {each.group: each.epoch for each in waiting}
        self._min_bytes, self._seconds = wait
        self._parked: ParkedFetch | None = None  # at the tails
        self._is_ended = False
        self._until = asyncio.get_running_loop().time() + FRESH_SECONDS

    def is_same(self, call: Call) -> bool:
        """Report whether a request is this one again, and the leaders are those of its answer."""
        context = call.context
        if call.data[:_VERSION_END] != self._head or not self._has_same_body(call):
            return False
        if call.throttle_ms or asyncio.get_running_loop().time() > self._until:
            return False
        epoch_of, is_readable = context.brokers.epoch_of, context.service.is_readable
        return all(
            is_readable(group) and epoch_of(group) == epoch for group, epoch in self._groups.items()
        )

    def _has_same_body(self, call: Call) -> bool:
        body = call.data[_CORRELATION_END:]
        if self._session is not None:
            at, known = self._epoch_at, self._body
            end = at + 4
            return (
                body[:at] == known[:at]
                and body[end:] == known[end:]
                and self._session.is_open
                and int.from_bytes(body[at:end], signed=True) == self._session.epoch
            )
        return body == self._body or bool(
            self._signature and _signature(call, bytes(call.data)) == self._signature
        )

    async def answered(self, call: Call) -> float:
        """Wait as the request says, and answer if nothing changes. Else return the seconds that are
        left of the wait; -1: it is answered."""
        connection, session, loop = call.connection, call.session, asyncio.get_running_loop()
        async with session.fetching:
            if self._is_ended or not (self._session is None or self._has_same_body(call)):
                return self._seconds  # another request came between
            until = loop.time() + self._seconds
            if not await connection.responses.wait_writable():
                return 0.0
            parked = session.parked = self._watch()
            try:
                if not (connection.is_ending or parked.is_touched):
                    await parked.wait_until(until)
                    call.waited(is_woken=parked.is_touched)
            finally:
                session.parked = None
            if parked.is_touched:
                return max(0.0, until - loop.time())
            if not self._advance(call, loop.time()):
                return max(0.0, until - loop.time())
            correlation = call.header.correlation.to_bytes(4, signed=True)
            call.send([self._size + correlation + self._answer])
            return -1.0

    def _watch(self) -> ParkedFetch:
        """Wait at the tails, where this fetch stays between its repeats."""
        parked = self._parked
        if parked is not None:
            parked.renew()
            return parked
        parked = self._parked = ParkedFetch(self._min_bytes)
        for each in self._waiting:
            each.tail.parked[parked] = None
            parked.is_touched = parked.is_touched or each.has_changed
        return parked

    def _advance(self, call: Call, now: float) -> bool:
        """Use the epoch of the session; return False if it has been closed."""
        session = self._session
        if session is None:
            return True
        if session.is_open:
            session.advance()
            call.context.fetch_sessions.touch(session, now)
        return session.is_open

    def end(self) -> None:
        """Leave the tails: another fetch follows, or the connection is lost."""
        self._is_ended, parked, self._parked = True, self._parked, None
        if parked is not None:
            for each in self._waiting:
                each.tail.parked.pop(parked, None)


def _signature(call: Call, data: bytes) -> list[bytes]:
    """Return a request without its correlation id as parts in which the order of the partitions
    does not matter: some clients shuffle them. Empty: it is not known how to."""
    head_bytes, size = _FIXED_BYTES.get(call.version, (0, 0))
    if not head_bytes:
        return []
    at = call.header.body + head_bytes
    topics = int.from_bytes(data[at : at + 4])
    at += 4
    parts, begin = list[bytes](), _CORRELATION_END
    for _ in range(topics):
        at += 2 + int.from_bytes(data[at : at + 2])
        count = int.from_bytes(data[at : at + 4])
        at += 4
        end = at + count * size
        if end > len(data):
            return []
        parts.append(data[begin:at])
        parts += sorted(data[each : each + size] for each in range(at, end, size))
        at = begin = end
    parts.append(data[begin:])
    return parts
