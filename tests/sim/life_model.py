"""The legal responses of a stream's name, as a small machine for `wgl.Search`: creation,
conditional appends, close, trim, fork, deletion, re-creation. Responses name the incarnation
(uid) and the tail. So each refusal is judged by the one state that can have caused it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from polynya.local.api import Page, Refusal, StreamInfo, Trimmed
from polynya.stream.replies import Code, Reply

FOR_NOW = (Code.DISK_FULL, Code.MEMORY_PRESSURE)  # nothing was done, in whatever state
NEVER_DONE = (*FOR_NOW, Code.ATTEMPT_REFUSED)


class Life(NamedTuple):
    """One incarnation. `uid` 0: of a creation without a response. `first` -1: a fork's, inherited
    from its source."""

    uid: int
    tail: int
    first: int = 0
    closed: bool = False
    soft: bool = False  # deleted while forks may need it: it is gone, or not there any more
    forked: bool = False  # something may hold it
    sequence: str | None = None
    source: tuple[str, int, int] | None = None
    producers: tuple[tuple[str, int, int], ...] = ()  # id, epoch, last sequence
    closed_by: tuple[str, int, int] | None = None
    # the last body of each producer that has one, as (id, epoch, sequence, body)
    bodies: tuple[tuple[str, int, int, bytes], ...] = ()


State = Life | None


class Created(msgspec.Struct, frozen=True):
    payload: bytes | None = None
    closed: bool = False
    # of a fork: its name, and the token there: a PUT is the same with the same one
    source: tuple[str, int, int] | None = None


class Appended(msgspec.Struct, frozen=True):
    payload: bytes | None  # None: it closes only
    sequence: str | None = None
    producer: tuple[str, int, int] | None = None
    close: bool = False


class Deleted(msgspec.Struct, frozen=True):
    pass


class Looked(msgspec.Struct, frozen=True):
    """HEAD, an entry of a list, an attachment."""


class Listed(msgspec.Struct, frozen=True):
    """The stream was missing from a list."""


class Paged(msgspec.Struct, frozen=True):
    record: int  # asked for; -1 the first


class Cut(msgspec.Struct, frozen=True):
    record: int


class Pinned(msgspec.Struct, frozen=True):
    """The source's side of a fork at this record."""

    record: int


class Exchange(msgspec.Struct, frozen=True):
    """A request and its response. `answer` None: no response."""

    asked: Any
    answer: Any = None


