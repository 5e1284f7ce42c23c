"""The history of the members of a Kafka consumer group, and its check.

Offsets are positions in the log of a partition, as in `chaos.history`. Times are of one monotonic
clock, in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from chaos.history import INFO, OK


class Delivery(msgspec.Struct):
    """A record that a member got. `assignment` counts how often the member got the partition."""

    stream: str
    member: str
    assignment: int
    offset: int
    record: str


class Commit(msgspec.Struct):
    """A commit of the next offset to read."""

    stream: str
    member: str
    offset: int
    began: float
    ended: float = math.inf
    outcome: str = INFO


class Committed(msgspec.Struct):
    """The committed offset of the group, as a member or an operator read it; 0: none."""

    stream: str
    reader: str
    offset: int
    began: float
    ended: float


class GroupHistory(msgspec.Struct):
    deliveries: list[Delivery] = []
    commits: list[Commit] = []
    committed: list[Committed] = []

    def acknowledged(self) -> int:
        """Return the number of commits that were acknowledged."""
        return sum(commit.outcome == OK for commit in self.commits)


def check_group(history: GroupHistory, final: dict[str, list[str]]) -> list[str]:
    """Return the violations, each with its kind before a colon; empty when there are none.
    `final`: the final records of each partition."""
    return [
        f"{stream}: {wrong}"
        for stream in sorted(final)
        for wrong in _check_partition(history, stream, final[stream])
    ]


def _check_partition(history: GroupHistory, stream: str, final: list[str]) -> Iterator[str]:
    deliveries = [each for each in history.deliveries if each.stream == stream]
    commits = [each for each in history.commits if each.stream == stream]
    committed = [each for each in history.committed if each.stream == stream]
    yield from _check_deliveries(deliveries, final)
    yield from _check_steps(deliveries)
    yield from _check_commits(commits, committed)
    yield from _check_skipped(deliveries, commits, committed)


def _check_deliveries(deliveries: list[Delivery], final: list[str]) -> Iterator[str]:
    for each in deliveries:
        there = final[each.offset] if each.offset < len(final) else "nothing"
        if each.record != there:
            yield f"group: {each.member} got {each.record} at {each.offset}, where {there} is"


def _check_steps(deliveries: list[Delivery]) -> Iterator[str]:
    """Check that no record is missing, repeated or out of order from the start of an assignment
    on."""
    positions: dict[tuple[str, int], int] = {}
    for each in deliveries:
        key = each.member, each.assignment
        if positions.setdefault(key, each.offset) != each.offset:
            yield f"step: {each.member} got {each.offset} where {positions[key]} is next"
        positions[key] = each.offset + 1


def _check_commits(commits: list[Commit], committed: list[Committed]) -> Iterator[str]:
    """Check that the committed offset never goes back: no read or acknowledged offset is before
    one that was known when it began."""
    known = [
        (each.ended, each.offset, f"a commit of {each.member}")
        for each in commits
        if each.outcome == OK
    ]
    known += [(each.ended, each.offset, f"a read by {each.reader}") for each in committed]
    seen = [(each.began, each.offset, f"{each.reader} read") for each in committed]
    seen += [
        (each.began, each.offset, f"{each.member} committed")
        for each in commits
        if each.outcome == OK
    ]
    known.sort()
    floor, by, passed = 0, "", 0
    for began, offset, what in sorted(seen):
        while passed < len(known) and known[passed][0] < began:
            if known[passed][1] > floor:
                floor, by = known[passed][1], known[passed][2]
            passed += 1
        if offset < floor:
            yield f"back: {what} {offset}, though {by} had ended at {floor} before it began"


def _check_skipped(
    deliveries: list[Delivery], commits: list[Commit], committed: list[Committed]
) -> Iterator[str]:
    """Check that each record before a committed offset was delivered to some member."""
    most = max(
        [*(each.offset for each in commits), *(each.offset for each in committed)], default=0
    )
    missing = sorted({*range(most)} - {each.offset for each in deliveries})
    if missing:
        yield f"skipped: {len(missing)} records before the commit of {most}, first {missing[0]}"
