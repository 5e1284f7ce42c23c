"""Appends to streams of several groups, all or nothing: this core is the producer of a transaction.

A request takes one of the core's transactional ids. Its appends are undecided in their groups until
the id's coordinator has decided (docs/design/appends-across-groups.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import structs

from polynya.base.errors import OutcomeUnknown, PolynyaError, Unavailable, UpgradePending
from polynya.base.limits import (
    APPEND_ALL_IDS,
    APPEND_ALL_SECONDS,
    APPEND_ALL_TIMEOUT_MS,
)
from polynya.base.names import APPEND_ALL_ID
from polynya.local.api import Refusal, StreamInfo
from polynya.routing.group_locations import GroupLocations
from polynya.service.node_service import NodeService
from polynya.service.transactions.calls import TransactionRefused
from polynya.service.transactions.coordinator import Pair, TransactionService
from polynya.stream.features.appends.commands import Append, AppendAll, AppendIf, TxnAppend
from polynya.stream.features.appends.together import none_appended
from polynya.stream.features.transactions.commands import TxnAsk
from polynya.stream.replies import Code, Reply
from polynya.wal import DiskFull

_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.005, 0.1
_ABORT_SECONDS = 1.0
_LATE_SECONDS = 3.0  # for the decision of a transaction whose timeout is over
_REPEATABLE = (Code.TXN_CONCURRENT, Code.TXN_HELD)
_STALE = (Code.FENCED, Code.NOT_FOUND)
Part = Append | AppendIf
Row = list[int | bool]  # of an append: uid, record, byte, closed
_T = TypeVar("_T")


class AppendCounters(msgspec.Struct):
    """The values behind the metrics: transactions of requests, by their outcomes."""

    committed: int = 0
    aborted: int = 0  # refused, repeated, or too late
    unknown: int = 0


class _Id(msgspec.Struct):
    """A transactional id of this core, used by one request at a time."""

    name: str
    pair: Pair | None = None  # None: to be asked for, which ends what is open


class AppendsAcrossGroups:
    """The appends of one core. Its ids have the numbers of its node and of itself."""

    def __init__(
        self,
        service: NodeService,
        transactions: TransactionService,
        locations: GroupLocations | None,
    ) -> None:
        self._service, self._transactions = service, transactions
        node, core = 0 if locations is None else locations.node, service.rpc.core
        # the last used one first: an idle core keeps few of them alive
        self._free = [
            _Id(f"{APPEND_ALL_ID}{node}.{core}.{number}")
            for number in reversed(range(APPEND_ALL_IDS))
        ]
        self._slots = asyncio.Semaphore(APPEND_ALL_IDS)
        self._running = set[asyncio.Task[Reply]]()
        self.counters = AppendCounters()

    async def append(self, parts: Sequence[Part]) -> Reply:
        """Append to all streams or to none. The replies are those of an `AppendAll`. Raises
        Unavailable (nothing was appended, nor will be), and OutcomeUnknown.

        A caller that is cancelled leaves nothing open: what was begun goes on."""
        task = asyncio.get_running_loop().create_task(self._append(parts))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _append(self, parts: Sequence[Part]) -> Reply:
        deadline = asyncio.get_running_loop().time() + APPEND_ALL_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{APPEND_ALL_IDS} requests of this core append to several groups already; retry"
            ) from None
        own = self._free.pop()
        try:
            return await _Attempt(
                self._service, self._transactions, own, deadline, self.counters
            ).run(parts)
        except BaseException:
            own.pair = None
            raise
        finally:
            self._free.append(own)
            self._slots.release()


class _Attempt:
    """One request."""

    def __init__(
        self,
        service: NodeService,
        transactions: TransactionService,
        own: _Id,
        deadline: float,
        counters: AppendCounters,
    ) -> None:
        self._service, self._transactions = service, transactions
        self._own, self._deadline, self._counters = own, deadline, counters
        self._pair: Pair = (-1, -1)  # of this transaction, once it is begun
        self._number = 0

    async def run(self, parts: Sequence[Part]) -> Reply:
        """Append, and wait until readers see it."""
        try:
            async with asyncio.timeout_at(self._deadline):
                reply = await self._undecided(parts)
        except TimeoutError:
            await self._abort()
            raise Unavailable(
                f"the groups did not answer within {APPEND_ALL_SECONDS:.0f} seconds; nothing was "
                "appended: retry"
            ) from None
        except PolynyaError as fault:
            await self._abort()
            if isinstance(fault, UpgradePending):
                raise
            raise Unavailable(f"nothing was appended: {fault}") from fault
        if reply.code == Code.OK and self._number:
            await self._commit()
        else:
            await self._abort()
        if reply.code == Code.DUPLICATE:
            return Reply(Code.DUPLICATE, detail=await self._tails(parts))
        return reply

    # --- before the decision ----------------------------------------------------------------------

    async def _undecided(self, parts: Sequence[Part]) -> Reply:
        """Append without deciding, then judge the conditions of streams that get nothing. So of two
        requests that append to what the other one compares at most one is committed."""
        positions = [number for number, part in enumerate(parts) if part.batch is not None]
        rest = [number for number in range(len(parts)) if number not in set(positions)]
        rows: dict[int, Row] = {}
        found = await self._placed(parts, positions)
        if isinstance(found, Reply):
            return found
        if positions:
            await self._begin([(group, part.incarnation, part.name) for group, part in found])
            own = dict(zip(positions, (part for _, part in found), strict=True))
            reply = _joined(parts, *await self._each_group(own, self._command), rows)
            if reply.code != Code.OK:
                return reply
        conditions = {number: parts[number] for number in rest}
        reply = _joined(parts, *await self._each_group(conditions, AppendAll), rows)
        if reply.code != Code.OK:
            return reply
        return Reply(Code.OK, detail=[rows[number] for number in range(len(parts))])

    async def _placed(
        self, parts: Sequence[Part], positions: Sequence[int]
    ) -> list[tuple[int, Part]] | Reply:
        """Return the appends with the groups and incarnations of their streams: a participant is
        one incarnation. A missing stream is a refusal."""
        infos = await _all(self._service.info(parts[at].name) for at in positions)
        found: list[tuple[int, Part]] = []
        for at, info in zip(positions, infos, strict=True):
            part = parts[at]
            if not isinstance(info, StreamInfo):
                return none_appended(at, _reply_of(info))
            if part.incarnation not in (0, info.uid):
                return none_appended(at, _reply_at(Code.INCARNATION, info))
            placed = structs.replace(part, incarnation=info.uid)
            found.append((self._service.group_of(part.name), placed))
        return found

    async def _begin(self, streams: list[tuple[int, int, str]]) -> None:
        """Begin a transaction with these participants."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._number:
            try:
                if self._own.pair is None:
                    self._own.pair = await self._transactions.init(
                        self._own.name, APPEND_ALL_TIMEOUT_MS
                    )
                self._pair = self._own.pair
                self._number = await self._transactions.add(
                    self._own.name, self._pair, streams, [], version=2
                )
                return
            except TransactionRefused as refused:
                if refused.code in _STALE:
                    self._own.pair = None
                elif refused.code not in _REPEATABLE:
                    raise Unavailable("the coordinators of transactions are full; retry") from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _command(self, parts: list[Part]) -> TxnAppend:
        return TxnAppend(parts, *self._pair, self._number)

    async def _each_group(
        self, parts: dict[int, Part], command: Callable[[list[Part]], AppendAll | TxnAppend]
    ) -> tuple[list[list[int]], list[Reply]]:
        """Propose the parts of each group. Return the numbers of its parts, and its reply."""
        by_group: dict[int, list[int]] = {}
        for number, part in parts.items():
            by_group.setdefault(self._service.group_of(part.name), []).append(number)
        calls = [
            self._call(group, command([parts[number] for number in numbers]))
            for group, numbers in by_group.items()
        ]
        return list(by_group.values()), await _all(calls)

    async def _call(self, group: int, command: AppendAll | TxnAppend) -> Reply:
        try:
            return await self._service.call(group, command)
        except DiskFull:
            return Reply(Code.DISK_FULL)

    async def _tails(self, parts: Sequence[Part]) -> list[Row]:
        """Return what a repeat is answered: where the streams end now."""
        infos = await _all(self._service.info(part.name) for part in parts)
        return [
            [info.uid, info.record, info.byte, info.closed]
            if isinstance(info, StreamInfo)
            else [0, 0, 0, True]
            for info in infos
        ]

    # --- the decision -----------------------------------------------------------------------------

    async def _abort(self) -> None:
        """Abort what was begun. Without an answer its timeout does."""
        if not self._number:
            return
        self._counters.aborted += 1
        self._own.pair = None  # a new one ends what is left open
        with suppress(TimeoutError, PolynyaError, TransactionRefused):
            async with asyncio.timeout(_ABORT_SECONDS):
                self._own.pair = await self._end(commit=False)
                await self._transactions.is_settled(self._own.name)  # a retry finds nothing open

    async def _commit(self) -> None:
        """Commit, and wait until readers see it. Raises Unavailable if the transaction was aborted,
        and OutcomeUnknown."""
        self._own.pair = None
        latest = self._deadline + APPEND_ALL_TIMEOUT_MS / 1000 + _LATE_SECONDS
        is_committed: bool | None = None
        pause = _FIRST_PAUSE_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout_at(latest):
                while (is_committed := await self._decide()) is None:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        if is_committed is None:
            self._counters.unknown += 1
            raise OutcomeUnknown("the coordinator of the transaction did not answer in time")
        if not is_committed:
            self._counters.aborted += 1
            raise Unavailable("the transaction took too long and was aborted; retry")
        self._counters.committed += 1
        with suppress(TimeoutError, PolynyaError):
            async with asyncio.timeout(APPEND_ALL_SECONDS):
                while not await self._transactions.is_settled(self._own.name):
                    await asyncio.sleep(_PAUSE_SECONDS_MAX)

    async def _decide(self) -> bool | None:
        """Return whether the transaction is committed; None: it is open, or there is no answer.
        After the deadline it is aborted."""
        commit = asyncio.get_running_loop().time() < self._deadline
        try:
            self._own.pair = await self._end(commit=commit)
        except TransactionRefused as refused:
            if refused.code == Code.TXN_HELD:
                return None
        except PolynyaError:
            pass
        else:
            return commit
        with suppress(PolynyaError):
            asked = TxnAsk(self._pair[0], self._number, self._service.now_ms())
            reply = await self._service.call(self._pair[0] >> 47, asked)
            return None if reply.detail is None else bool(reply.detail[0])
        return None

    async def _end(self, *, commit: bool) -> Pair:
        return await self._transactions.end(self._own.name, self._pair, commit=commit, version=2)


