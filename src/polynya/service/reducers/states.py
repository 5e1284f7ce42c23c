"""The state of a reducer now: its newest snapshot, and the records behind it applied."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import msgspec

from polynya.base.limits import REDUCER_BATCH_BYTES, REDUCER_TAIL_BYTES_MAX
from polynya.local.api import OWN_ENCODING, Page, ReadQuery, Refusal, StreamInfo
from polynya.reducers.builtins import builtin
from polynya.reducers.envelope import parse_page
from polynya.reducers.reducer import Reducer, ReducerFault
from polynya.reducers.wasm.limits import Budget
from polynya.reducers.wasm.module_reducer import ModuleReducer
from polynya.reducers.wasm.sandbox import Sandbox
from polynya.service.api import Service
from polynya.service.reducers.due import is_unfit, newest_mark
from polynya.service.reducers.kept_states import Kept
from polynya.service.reducers.modules import module_of
from polynya.service.reducers.registry import Bound
from polynya.service.snapshots import body_of
from polynya.stream.parts import Encoding, Mark
from polynya.stream.replies import Code
from polynya.wire.headers import media_type
from polynya.wire.json_records import as_array
from polynya.wire.kafka.values import values_type
from polynya.wire.record_pages import Form, StoredSpan, show

_JSON = "application/json"
COMPACTED = (
    "the stream has lost records by key compaction: only 'latest' by the keys of records can be "
    "computed"
)


class TooFarBehind(Exception):
    """The records behind the snapshot are too many to be applied for an answer."""


class NoWorker(Exception):
    """This node does not run the reducer's module."""


def has_json_values(info: StreamInfo) -> bool:
    """Report whether the values of a stream are JSON."""
    if info.encoding == Encoding.KAFKA:
        return media_type(values_type(info.content_type)) == _JSON
    return info.encoding == Encoding.JSON


async def bring_up(service: Service, info: StreamInfo, bound: Bound, kept: Kept) -> Refusal | None:
    """Bring a kept state to the stream's tail, from the newest snapshot if there is none. Raises
    `ReducerFault`, `TooFarBehind`, `NoWorker`; then, and at a Refusal, none is kept."""
    if kept.reducer is not None and kept.record >= info.record:
        return None
    try:
        if kept.reducer is not None and not is_unfit(bound, info):
            begin, end = (kept.record, kept.byte), (info.record, info.byte)
            if await _apply_all(service, info, kept.reducer, begin, end) is None:
                kept.size += end[1] - begin[1]
                kept.record, kept.byte = end
                return None
        kept.drop()
        found = await current_state(service, info, bound)
    except BaseException:
        kept.drop()
        raise
    if isinstance(found, Refusal):
        return found
    mark = newest_mark(bound, info)
    kept.reducer, kept.record, kept.byte = found, info.record, info.byte
    kept.size = info.byte if mark is None else mark.size + info.byte - mark.byte
    return None


async def current_state(service: Service, info: StreamInfo, bound: Bound) -> Reducer | Refusal:
    """Return a reducer with the state at the stream's tail. Close it. Raises `ReducerFault`,
    `TooFarBehind`, `NoWorker`."""
    if is_unfit(bound, info):
        raise ReducerFault(COMPACTED)
    mark = newest_mark(bound, info)
    if mark is None and info.first_record:
        return Refusal(Code.TRIMMED, info.first_record, info.first_byte)
    if mark is not None and mark.record < info.first_record:
        return Refusal(Code.TRIMMED, info.first_record, info.first_byte)
    return await state_at(service, info, bound, mark, (info.record, info.byte))


async def state_at(
    service: Service, info: StreamInfo, bound: Bound, mark: Mark | None, until: tuple[int, int]
) -> Reducer | Refusal:
    """Return a reducer after the records before `until`, from a snapshot (None: from the first
    record). Close it. Raises `ReducerFault`, `TooFarBehind`, `NoWorker`."""
    record, byte = (0, 0) if mark is None else (mark.record, mark.byte)
    if until[1] - byte > REDUCER_TAIL_BYTES_MAX:
        raise TooFarBehind
    body: bytes | None = None
    if mark is not None:
        found = await body_of(service, info, mark)
        if isinstance(found, Refusal):
            return found
        body = bytes(found)
    reducer = await _made(service, bound)
    try:
        await asyncio.to_thread(reducer.restore, body)
        refusal = await _apply_all(service, info, reducer, (record, byte), until)
    except BaseException:
        reducer.close()
        raise
    if refusal is not None:
        reducer.close()
        return refusal
    return reducer


