"""The fetch sessions of one core: which request belongs to which, and which makes room."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from polynya.base.limits import (
    KAFKA_FETCH_SESSION_PARTITIONS_MAX,
    KAFKA_FETCH_SESSION_PARTITIONS_PER_CORE,
    KAFKA_FETCH_SESSIONS_PER_CORE_MAX,
)
from polynya.front.kafka.errors import Error
from polynya.front.kafka.fetch_sessions.session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    count_of,
)
from polynya.wire.kafka.generated.fetch import FetchableTopicResponse, FetchRequest, FetchTopic

EVICTION_SECONDS = 120.0  # as Kafka's `min.incremental.fetch.session.eviction.ms`


def _random_id() -> int:
    return secrets.randbelow(2**31 - 1) + 1


class FetchSessions:
    """The sessions of one core, least recently used first."""

    def __init__(self, draw_id: Callable[[], int] = _random_id) -> None:
        self.partitions = 0  # of all sessions
        self.evictions = self.declined = 0
        self._draw_id = draw_id
        self._sessions: dict[int, FetchSession] = {}

    @property
    def sessions(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def resume(
        self, held: FetchSession | None, request: FetchRequest, *, by_id: bool, now: float
    ) -> tuple[FetchSession | None, Error]:
        """Find the session of a request on a connection that holds `held`, and take over what it
        changes. (None, NONE): a full fetch, which closes the session that it names."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if held is not None and (
                held.id == request.session_id or request.session_epoch == INITIAL_EPOCH
            ):
                self.close(held)
            return None, Error.NONE
        if held is None:
            return None, Error.FETCH_SESSION_ID_NOT_FOUND
        if error := held.refusal(request.session_id, request.session_epoch, by_id=by_id):
            return None, error
        return self._updated(held, request, now)

    def _updated(
        self, session: FetchSession, request: FetchRequest, now: float
    ) -> tuple[FetchSession | None, Error]:
        before = len(session.partitions)
        session.update(request.topics, request.forgotten_topics_data)
        size = len(session.partitions)
        self.partitions += size - before
        self.touch(session, now)
        if size > before and not self._has_room(session, now):
            self.close(session)
            return None, Error.FETCH_SESSION_ID_NOT_FOUND  # the client fetches in full
        if not size:
            self.close(session)
            return None, Error.NONE
        session.advance()
        return session, Error.NONE

    def create(
        self,
        topics: Sequence[FetchTopic],
        responses: Sequence[FetchableTopicResponse],
        *,
        by_id: bool,
        now: float,
    ) -> FetchSession | None:
        """Create a session of the partitions of a full fetch, which are told in full; None: there
        is no room, or nothing to keep."""
        size = count_of(topics)
        if not size:
            return None
        if size > KAFKA_FETCH_SESSION_PARTITIONS_MAX or not self._make_room(size, now):
            self.declined += 1
            return None
        session = FetchSession(self._new_id(), by_id=by_id, now=now)
        session.update(topics, ())
        session.take(responses)
        self._sessions[session.id] = session
        self.partitions += len(session.partitions)
        return session

    def touch(self, session: FetchSession, now: float) -> None:
        """Note that a session is used."""
        session.used = now
        self._sessions[session.id] = self._sessions.pop(session.id)

    def close(self, session: FetchSession | None) -> None:
        """End a session, if it is open."""
        if session is not None and session.is_open:
            session.is_open = False
            del self._sessions[session.id]
            self.partitions -= len(session.partitions)
            session.partitions.clear()

    def _new_id(self) -> int:
        while True:
            id_ = self._draw_id()
            if id_ not in self._sessions:
                return id_

    def _has_room(self, session: FetchSession, now: float) -> bool:
        """Make room for the partitions that a session has got; return False if it is too large."""
        return len(session.partitions) <= KAFKA_FETCH_SESSION_PARTITIONS_MAX and self._fit(0, now)

    def _make_room(self, size: int, now: float) -> bool:
        """Evict what a new session of `size` partitions may replace; return False if it does not
        fit."""
        if not self._fit(size, now):
            return False
        if len(self._sessions) < KAFKA_FETCH_SESSIONS_PER_CORE_MAX or self._evict_stale(now):
            return True
        old = (each for each in self._sessions.values() if now - each.created > EVICTION_SECONDS)
        smallest = min(old, key=lambda each: len(each.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        self._evict(smallest)
        return True

    def _fit(self, size: int, now: float) -> bool:
        """Evict stale sessions until `size` more partitions are within the budget."""
        while self.partitions + size > KAFKA_FETCH_SESSION_PARTITIONS_PER_CORE:
            if not self._evict_stale(now):
                return False
        return True

    def _evict_stale(self, now: float) -> bool:
        """Evict the session that was unused for longest, if that is long enough."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.used <= EVICTION_SECONDS:
            return False
        self._evict(oldest)
        return True

    def _evict(self, session: FetchSession) -> None:
        self.evictions += 1
        self.close(session)
