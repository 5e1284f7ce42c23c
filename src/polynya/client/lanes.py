"""The lanes that a worker of a group keeps while it lives, so that a stream stays at one worker.

A worker reports to the group's first lane, several times in the time after which it counts as dead.
The answer has the lanes that it keeps. A server without such reports leaves all lanes to all
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.client import errors
from polynya.client.attempts import BEATS_PER_LEASE
from polynya.client.calls import Verdict, answer_of, failure, judge, retry_after
from polynya.client.messages import (
    Backoff,
    HttpRequest,
    HttpResponse,
    Operation,
    Pause,
    Retry,
    Send,
)
from polynya.client.values import JSON_TYPE

Beat: TypeAlias = tuple[HttpRequest, Callable[[object], object]]  # and what takes its outcome
REPORT_SECONDS_MAX = 10.0  # of one attempt
AGAIN_SECONDS = 1.0  # before a report whose answer is missing is repeated
_UNKNOWN_TO = frozenset((404, 405, 501))  # statuses of a server without reports


class _Share(msgspec.Struct):
    lanes: list[int]
    session_ms: int


class KeptLanes:
    """The lanes that a worker keeps of a group of `count`. Its foreground and its heartbeat both
    report; the later answer counts."""

    def __init__(self, target: str, worker: str, count: int, *, is_sticky: bool) -> None:
        self._target = target
        self._worker = worker
        self._count = count
        self._lanes: Collection[int] = () if is_sticky else range(count)
        self._is_shared = is_sticky  # the server shares the lanes
        self._reports = self._answered = 0
        self._until = self._due = float("-inf")  # the end of the session, and the next report

    def has(self, lane: int) -> bool:
        return lane in self._lanes

    @property
    def lanes(self) -> list[int]:
        return sorted(self._lanes)

    @property
    def are_shared(self) -> bool:
        return self._is_shared

    def look_again(self) -> None:
        """Report again soon: lanes have moved."""
        self._due = float("-inf")

    def report(self, busy: Collection[int] = (), *, leaves: bool = False) -> HttpRequest:
        """Return a request that says that the worker is alive, and at work on its `busy` lanes; or
        that it leaves."""
        body = {"worker": self._worker, "lanes": self._count, "busy": list(busy), "leave": leaves}
        headers, target = {"content-type": JSON_TYPE}, f"{self._target}/workers"
        return HttpRequest(
            "POST", target, headers, msgspec.json.encode(body), silence_seconds=REPORT_SECONDS_MAX
        )

    def take(self, number: int, sent_at: float, what: object) -> bool:
        """Process the outcome of a report. Return False if it says nothing about the lanes."""
        if not isinstance(what, HttpResponse) or number < self._answered:
            return False
        code = errors.said(what).code if what.status >= 400 else ""
        if what.status in _UNKNOWN_TO or code == "UPGRADE_PENDING":
            self._is_shared, self._lanes = False, range(self._count)
            return True
        if what.status == 429:  # more workers than the server counts: this one waits
            self._set(number, sent_at, _Share([], round(REPORT_SECONDS_MAX * 1000)))
            return True
        try:
            share = msgspec.json.decode(what.body, type=_Share) if what.status == 200 else None
        except UNREADABLE:
            return False
        if share is None:
            return False
        self._set(number, sent_at, share)
        return True

    def _set(self, number: int, sent_at: float, share: _Share) -> None:
        seconds = share.session_ms / 1000
        self._answered, self._lanes = number, frozenset(share.lanes)
        self._until, self._due = sent_at + seconds, sent_at + seconds / BEATS_PER_LEASE

    def renew(self, now: float | None, retry: Retry) -> Operation[float]:
        """Report if that is due; return the time. While an answer is missing, the last one counts
        until its time is over. Then raises `ClientError`."""
        if now is None:
            if not self._is_shared:
                return 0.0
            now = (yield Pause(0.0)).now
        backoff = Backoff(retry)
        while self._is_shared and now >= self._due:
            number, sent_at = self._begun(), now
            result = yield Send(self.report())
            now, what = result.now, answer_of(result)
            if self.take(number, sent_at, what):
                break
            if isinstance(what, HttpResponse) and judge(what) is Verdict.NEVER:
                raise errors.refused(what, "keep lanes")
            if now < self._until:
                self._due = now + AGAIN_SECONDS
                break
            self._lanes = ()
            if (pause := backoff.pause(result, retry_after(what))) is None:
                raise failure(what, "keep lanes", perhaps=False)
            now = (yield Pause(pause)).now
        return now

    def beat(self, busy: Collection[int], now: float) -> Beat:
        """Return a report of the heartbeat, and what takes its outcome."""
        number = self._begun()
        return self.report(busy), lambda what: self.take(number, now, what)

    def _begun(self) -> int:
        self._reports += 1
        return self._reports
