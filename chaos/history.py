"""The history of a cluster's clients, and the check that one log explains all of it.

The full read at the end gives every append its position; all else follows from positions, in O(n
log n). Every record is unique: `WRITER.NUMBER.PART`. Times are of one monotonic clock, in seconds;
positions are record numbers, which offsets carry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

OK, FAIL, INFO = "ok", "fail", "info"  # acknowledged; certainly not applied; unknown
PAGE_RECORDS = 10_000  # a piece of so many may be a page, which ends where it is full


class Append(msgspec.Struct):
    """One append of whole records, or all tries of a producer until it was acknowledged. `end` is
    the position behind it, if the answer told."""

    stream: str
    writer: str
    number: int
    records: list[str]
    began: float
    ended: float = math.inf
    outcome: str = INFO
    end: int | None = None
    produced: bool = False
    by: int = 0  # the node that answered


class Read(msgspec.Struct):
    """Records from `begin` on in the response of one node. `whole`: the response reported the end
    of the stream, so it is linearizable."""

    stream: str
    node: int
    began: float
    ended: float
    begin: int
    records: list[str]
    whole: bool = True

    @property
    def end(self) -> int:
        return self.begin + len(self.records)


class Piece(msgspec.Struct):
    """One delivery to a tail: records, and the position from which it would resume."""

    node: int
    begin: int
    records: list[str]
    resume_at: int


class Tail(msgspec.Struct):
    """One live reader, over all its connections."""

    name: str
    stream: str
    kind: str = "sse"
    pieces: list[Piece] = []


class History(msgspec.Struct):
    appends: list[Append] = []
    reads: list[Read] = []
    tails: list[Tail] = []

    def count(self, outcome: str) -> int:
        return sum(append.outcome == outcome for append in self.appends)


def check(history: History, final: dict[str, list[str]]) -> list[str]:
    """Return the violations, each with its kind before a colon; empty when the history is correct.
    `final`: the records of each stream at the end."""
    return [
        f"{stream}: {wrong}"
        for stream in sorted(final)
        for wrong in _check_stream(history, stream, final[stream])
    ]


def differences(found: list[str], records: list[str]) -> list[str]:
    """Return the differences between a stream that was created again and its records."""
    if found == records:
        return []
    at = next(
        (
            position
            for position, (one, other) in enumerate(zip(found, records, strict=False))
            if one != other
        ),
        min(len(found), len(records)),
    )
    kind = "lost" if len(found) < len(records) else "restored"
    return [
        f"{kind}: {len(found)} records are there again of {len(records)}; from {at} on "
        f"{_shown(found[at:])} where {_shown(records[at:])} was"
    ]


def _check_stream(history: History, stream: str, final: list[str]) -> Iterator[str]:
    appends = [append for append in history.appends if append.stream == stream]
    positions = {record: position for position, record in enumerate(final)}
    yield from _check_unique(final)
    yield from _check_strangers(appends, final)
    for append in appends:
        yield from _check_append(append, positions)
    yield from _check_producers(appends, positions)
    reads = [read for read in history.reads if read.stream == stream]
    for read in reads:
        if read.records != final[read.begin : read.end]:
            yield (
                f"read: node {read.node} gave {_shown(read.records)} from {read.begin} on, where "
                f"{_shown(final[read.begin : read.end])} is"
            )
    yield from _check_order(appends, reads, positions, len(final))
    tails = [tail for tail in history.tails if tail.stream == stream]
    for tail in tails:
        yield from _check_tail(tail, final)
    yield from _check_halves(appends, reads, tails, positions)


def _check_unique(final: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for position, record in enumerate(final):
        if record in seen:
            yield f"twice: {record} is there again at {position}"
        seen.add(record)


def _check_strangers(appends: list[Append], final: list[str]) -> Iterator[str]:
    sent = {record for append in appends for record in append.records}
    strangers = [record for record in final if record not in sent]
    if strangers:
        yield f"stranger: nobody sent {_shown(strangers)}"


def _check_append(append: Append, positions: dict[str, int]) -> Iterator[str]:
    found = [positions[record] for record in append.records if record in positions]
    if not found:
        if append.outcome == OK:
            yield f"lost: {append.records[0]} was acknowledged by node {append.by} and is not there"
        return
    if append.outcome == FAIL:
        yield (
            f"refused: {append.records[0]} was refused by node {append.by} and is there, at "
            f"{found[0]}"
        )
    if len(found) < len(append.records) or found != list(range(found[0], found[0] + len(found))):
        yield f"torn: the records of {append.records[0]} are at {found}"
    elif append.end is not None and append.end != found[-1] + 1:
        yield (
            f"offset: {append.records[0]} ends at {found[-1] + 1}, and node {append.by} said "
            f"{append.end}"
        )


def _check_producers(appends: list[Append], positions: dict[str, int]) -> Iterator[str]:
    """Check each producer's sequence: in order, without a gap before any stored record."""
    producers: dict[str, list[Append]] = {}
    for append in appends:
        if append.produced:
            producers.setdefault(append.writer, []).append(append)
    for writer, mine in producers.items():
        there = [
            append
            for append in sorted(mine, key=lambda each: each.number)
            if append.records[0] in positions
        ]
        if [append.number for append in there] != list(range(len(there))):
            yield f"gap: of {writer} there are {_shown([str(append.number) for append in there])}"
        at = [positions[append.records[0]] for append in there]
        if at != sorted(at):
            yield f"order: what {writer} produced is not in its order"