async def _made(service: Service, bound: Bound) -> Reducer:
    """Return a new reducer. Raises `ReducerFault`, `NoWorker`."""
    binding = bound.binding
    if binding.builtin:
        return builtin(binding.builtin, binding.key)
    if not service.reducers.runs_modules:
        raise NoWorker(
            f"the reducer '{bound.name}' is a module, and this node has no workers "
            "(reduce.workers): read its snapshot and the records behind it (bootstrap)"
        )
    module = await module_of(service, binding.module)
    if module is None:
        raise ReducerFault(f"the module of '{bound.name}' is not stored")
    return ModuleReducer(Sandbox(module, Budget(binding.memory, binding.fuel)))


async def _apply_all(
    service: Service,
    info: StreamInfo,
    reducer: Reducer,
    begin: tuple[int, int],
    until: tuple[int, int],
) -> Refusal | None:
    """Apply the records from `begin` to before `until`; a Refusal is that of a read."""
    (record, byte), is_json = begin, has_json_values(info)
    while record < until[0]:
        query = ReadQuery(
            info.name,
            record,
            byte,
            REDUCER_BATCH_BYTES,
            touch=False,
            whole_records=True,
            append_times=True,
            batch_times=True,
        )
        page = await service.read(query)
        if isinstance(page, Refusal):
            return page
        if page.info.uid != info.uid:
            return Refusal(Code.NOT_FOUND)
        if page.record <= record:
            break
        await asyncio.to_thread(
            _apply, reducer, page, max(record, page.first_record), until[0], is_json
        )
        record, byte = page.record, page.byte
    return None


class Verified(msgspec.Struct, frozen=True):
    """A comparison of the newest snapshot of a reducer with what was computed again."""

    record: int
    byte: int
    begin: int  # the record of the snapshot from which it was computed; 0: the first record
    published: bytes  # SHA-256
    computed: bytes


async def verify(service: Service, info: StreamInfo, bound: Bound) -> Verified | Refusal | None:
    """Compute the newest snapshot of a reducer again, from the first record or else from its oldest
    older snapshot. None: there is nothing to compare. Raises `ReducerFault`, `TooFarBehind`,
    `NoWorker`."""
    if is_unfit(bound, info):
        raise ReducerFault(COMPACTED)
    newest = newest_mark(bound, info)
    if newest is None:
        return None
    older = [
        mark
        for mark in info.marks or ()
        if mark.origin == newest.origin and info.first_record <= mark.record < newest.record
    ]
    is_whole = not info.first_record and newest.byte <= REDUCER_TAIL_BYTES_MAX
    base = None if is_whole else min(older, key=lambda mark: mark.record, default=None)
    if base is None and not is_whole:
        return None
    until = (newest.record, newest.byte)
    reducer = await state_at(service, info, bound, base, until)
    if isinstance(reducer, Refusal):
        return reducer
    try:
        state = await asyncio.to_thread(reducer.state)
    finally:
        reducer.close()
    begin = 0 if base is None else base.record
    computed = await asyncio.to_thread(lambda: sha256(state).digest())
    return Verified(*until, begin, newest.sha256, computed)


def _apply(reducer: Reducer, page: Page, first: int, until: int, is_json: bool) -> None:
    """Apply the records of a page before the record `until`."""
    if not page.spans:
        return
    spans = [
        StoredSpan(
            span.record,
            span.byte,
            span.payload,
            page.info.encoding if span.encoding == OWN_ENCODING else span.encoding,
            span.lengths,
            span.time_ms,
            span.append_times,
        )
        for span in page.spans
    ]
    end = (page.record, page.byte)
    shown = show(
        spans, end, first=first, form=Form(records=True, is_json=is_json), bytes_max=1 << 62
    )
    if shown.damage or (shown.record, shown.byte) != end:
        raise ReducerFault(
            f"the records from {shown.record} on cannot be read: {shown.damage or 'a damaged batch'}"
        )
    records = parse_page(as_array(shown.parts), is_json=is_json)
    reducer.apply([each for each in records if each.record < until])