def _joined(
    parts: Sequence[Part], numbers: list[list[int]], replies: list[Reply], rows: dict[int, Row]
) -> Reply:
    """Return the outcome of the parts of all groups, and note what they answered in `rows`. Repeats
    go first, as in one group: then the streams have moved, and conditions no longer hold. Raises
    Unavailable."""
    refused: list[tuple[int, Reply]] = []
    repeated: list[int] = []
    new: list[int] = []  # the others with a producer
    for own, reply in zip(numbers, replies, strict=True):
        with_producer = [number for number in own if parts[number].producer is not None]
        (repeated if reply.code == Code.DUPLICATE else new).extend(with_producer)
        if reply.code == Code.NONE_APPENDED:
            at, found = reply.detail
            refused.append((own[at], msgspec.convert(found, Reply)))
        elif reply.code == Code.OK:
            rows.update(zip(own, reply.detail, strict=True))
        elif reply.code != Code.DUPLICATE:
            return reply  # of the whole, such as a full disk
    if repeated and not new:
        return Reply(Code.DUPLICATE)
    if repeated:
        refused.append((min(repeated), Reply(Code.DUPLICATE)))
    if not refused:
        return Reply(Code.OK)
    number, reply = min(refused, key=lambda each: each[0])
    is_replaced = reply.code == Code.INCARNATION and not parts[number].incarnation
    if is_replaced or reply.code in (Code.TXN_ENDED, Code.NOT_YET):
        raise Unavailable("a stream has changed meanwhile; retry")
    return none_appended(number, reply)


def _reply_of(refusal: Refusal) -> Reply:
    return Reply(refusal.code, record=refusal.record, byte=refusal.byte)


def _reply_at(code: Code, info: StreamInfo) -> Reply:
    return Reply(code, info.uid, info.record, info.byte, info.closed)


async def _all(calls: Iterable[Awaitable[_T]]) -> list[_T]:
    """Wait for all of them, and raise the first fault: none goes on when the transaction ends."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
