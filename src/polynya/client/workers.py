"""Worker groups as an operation: every record is delivered at least once, to one worker of the
group.

A group has a fixed number of *lanes*. A lane is a pull-wake subscription of the server, with its
own cursor on each stream of the group. Each record belongs to one lane, by its number or by its
stream; a lane skips the records of the others. The holder of a lane's lease handles its records, so
at most one worker per lane is busy. A turn with a lease is short, so that a single worker serves
all lanes and others can take over.

Fetching the next record acknowledges the previous one. If a lease ends early, because the worker
died or was cut off, unacknowledged records go to the lane's next worker. Cursors are written about
once a second, and at the end of a turn.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar
from zlib import crc32

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.client import errors, verbs
from polynya.client.attempts import BEATS_PER_LEASE, PROCESS_ATTEMPTS, Attempts, pause_before
from polynya.client.calls import call
from polynya.client.lanes import Beat, KeptLanes
from polynya.client.leases import (
    Done,
    GivenBack,
    Job,
    Lease,
    LeasedStream,
    Wake,
    claimed,
    done_in,
    given_back,
    numbered,
)
from polynya.client.messages import (
    Deliver,
    Effect,
    EffectResult,
    HttpRequest,
    Operation,
    Pause,
    Retry,
)
from polynya.client.reading import ReadPosition
from polynya.client.values import JSON_TYPE, NOW, Page
from polynya.client.worker_settings import LANES_MAX, WorkerSettings, lane_target, wake_stream

Result = TypeVar("Result")
TURN_SECONDS = 5.0  # then the lease is released for other workers, or to serve another lane
ACK_SECONDS = 1.0  # interval between cursor updates
HANDLE_SECONDS = 600.0  # how long a lease is renewed for one record


class Turn:
    """The processing of one lease."""

    def __init__(
        self, plan: WorkerSettings, lane: int, lease: Lease, retry: Retry, attempts: Attempts
    ) -> None:
        self._attempts = attempts
        self._plan = plan
        self._lane = lane
        self._retry = retry
        self.lease = lease
        self.over = False
        self._earlier = 0  # failed attempts of the next record
        self._given_back: GivenBack | None = None

    def work(self) -> Operation[bool]:
        """Handle the lane's pending records. Return True if more work is waiting. Raises
        `LeaseLost`."""
        for link in self.lease.streams:
            if link.has_pending and not self.over:
                if self._plan.by == "stream" and self._plan.lane_of(link.path, 0) != self._lane:
                    self.lease.handled[link.path] = link.tail_offset
                else:
                    yield from self._stream(link)
        if self._given_back is not None:
            return not self._given_back.retry_after_ms
        return (yield from self._ack(done=True)).next_wake

    def _stream(self, link: LeasedStream) -> Operation[None]:
        """Handle the records that were pending when the lease started."""
        position = ReadPosition(link.path, link.acked_offset)
        self._earlier = self.lease.failed_attempts(link)
        while position.offset < link.tail_offset and not self.over:
            try:
                page, now = yield from _timed(position.get(self._retry))
            except errors.Trimmed as trimmed:
                if trimmed.retained_offset <= position.offset:
                    raise
                position.offset = trimmed.retained_offset  # earlier records were trimmed
                continue
            except (errors.StreamNotFound, errors.StreamGone, errors.StreamReplaced):
                self.lease.handled.pop(link.path, None)  # the stream's deletion removed the cursor
                return
            position.move(page)
            yield from self._page(page, now)
            if self._given_back is not None:
                return
            yield from self._step(now)
            if page.up_to_date:
                return

    def _page(self, page: Page, now: float) -> Operation[None]:
        for record, number in numbered(page):
            earlier, self._earlier = self._earlier, 0
            if self._plan.lane_of(page.stream, number) != self._lane:
                self.lease.handled[page.stream] = record.offset or self.lease.handled.get(
                    page.stream, page.begin
                )
                continue
            key = (self._plan.group, page.stream, number)
            attempt = self._attempts.begin(key)
            if pause := pause_before(attempt, self.lease.seconds):
                yield from self._ack(done=False)  # renews the lease
                now = (yield Pause(pause)).now
            attempt = max(attempt, earlier + 1)
            job = Job(record, self.lease, self._plan.max_attempts, attempt, is_json=page.is_json)
            self.lease.job, self.lease.handling_since = job, now
            now = (yield Deliver(job)).now
            self.lease.job = self.lease.handling_since = None
            self._attempts.end(key)
            if job.failure is not None:
                yield from self._give_back(job)
                return
            if record.offset:
                self.lease.handled[page.stream] = record.offset
            if self.lease.lost:
                raise errors.LeaseLost(f"the lease on '{page.stream}' expired")
            self.over = now - self.lease.began >= TURN_SECONDS
            if self.over:
                return
            yield from self._step(now)
        self.lease.handled[page.stream] = page.offset

    def _give_back(self, job: Job) -> Operation[None]:
        """Give a job back, which ends the lease. Raises `LeaseLost`."""
        self.over = True
        if self.lease.lost:
            raise errors.LeaseLost(f"the lease on '{job.stream}' expired")
        try:
            self._given_back = yield from call(
                self.lease.retry(job), self._retry, "give a job back", given_back, repeatable=True
            )
        except errors.Refused as refused:
            if refused.code != "INVALID_OFFSET":
                raise
            yield from self._ack(done=True)  # the record was trimmed, or its stream deleted
            self._given_back = GivenBack()

    def _step(self, now: float) -> Operation[None]:
        """Advance the cursors if `ACK_SECONDS` have passed."""
        if now - self.lease.acked_at >= ACK_SECONDS:
            self.lease.acked_at = now
            yield from self._ack(done=False)

    def _ack(self, *, done: bool) -> Operation[Done]:
        """Send the cursors. Raises `LeaseLost`."""
        handled = dict(self.lease.handled)
        try:
            answer = yield from call(
                self.lease.ack(done=done), self._retry, "acknowledge", done_in, repeatable=True
            )
        except errors.Refused as refused:
            if refused.code != "INVALID_OFFSET":
                raise
            yield from self._ack_one_by_one()
            return (
                yield from call(
                    self.lease.ack(done=done), self._retry, "acknowledge", done_in, repeatable=True
                )
            )
        for stream, offset in handled.items():
            if self.lease.handled.get(stream) == offset:
                del self.lease.handled[stream]
        return answer

    def _ack_one_by_one(self) -> Operation[None]:
        """Advance each cursor separately: one of the streams, and its cursor, was deleted."""
        handled, self.lease.handled = self.lease.handled, {}
        for stream, offset in handled.items():
            self.lease.handled = {stream: offset}
            try:
                yield from call(
                    self.lease.ack(), self._retry, "acknowledge", done_in, repeatable=True
                )
            except errors.Refused as refused:
                if refused.code != "INVALID_OFFSET":
                    raise
        self.lease.handled = {}


class Worker:
    """A worker of a group.

    `lease` is the lease that it holds. The client renews it for up to `handle_seconds` while a
    record is handled. `turns_lost` counts expired leases."""

    def __init__(
        self,
        plan: WorkerSettings,
        name: str,
        retry: Retry,
        *,
        handle_seconds: float = HANDLE_SECONDS,
        attempts: Attempts | None = None,
    ) -> None:
        self._attempts = PROCESS_ATTEMPTS if attempts is None else attempts
        self._plan = plan
        self._retry = retry
        self._handle_seconds = handle_seconds
        self._wakes = ReadPosition(plan.wake_stream, NOW)
        self._joined = False
        self._claims = 0
        self.name = name
        self.lease: Lease | None = None
        self.turns_lost = 0
        self._now: float | None = None
        self._lane: int | None = None  # the one that it is at work on
        self._kept = KeptLanes(
            lane_target(plan.group, 0), name, plan.lanes, is_sticky=plan.by == "stream"
        )

    @property
    def lanes(self) -> list[int]:
        """The lanes that it keeps."""
        return self._kept.lanes

    @property
    def beat_seconds(self) -> float:
        """The time between two heartbeats."""
        return self._plan.lease_seconds / BEATS_PER_LEASE

    def join(self) -> Operation[None]:
        """Create the group if it is missing; it receives the records appended from now on. Raises
        `StreamExists` if it exists with other settings."""
        if self._joined:
            return
        yield from verbs.create(self._plan.wake_stream, JSON_TYPE, {}, self._retry)
        self._wakes.offset = (yield from verbs.head(self._plan.wake_stream, self._retry)).offset
        if (dead_letters := self._plan.dead_letter_stream) is not None:
            yield from verbs.create(dead_letters, JSON_TYPE, {}, self._retry)
        for lane in range(self._plan.lanes):
            request = HttpRequest(
                "PUT",
                lane_target(self._plan.group, lane),
                {"content-type": JSON_TYPE},
                self._plan.subscription(),
            )
            yield from call(
                request,
                self._retry,
                f"create the group '{self._plan.group}'",
                lambda _: None,
                repeatable=True,
            )
        self._joined = True

    def work(self, *, wait: bool) -> Operation[None]:
        """Yield jobs. Without `wait`, end when no lane has unclaimed work."""
        yield from self.join()
        self._now = None
        first = crc32(self.name.encode()) % self._plan.lanes  # spread the workers over the lanes
        lanes = [(first + lane) % self._plan.lanes for lane in range(self._plan.lanes)]
        asked: Iterable[int] = lanes
        while True:
            self._now = yield from self._kept.renew(self._now, self._retry)
            busy = False
            for lane in asked:
                busy |= self._kept.has(lane) and (yield from self._turn(lane))
            if busy:
                asked = lanes
            elif wait:
                woken = yield from self._wait()
                asked = [lane for lane in lanes if lane in woken] or lanes
            else:
                return

    def _turn(self, lane: int) -> Operation[bool]:
        """Serve a lane once. Return True if it had work."""
        self._lane = lane
        lease = yield from self._claim(lane)
        if lease is not None:
            self.lease = lease
            try:
                yield from Turn(self._plan, lane, lease, self._retry, self._attempts).work()
            except errors.LeaseLost:
                self.turns_lost += 1
        self.lease = self._lane = None
        return lease is not None

    def _claim(self, lane: int) -> Generator[Effect, EffectResult, Lease | None]:
        """Claim a lane. The worker's name is unique, so the claim number distinguishes a retry from
        a new claim."""
        target = lane_target(self._plan.group, lane)
        self._claims += 1
        body = msgspec.json.encode({"worker": self.name, "claim_id": str(self._claims)})
        request = HttpRequest("POST", f"{target}/claim", {"content-type": JSON_TYPE}, body)
        try:
            claim, self._now = yield from _timed(
                call(
                    request,
                    self._retry,
                    f"work for '{self._plan.group}'",
                    claimed,
                    repeatable=True,
                )
            )
        except errors.Refused as refused:
            if refused.code in ("NO_PENDING_WORK", "ALREADY_CLAIMED"):
                return None
            raise
        return Lease(target, claim, self._now)

    def beats(self, now: float) -> Iterator[Beat]:
        """Yield the requests of a heartbeat, each with what takes its outcome. A worker that is at
        one record for too long is no longer alive."""
        lease = self.lease_to_keep(now)
        if lease is not None:
            yield lease.beat()
        is_stuck = lease is None and self.lease is not None and self.lease.job is not None
        if self._kept.are_shared and not is_stuck:
            lane = self._lane
            yield self._kept.beat([] if lane is None else [lane], now)

    def lease_to_keep(self, now: float) -> Lease | None:
        """Return the lease to renew now, if a record is being handled and not for too long."""
        lease = self.lease
        since = lease.handling_since if lease is not None else None
        return lease if since is not None and now - since < self._handle_seconds else None

    def _wait(self) -> Operation[set[int]]:
        """Long-poll the wake stream; return the lanes that it names, or none if workers came or
        went."""
        position = self._wakes
        page, self._now = yield from _timed(position.get(self._retry, "long-poll"))
        position.move(page)
        lanes, have_changed = set(), False
        for raw in page.raws:
            try:
                wake = msgspec.json.decode(raw, type=Wake)
            except UNREADABLE:
                continue
            have_changed |= wake.type == "workers"
            _, _, lane = wake.subscription_id.rpartition(".")
            if lane.isdecimal():
                lanes.add(int(lane))
        if have_changed:
            self._kept.look_again()
        return set() if have_changed else lanes

    def closing_request(self, error: BaseException | None = None) -> HttpRequest | None:
        """Return the request that acknowledges the handled records and releases the lease, if the
        worker stops during a turn. After an `error` of the handler it gives the job back."""
        lease, self.lease = self.lease, None
        if lease is None or lease.lost:
            return None
        job = lease.job
        if job is not None and not job.is_acked and isinstance(error, Exception):
            job.retry(error=f"{type(error).__name__}: {error}")
        if job is None or job.failure is None:
            return lease.ack(done=True)
        self._attempts.forget(self._plan.group, job.stream)  # the server counts them now
        return lease.retry(job)

    def leave(self) -> HttpRequest | None:
        """Return the request that gives the worker's lanes to the others."""
        return self._kept.report(leaves=True) if self._kept.are_shared else None


def disband(group: str, retry: Retry) -> Operation[int]:
    """Delete a group, its cursors and its wake stream. Return the number of lanes that it had."""
    what = f"delete the group '{group}'"
    count = 0
    for lane in range(LANES_MAX):
        target = lane_target(group, lane)
        try:
            yield from call(
                HttpRequest("GET", f"{target}?limit=1"),
                retry,
                what,
                lambda _: None,
                repeatable=True,
            )
        except errors.Refused as refused:
            if refused.status == 404:
                break
            raise
        yield from call(HttpRequest("DELETE", target), retry, what, lambda _: None, repeatable=True)
        count += 1
    yield from verbs.delete(wake_stream(group), retry, missing_ok=True)
    return count


def _timed(operation: Operation[Result]) -> Generator[Effect, EffectResult, tuple[Result, float]]:
    """Run an operation; return its result and the time of the last response."""
    now = 0.0
    effect = next(operation)
    while True:
        effect_result = yield effect
        now = effect_result.now
        try:
            effect = operation.send(effect_result)
        except StopIteration as stop:
            return stop.value, now