class Model:
    """The model of one name. `known`: payloads seen at (uid, record)."""

    def __init__(self, known: Mapping[tuple[int, int], bytes]) -> None:
        self._known = known
        self._positions: dict[bytes, set[tuple[int, int]]] = {}
        for position, payload in known.items():
            self._positions.setdefault(payload, set()).add(position)

    def step(self, state: State, operation: Any) -> Iterator[State]:
        asked, answer = operation.asked, operation.answer
        if isinstance(answer, Reply) and answer.code in NEVER_DONE:
            yield state
            return
        if state is not None and state.soft:  # what held it may have let go
            yield from self._steps(None, asked, answer)
        yield from self._steps(state, asked, answer)

    def _steps(self, state: State, asked: Any, answer: Any) -> Iterator[State]:
        if isinstance(asked, Looked | Listed | Paged):
            yield from _seen(state, asked, answer)
            return
        if isinstance(asked, Cut):
            yield from _cut(state, asked, answer)
            return
        if isinstance(asked, Pinned):
            yield from _pinned(state, asked, answer)
            return
        apply = {Created: self._create, Appended: self._append, Deleted: _delete}[type(asked)]
        code, after = apply(state, asked)
        if code == Code.REFUSED:
            return
        if answer is None:
            yield after
        elif isinstance(asked, Deleted) and code == Code.OK:
            if (
                answer.code == code
                and state is not None
                and state.uid in (0, answer.uid)
                and state.tail == answer.record
            ):
                yield after
        elif (
            answer.code == code
            or (code == Code.GONE and answer.code == Code.ATTEMPT_PENDING)
            or (
                (code, answer.code) == (Code.DUPLICATE, Code.PRODUCER_CONFLICT)
                and _is_other(state, asked)
            )
        ):
            yield from _bound(after, answer)

    def _create(self, state: State, asked: Created) -> tuple[Code, State]:
        if state is None:
            tail = 0 if asked.source is None else asked.source[1]
            first = 0 if asked.source is None else -1
            life: State = Life(0, tail, first, asked.closed, source=asked.source)
            if asked.payload is not None and (life := self._put(life, asked.payload)) is None:
                return Code.REFUSED, None
            return Code.CREATED, life
        if state.soft:
            return Code.GONE, state
        same = (asked.closed, asked.source) == (state.closed, state.source)
        return Code.EXISTS if same else Code.EXISTS_DIFFERENT, state

    # REFUSED, of these two: it was not there and then, as the payload is known to be elsewhere, or
    # the position to have another

    def _append(self, state: State, asked: Appended) -> tuple[Code, State]:
        if state is None or state.soft:
            return (Code.NOT_FOUND if state is None else Code.GONE), state
        producer = asked.producer
        if state.closed:
            if producer is not None:
                return Code.DUPLICATE if producer == state.closed_by else Code.CLOSED, state
            return Code.ALREADY_CLOSED if asked.payload is None else Code.CLOSED, state
        judged = Code.OK if producer is None else _judged(state, producer)
        if (
            asked.sequence is not None
            and state.sequence is not None
            and asked.sequence <= state.sequence
        ):
            return judged or Code.SEQ_REGRESSION, state
        if judged:
            return judged, state
        after: State = (
            state
            if asked.payload is None
            else self._put(state, asked.payload, again=producer is not None)
        )
        if after is None:
            return Code.REFUSED, None
        if producer is not None:
            others = tuple(each for each in after.producers if each[0] != producer[0])
            after = after._replace(producers=(*others, producer))
            if asked.payload is not None:
                rest = tuple(each for each in after.bodies if each[0] != producer[0])
                after = after._replace(bodies=(*rest, (*producer, asked.payload)))
        if asked.sequence is not None:
            after = after._replace(sequence=asked.sequence)
        if asked.close:
            after = after._replace(closed=True, closed_by=producer)
        return Code.OK, after

    def _put(self, life: Life | None, payload: bytes, *, again: bool = False) -> State:
        """Return the life with the payload at its tail; None if that is known to be otherwise.
        `again`: a producer sends it until it is answered, so that another life of the name may have
        it, too."""
        if life is None:
            return None
        seen = self._positions.get(payload, set())
        if again:
            seen = {(uid, record) for uid, record in seen if uid == life.uid}
        if life.uid == 0 and seen:
            life = next(
                (life._replace(uid=uid) for uid, record in seen if record == life.tail), None
            )
            if life is None:
                return None
        position = (life.uid, life.tail)
        if life.uid and (
            self._known.get(position, payload) != payload or (seen and position not in seen)
        ):
            return None
        return life._replace(tail=life.tail + 1)


def _judged(life: Life, producer: tuple[str, int, int]) -> Code:
    """Judge an append by its producer; OK: it is the next one."""
    key, epoch, sequence = producer
    known = next((each for each in life.producers if each[0] == key), None)
    if known is None:
        return Code.PRODUCER_GAP if sequence else Code.OK
    if epoch < known[1]:
        return Code.PRODUCER_STALE
    if epoch > known[1]:
        return Code.PRODUCER_EPOCH_START if sequence else Code.OK
    if sequence == known[2] + 1:
        return Code.OK
    return Code.DUPLICATE if sequence <= known[2] else Code.PRODUCER_GAP


def _is_other(state: State, asked: Any) -> bool:
    """Report whether a repeat may be refused for a body that differs from the last applied one.
    Groups below the level refuse none; earlier bodies are unknown here."""
    if state is None or not isinstance(asked, Appended) or asked.payload is None:
        return False
    key, epoch, sequence = asked.producer or ("", 0, 0)
    known = next((each for each in state.bodies if each[:2] == (key, epoch)), None)
    return known is None or known[2] != sequence or known[3] != asked.payload