def _check_order(
    appends: list[Append], reads: list[Read], positions: dict[str, int], length: int
) -> Iterator[str]:
    """Check linearizability: an operation that began later is not placed before one that had
    ended, and sees all of it; no operation sees one that had not begun."""
    # at each position: when the latest of all appends up to it began
    begun = [-math.inf] * (length + 1)
    operations: list[
        tuple[float, float, int, int, str]
    ] = []  # began, ended, sees at least, is seen as, name
    for append in appends:
        if append.records[0] not in positions:
            continue
        first = positions[append.records[0]]
        end = min(first + len(append.records), length)
        begun[end] = max(begun[end], append.began)
        operations.append(
            (
                append.began,
                append.ended if append.outcome == OK else math.inf,
                first,
                end,
                f"the append of {append.records[0]}",
            )
        )
    for position in range(1, length + 1):
        begun[position] = max(begun[position], begun[position - 1])
    for read in reads:
        if begun[min(read.end, length)] > read.ended:
            yield f"future: a read on node {read.node} ended before what it saw began"
        sees = read.end if read.whole else length
        operations.append((read.began, read.ended, sees, read.end, f"a read on node {read.node}"))
    yield from _sweep(operations)


def _sweep(operations: Sequence[tuple[float, float, int, int, str]]) -> Iterator[str]:
    ends = sorted(
        (ended, version, name) for _, ended, _, version, name in operations if ended < math.inf
    )
    floor, by, passed = 0, "", 0
    for began, _, sees, _, name in sorted(operations):
        while passed < len(ends) and ends[passed][0] < began:
            if ends[passed][1] > floor:
                floor, by = ends[passed][1], ends[passed][2]
            passed += 1
        if sees < floor:
            yield f"stale: {name} is at {sees}, though {by} had ended at {floor} before it began"


def _check_tail(tail: Tail, final: list[str]) -> Iterator[str]:
    """Check that a tail is ordered, unique, without a gap, resumed where it was, told its position,
    and in the end complete."""
    position = 0
    for piece in tail.pieces:
        if piece.begin != position:
            yield (
                f"resume: tail {tail.name} asked node {piece.node} from {piece.begin} on, and had "
                f"got as far as {position}"
            )
        position = piece.begin + len(piece.records)
        if piece.records != final[piece.begin : position]:
            yield (
                f"tail: node {piece.node} sent {tail.name} {_shown(piece.records)} from "
                f"{piece.begin} on, where "
                f"{_shown(final[piece.begin : position])} is"
            )
        if piece.resume_at != position:
            yield (
                f"bookmark: node {piece.node} told tail {tail.name} to go on at "
                f"{piece.resume_at}, and it had got as far as {position}"
            )
            position = piece.resume_at
    if position < len(final):
        yield f"unseen: tail {tail.name} got {position} of {len(final)} records"


def _check_halves(
    appends: list[Append], reads: list[Read], tails: list[Tail], positions: dict[str, int]
) -> Iterator[str]:
    """Check that the records of one append appear together: neither the end of a read nor a
    delivery lies between them."""
    ends = {
        0,
        *(
            positions[append.records[-1]] + 1
            for append in appends
            if append.records[-1] in positions
        ),
    }
    for read in reads:
        if read.whole and read.end not in ends:
            yield f"half: a read on node {read.node} ended at {read.end}, inside an append"
    for tail in tails:
        for piece in tail.pieces:
            if piece.resume_at not in ends and len(piece.records) < PAGE_RECORDS:
                yield (
                    f"half: node {piece.node} told tail {tail.name} to go on at {piece.resume_at}, "
                    "inside an append"
                )


def _shown(records: Sequence[str]) -> str:
    return f"[{', '.join(records[:4])}{', …' if len(records) > 4 else ''}]"
