"""The history of transactional clients, and the check that Kafka's promises hold in it.

One checker for the model, the simulation and real clusters. Every value is unique in a stream.
Offsets are those of the log. Times are of one monotonic clock, in seconds; an outcome is `ok`,
`fail` (certainly without effect) or `info` (unknown). Rules, by their letter in a violation:

* A: a transaction is whole or absent, over its streams and its offsets.
* B: no aborted and no open record is read.
* C: what was acknowledged as committed is there.
* D: one order: an offset keeps its value, no value is there twice.
* E: a fenced instance has no effect after the fence was acknowledged, and only it is fenced.
* F: the stable end never falls, reaches the end when all is quiet, and then nothing is held.
* G: consume, transform, produce: each input before the position has one output.
* H: each reader sees the same records.
* I: compaction keeps the last committed value of each key."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from chaos.history import FAIL, INFO, OK

COMMIT, ABORT = "commit", "abort"
COMMITTED, ROWS, TABLE, FORK = "read_committed", "rows", "table", "fork"  # kinds of readers
UNCOMMITTED = "read_uncommitted"  # which sees open and aborted records, too
FENCED = "fenced"  # the error of an operation that failed for its epoch
SETTLE_SECONDS = 60.0  # the stable end reaches the end within
ORPHAN_SECONDS = 17 * 60.0  # the same after an accepted loss
LATER = math.inf


class Init(msgspec.Struct):
    """InitProducerId of an instance, or of an operator who fences. `again`: with the producer and
    epoch that the instance has."""

    id: str
    instance: str
    began: float
    ended: float = LATER
    outcome: str = INFO
    error: str = ""
    again: bool = False


class Produce(msgspec.Struct):
    """All tries of one batch. `sources`: the inputs from which the values were made."""

    stream: str
    values: list[str]
    began: float
    ended: float = LATER
    outcome: str = INFO
    error: str = ""
    keys: list[str] = []
    sources: list[str] = []


class Offsets(msgspec.Struct):
    """Offsets of a group, in a transaction or alone: the next record to read of each stream.
    `repeated`: the request was sent again, so the first may come late."""

    group: str
    positions: dict[str, int]
    began: float
    ended: float = LATER
    outcome: str = INFO
    error: str = ""
    repeated: bool = False


class End(msgspec.Struct):
    """EndTxn, with all its tries."""

    kind: str
    began: float
    ended: float = LATER
    outcome: str = INFO
    error: str = ""


Effect = Produce | Offsets | End


class Transaction(msgspec.Struct):
    """A transaction as its client knows it. `id` is the transactional id; the coordinator may abort
    from `began` + `timeout` on. `forced`: when an operator asked to abort it."""

    name: str
    id: str
    instance: str
    began: float
    timeout: float = LATER
    produces: list[Produce] = []
    offsets: list[Offsets] = []
    end: End | None = None
    forced: float = LATER

    def effects(self) -> Iterator[Effect]:
        """Yield what its client sent."""
        yield from self.produces
        yield from self.offsets
        if self.end is not None:
            yield self.end


class Poll(msgspec.Struct):
    """Records that a reader got: each one it may see from offset `begin` to before `end`. `whole`:
    one answer that reached the stable end."""

    kind: str
    reader: str
    stream: str
    began: float
    ended: float
    begin: int
    end: int
    records: list[tuple[int, str]]
    whole: bool = False


class Ends(msgspec.Struct):
    """The stable end and the end of a stream, as one answer or two told them."""

    stream: str
    began: float
    ended: float
    stable: int
    high: int


class Position(msgspec.Struct):
    """A stable position of a group that a reader was told; 0: none."""

    group: str
    stream: str
    offset: int
    began: float
    ended: float


class Held(msgspec.Struct):
    """A count of what a group of the cluster still holds for transactions: open parts, pending offsets, and
    messages that were not acknowledged."""

    where: str
    at: float
    count: int


class Final(msgspec.Struct):
    """The records that a reader with read_committed finds at the end, and the positions of the groups."""

    records: dict[str, list[tuple[int, str]]] = {}
    positions: dict[str, dict[str, int]] = {}


class TransactionHistory(msgspec.Struct):
    inits: list[Init] = []
    transactions: list[Transaction] = []
    plain: list[Produce] = []  # without a transaction
    commits: list[Offsets] = []  # without a transaction
    polls: list[Poll] = []
    ends: list[Ends] = []
    positions: list[Position] = []
    held: list[Held] = []
    healed: float = 0.0  # no fault is injected from here on
    restored: float = -LATER  # when the cluster was made from a backup
    lossy: bool = False  # a loss was accepted: orphans are possible
    pipelines: dict[str, tuple[str, str]] = {}  # group -> input and output streams
    tombstones: set[str] = set()  # values that delete their keys
    compacted: set[str] = set()  # streams
    trimmed: dict[str, int] = {}  # compacted stream -> records before this one may be missing

    def after_restore(self, at: float) -> TransactionHistory:
        """Return the history for a cluster made from a backup: what was acknowledged before may be
        missing, though each transaction is whole or absent. What was read before does not count."""
        for each in self.transactions:
            if each.end is not None and each.end.outcome == OK and each.end.kind == COMMIT:
                each.end.outcome = INFO
        writes: list[Produce | Offsets] = [*self.plain, *self.commits]
        for write in writes:
            write.outcome = INFO if write.outcome == OK else write.outcome
        return msgspec.structs.replace(
            self, polls=[], ends=[], positions=[], held=[], restored=at, healed=at
        )


def check_transactions(history: TransactionHistory, final: Final) -> list[str]:
    """Return the violations, each with the letter of its rule before a colon; empty when the
    history is correct."""
    checker = _Checker(history, final)
    return [
        *checker.atomicity(),
        *checker.reads(),
        *checker.order(),
        *checker.fences(),
        *checker.stable_ends(),
        *checker.held(),
        *checker.offsets(),
        *checker.pipelines(),
        *checker.compaction(),
    ]


def is_asked_to_commit(transaction: Transaction) -> bool:
    """Report whether the transaction may be committed: its client asked, and was not refused."""
    end = transaction.end
    return end is not None and end.kind == COMMIT and end.outcome != FAIL


def is_committed(transaction: Transaction) -> bool:
    end = transaction.end
    return end is not None and end.kind == COMMIT and end.outcome == OK


class _Checker:
    def __init__(self, history: TransactionHistory, final: Final) -> None:
        self.history, self.final = history, final
        self.owner = {
            (produce.stream, value): each
            for each in history.transactions
            for produce in each.produces
            for value in produce.values
        }
        self.began = {
            (produce.stream, value): produce.began
            for produce in self._produces()
            for value in produce.values
        }
        self.there = {
            (stream, value) for stream, records in final.records.items() for _, value in records
        }

    def atomicity(self) -> Iterator[str]:
        """Yield violations of A and C: of each transaction, all acknowledged values are there, or
        none."""
        for each in self.history.transactions:
            sent = [
                (produce.stream, value)
                for produce in each.produces
                if produce.outcome == OK and produce.stream in self.final.records
                if produce.stream not in self.history.compacted
                for value in produce.values
            ]
            missing = [pair for pair in sent if pair not in self.there]
            present = [pair for pair in sent if pair in self.there]
            if missing and is_committed(each):
                yield f"C: {each.name} was committed, and {_shown(missing)} is not there"
            elif missing and present:
                yield (
                    f"A: {each.name} is torn: {_shown(present)} is there, {_shown(missing)} is not"
                )
        for write in self.history.plain:
            for value in write.values:
                lost = (
                    write.stream in self.final.records and (write.stream, value) not in self.there
                )
                if lost and write.outcome == OK and write.stream not in self.history.compacted:
                    yield f"C: {value} of {write.stream} was acknowledged and is not there"

    def reads(self) -> Iterator[str]:
        """Yield violations of B, a value is read after its client asked to commit, and of H, all
        readers see the same."""
        for stream, records in self.final.records.items():
            for offset, value in records:
                yield from self._unreadable(stream, offset, value, LATER, "the last read")
        for poll in self.history.polls:
            who = f"{poll.kind} {poll.reader}"
            for offset, value in poll.records if poll.kind != UNCOMMITTED else ():
                yield from self._unreadable(poll.stream, offset, value, poll.ended, who)
            if poll.stream in self.final.records and poll.stream not in self.history.compacted:
                yield from self._different(poll, who)

    def _unreadable(
        self, stream: str, offset: int, value: str, at: float, who: str
    ) -> Iterator[str]:
        owner = self.owner.get((stream, value))
        if owner is None:
            return
        read = f"{who} got {value} at {offset} of {stream}"
        end = owner.end
        if end is None or end.began > at:
            yield f"B: {read}, and {owner.name} was open"
        elif end.kind == ABORT:
            yield f"B: {read}, and {owner.name} was aborted by its client"
        elif end.outcome == FAIL:
            yield f"B: {read}, and the commit of {owner.name} was refused: {end.error}"

    def _different(self, poll: Poll, who: str) -> Iterator[str]:
        records = self.final.records[poll.stream]
        first, last = (bisect_left(records, (at, "")) for at in (poll.begin, poll.end))
        expected = records[first:last]
        found = set(expected) if poll.kind == UNCOMMITTED else set(poll.records)
        seen = [pair for pair in poll.records if pair in found]
        if seen != expected:
            yield (
                f"H: {who} got {_differing(poll.records, expected)} from {poll.begin} to "
                f"{poll.end} of {poll.stream}, where {_differing(expected, poll.records)} is"
            )

    def order(self) -> Iterator[str]:
        """Yield violations of D: each offset has one value at all times, each value one offset."""
        at: dict[tuple[str, int], str] = {}
        offsets: dict[tuple[str, str], int] = {}
        polls = [(poll.stream, poll.records) for poll in self.history.polls]
        for stream, records in (*self.final.records.items(), *polls):
            last = -1
            for offset, value in records:
                if offset <= last:
                    yield f"D: {value} of {stream} is at {offset}, after {last}"
                last = offset
                if at.setdefault((stream, offset), value) != value:
                    yield f"D: {offset} of {stream} has {value}, and had {at[stream, offset]}"
                if offsets.setdefault((stream, value), offset) != offset:
                    yield (f"D: {value} of {stream} is at {offset} and at {offsets[stream, value]}")

    def fences(self) -> Iterator[str]:
        """Yield violations of E: of the instances of an id, the older ones stop at the fence, the
        newest goes on."""
        for name in sorted({each.id for each in self.history.transactions}):
            first: dict[str, Init] = {}
            for init in self.history.inits:
                if init.id == name and not init.again and init.ended > self.history.restored:
                    first.setdefault(init.instance, init)
            yield from self._late_effects(name, first)
            yield from self._groundless(name, first)

    def _late_effects(self, name: str, first: dict[str, Init]) -> Iterator[str]:
        for each in self.history.transactions:
            mine = first.get(each.instance)
            if each.id != name or mine is None:
                continue
            fence = min(
                (
                    other.ended
                    for other in first.values()
                    if other.outcome == OK and other.began > mine.ended
                ),
                default=LATER,
            )
            for effect in each.effects():
                if effect.began > fence and effect.outcome == OK:
                    yield f"E: {each.instance} {_did(effect)} in {each.name} after it was fenced"
        for init in self.history.inits:
            mine = first.get(init.instance)
            late = init.id == name and init.again and init.outcome == OK
            if (
                mine is not None
                and late
                and any(
                    other.outcome == OK and mine.ended < other.began and other.ended < init.began
                    for other in first.values()
                )
            ):
                yield f"E: {init.instance} got an epoch of {name} after it was fenced"

    def _groundless(self, name: str, first: dict[str, Init]) -> Iterator[str]:
        for each in self.history.transactions:
            mine = first.get(each.instance)
            if each.id != name or mine is None or mine.began < self.history.restored:
                continue
            for effect in each.effects():
                due = each.began + each.timeout < effect.ended or each.forced < effect.ended
                others = any(
                    other.instance != each.instance
                    and other.began < effect.ended
                    and other.ended > mine.began
                    for other in self.history.inits
                    if other.id == name
                )
                if effect.error == FENCED and not due and not others:
                    yield (
                        f"E: {each.instance} was fenced in {each.name} without another instance, "
                        "a timeout or an operator"
                    )

    def quiet(self) -> float:
        """Return when the last operation had ended, or could not go on."""
        quiet = max(self.history.healed, self.history.restored)
        for each in self.history.transactions:
            writes = [*each.effects()]
            ended = [write.ended for write in writes if write.ended < LATER]
            began = [write.began for write in writes]
            quiet = max(quiet, *ended, *began, each.began)
            if each.end is None or each.end.outcome != OK:
                quiet = max(quiet, each.began + each.timeout)
        return quiet

    def _deadline(self) -> float:
        return self.quiet() + (ORPHAN_SECONDS if self.history.lossy else SETTLE_SECONDS)

    def stable_ends(self) -> Iterator[str]:
        """Yield violations of F: the stable end never falls, and reaches the end."""
        best: dict[str, tuple[float, int]] = {}
        deadline = self._deadline()
        for seen in sorted(self.history.ends, key=lambda each: each.began):
            ended, stable = best.get(seen.stream, (-LATER, 0))
            if seen.began > ended and seen.stable < stable:
                yield f"F: the stable end of {seen.stream} fell from {stable} to {seen.stable}"
            if seen.stable >= stable:
                best[seen.stream] = (seen.ended, seen.stable)
            if seen.began > deadline and seen.stable < seen.high:
                yield (
                    f"F: the stable end of {seen.stream} is {seen.stable} of {seen.high}, "
                    f"{seen.began - self.quiet():.0f} s after the last operation"
                )

    def held(self) -> Iterator[str]:
        """Yield violations of F: nothing is held when all is quiet."""
        deadline = self._deadline()
        for each in self.history.held:
            if each.at > deadline and each.count:
                yield f"F: {each.where} holds {each.count} parts of ended transactions"

    def offsets(self) -> Iterator[str]:
        """Yield violations of A, B and C by offsets: a position is that of the last write that took
        effect."""
        for group, positions in sorted(self.final.positions.items()):
            for stream, offset in sorted(positions.items()):
                yield from self._final_position(group, stream, offset)
        for seen in self.history.positions:
            yield from self._seen_position(seen)

    def _writes(self, group: str, stream: str) -> Iterator[tuple[Offsets, bool, bool, float, str]]:
        """List the writes of a position: whether each may and must count, from when, its name."""
        for write in self.history.commits:
            if write.group == group and stream in write.positions:
                must, may = write.outcome == OK, write.outcome != FAIL
                yield write, may, must, write.began, "a commit without a transaction"
        for each in self.history.transactions:
            for write in each.offsets:
                if write.group == group and stream in write.positions:
                    may = is_asked_to_commit(each) and write.outcome != FAIL
                    must = (is_committed(each) or self._is_there(each)) and write.outcome == OK
                    yield write, may, must, each.end.began if each.end else LATER, each.name

    def _is_there(self, each: Transaction) -> bool:
        return any(
            (produce.stream, value) in self.there
            for produce in each.produces
            for value in produce.values
        )

    def _final_position(self, group: str, stream: str, offset: int) -> Iterator[str]:
        writes = list(self._writes(group, stream))
        by = [write for write in writes if write[1] and write[0].positions[stream] == offset]
        must = [write for write in writes if write[2]]
        if offset and not by:
            yield f"A: {group} is at {offset} of {stream}, which no committed transaction sent"
            return
        known = max((LATER if by_.repeated else by_.ended for by_, *_ in by), default=-LATER)
        for write, _, _, _, name in must:
            if write.began > known and write.positions[stream] != offset:
                yield (
                    f"C: {group} is at {offset} of {stream}, and {name} had moved it to "
                    f"{write.positions[stream]} later"
                )

    def _seen_position(self, seen: Position) -> Iterator[str]:
        if not seen.offset:
            return
        began = [
            since
            for write, may, _, since, _ in self._writes(seen.group, seen.stream)
            if may and write.positions[seen.stream] == seen.offset
        ]
        if not began or min(began) > seen.ended:
            yield (
                f"B: {seen.group} was at {seen.offset} of {seen.stream} at {seen.ended:.3f}, which "
                "no transaction had asked to commit"
            )

    def pipelines(self) -> Iterator[str]:
        """Yield violations of G: the inputs before the position and the outputs are the same."""
        made = {
            (produce.stream, value): source
            for each in self.history.transactions
            for produce in each.produces
            for value, source in zip(produce.values, produce.sources, strict=False)
        }
        for group, (begin, end) in sorted(self.history.pipelines.items()):
            position = self.final.positions.get(group, {}).get(begin, 0)
            inputs = [
                value for offset, value in self.final.records.get(begin, []) if offset < position
            ]
            outputs = Counter(
                made[end, value]
                for _, value in self.final.records.get(end, [])
                if (end, value) in made
            )
            for value in inputs:
                if outputs[value] != 1:
                    yield f"G: {group} is beyond {value} of {begin}, with {outputs[value]} outputs"
            for value in sorted(outputs.keys() - set(inputs)):
                yield f"G: {group} is at {position} of {begin}, and {value} has an output"

    def compaction(self) -> Iterator[str]:
        """Yield violations of I: a reader from the beginning finds the last committed value of each
        key."""
        keys = {
            (produce.stream, value): key
            for produce in self._produces()
            for value, key in zip(produce.values, produce.keys, strict=False)
        }
        for stream in sorted(self.history.compacted & self.final.records.keys()):
            offsets = self._known_offsets(stream)
            found = self._last(stream, self.final.records[stream], keys)
            yield from self._older_values(stream, found, self._last(stream, offsets, keys))
            yield from self._stale_keys(stream, found)
            for poll in self.history.polls:
                if poll.stream == stream and poll.whole and poll.begin == 0:
                    before = [pair for pair in offsets if pair[0] < poll.end]
                    found = self._last(stream, poll.records, keys)
                    yield from self._older_values(stream, found, self._last(stream, before, keys))

    def _older_values(
        self, stream: str, found: dict[str, tuple[int, str]], model: dict[str, tuple[int, str]]
    ) -> Iterator[str]:
        first, deleted = self.history.trimmed.get(stream, 0), self._deletions(stream)
        for key, (offset, value) in sorted(model.items()):
            got = found.get(key, (-1, ""))
            if got == (offset, value) or (value in self.history.tombstones and got[0] == -1):
                continue
            is_trimmed = offset < first
            if got[0] == -1 and (
                is_trimmed or deleted.get(key, -LATER) > self._began(stream, value)
            ):
                continue  # with an unseen later tombstone
            yield (
                f"I: the last value of {key} in {stream} is {value} at {offset}; a reader from "
                f"0 got {got[1] or 'nothing'}"
            )

    def _began(self, stream: str, value: str) -> float:
        return self.began.get((stream, value), LATER)

    def _stale_keys(self, stream: str, found: dict[str, tuple[int, str]]) -> Iterator[str]:
        """Check that a value which was acknowledged after another had ended is not older than
        it."""
        if stream in self.history.trimmed:
            return
        certain = [*self._committed_keys(stream)]
        ended = {value: produce.ended for produce, _, value in certain}
        deleted = self._deletions(stream)
        for produce, key, value in certain:
            got = found.get(key, (-1, ""))[1]
            if got:
                is_stale = produce.began > ended.get(got, LATER) and value != got
            else:
                is_stale = produce.began > deleted.get(key, -LATER)
            if is_stale and value not in self.history.tombstones:
                yield f"I: {key} of {stream} has {got or 'nothing'}, and {value} came later"

    def _deletions(self, stream: str) -> dict[str, float]:
        """Return for each key when the last request that may have deleted it ended."""
        last: dict[str, float] = {}
        for produce in self._produces():
            for value, key in zip(produce.values, produce.keys, strict=False):
                owner = self.owner.get((stream, value))
                is_possible = owner is None or is_asked_to_commit(owner)
                if produce.stream == stream and value in self.history.tombstones and is_possible:
                    ended = produce.ended if produce.outcome == OK else LATER
                    last[key] = max(last.get(key, -LATER), ended)
        return last

    def _committed_keys(self, stream: str) -> Iterator[tuple[Produce, str, str]]:
        sure = [each.produces for each in self.history.transactions if is_committed(each)]
        for produce in (*self.history.plain, *(each for some in sure for each in some)):
            if produce.stream == stream and produce.outcome == OK:
                for value, key in zip(produce.values, produce.keys, strict=False):
                    if key:
                        yield produce, key, value

    def _produces(self) -> Iterator[Produce]:
        yield from self.history.plain
        for each in self.history.transactions:
            yield from each.produces

    def _known_offsets(self, stream: str) -> list[tuple[int, str]]:
        known = {
            pair for poll in self.history.polls if poll.stream == stream for pair in poll.records
        }
        return sorted(known | set(self.final.records[stream]))

    def _last(
        self, stream: str, records: Iterable[tuple[int, str]], keys: dict[tuple[str, str], str]
    ) -> dict[str, tuple[int, str]]:
        return {
            keys[stream, value]: (offset, value)
            for offset, value in records
            if keys.get((stream, value))
        }


def _did(effect: Effect) -> str:
    if isinstance(effect, Produce):
        return f"produced {effect.values}"
    if isinstance(effect, Offsets):
        return f"sent offsets of {effect.group}"
    return f"{effect.kind}ed"


def _differing(one: list[tuple[int, str]], other: list[tuple[int, str]]) -> str:
    more = set(other)
    return _shown([pair for pair in one if pair not in more])


def _shown(pairs: list[tuple[str, str]] | list[tuple[int, str]]) -> str:
    text = ", ".join(f"{value} ({key})" for key, value in pairs[:3])
    return f"[{text}{', …' if len(pairs) > 3 else ''}]"