def _delete(state: State, asked: Deleted) -> tuple[Code, State]:
    if state is None or state.soft:
        return (Code.NOT_FOUND if state is None else Code.GONE), state
    return Code.OK, state._replace(soft=True) if state.forked else None


def _bound(after: State, answer: Reply) -> Iterator[State]:
    """Yield the state if the answer names this life and this tail."""
    if answer.code == Code.NOT_FOUND:
        yield after
    elif after is None or after.soft:
        if answer.code in (Code.OK, Code.GONE, Code.ATTEMPT_PENDING):
            yield after
    elif (
        (after.uid in (0, answer.uid))
        and after.tail == answer.record
        and after.closed == answer.closed
    ):
        yield after._replace(uid=answer.uid)


def _is_gone(state: State, answer: Any) -> bool:
    """Report whether this state permits "not found", or "gone, held by forks"."""
    code = getattr(answer, "code", None)
    return (code == Code.NOT_FOUND and state is None) or (
        code == Code.GONE and state is not None and state.soft
    )


def _seen(state: State, asked: Any, answer: Any) -> Iterator[State]:
    if isinstance(asked, Listed):
        if state is None or state.soft:
            yield state
        return
    if isinstance(answer, Refusal):
        if _is_gone(state, answer):
            yield state
        elif state is not None and not state.soft and isinstance(asked, Paged):
            yield from _page_refused(state, asked, answer)
        return
    info: StreamInfo = answer.info if isinstance(answer, Page) else answer
    if (
        state is None
        or state.soft
        or state.uid not in (0, info.uid)
        or state.first not in (-1, info.first_record)
    ):
        return
    if (state.tail, state.closed, state.sequence) == (info.record, info.closed, info.stream_seq):
        yield state._replace(uid=info.uid, first=info.first_record)


def _page_refused(life: Life, asked: Paged, answer: Refusal) -> Iterator[State]:
    if (
        answer.code == Code.TRIMMED
        and life.first in (-1, answer.record)
        and asked.record < answer.record
    ):
        yield life._replace(first=answer.record)
    elif (
        answer.code == Code.OFFSET_BEYOND_TAIL
        and asked.record > life.tail
        and answer.record == life.tail
    ):
        yield life


def _cut(state: State, asked: Cut, answer: Any) -> Iterator[State]:
    if isinstance(answer, Refusal) and (
        _is_gone(state, answer)
        or (answer.code == Code.NOT_FOUND and state is not None and state.soft)
    ):
        yield state
        return
    if state is None or state.soft:
        return
    if isinstance(answer, Refusal):
        if answer.code == Code.OFFSET_BEYOND_TAIL and asked.record > state.tail:
            yield state
    elif answer is None:
        if asked.record <= state.tail:
            yield state._replace(first=max(state.first, asked.record))
    elif isinstance(answer, Trimmed) and state.uid in (0, answer.uid):
        known = (
            answer.record >= asked.record
            if state.first == -1
            else answer.record == max(state.first, asked.record)
        )
        if known:
            yield state._replace(uid=answer.uid, first=answer.record)


def _pinned(state: State, asked: Pinned, answer: Any) -> Iterator[State]:
    """Yield the states after a pin. `answer`: None (perhaps it was pinned), a Reply of the source, or
    True: it was."""
    if isinstance(answer, Reply) and _is_gone(state, answer):
        yield state
        return
    if state is None or state.soft:
        return
    if isinstance(answer, Reply):
        if answer.code == Code.OFFSET_BEYOND_TAIL and asked.record > state.tail:
            yield state
        elif answer.code == Code.TRIMMED and asked.record < answer.record:
            yield state if state.first != -1 else state._replace(first=answer.record)
    elif asked.record <= state.tail and (answer or not state.forked):
        yield state._replace(forked=True)
