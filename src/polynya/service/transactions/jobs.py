"""The work of coordinators and participants on time: transactions over their timeout, ids that are
idle for long, and transactions that a participant has open for longer than any timeout."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.limits import ORPHAN_MS, TRANSACTIONAL_ID_KEPT_MS
from polynya.jobs import Failures
from polynya.service.node_service import NodeService
from polynya.stream.features.markers.commands import TxnSettle
from polynya.stream.features.transactions.commands import TxnAsk, TxnExpire, TxnForget
from polynya.stream.features.transactions.rules import UNKNOWN
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply

ASK_SOON = 77  # message between cores
ASK_MS = 5000  # until a coordinator is asked again for a producer
ASKED_AT_ONCE = 64
WANTED_MAX = 4096  # that are asked for at once; others wait until they are old
AT_ONCE = 256  # ids of a group that one pass expires, or forgets
log = logging.getLogger("polynya.service")


class Orphan(NamedTuple):
    """A transaction that is open in a stream (`uid`) or consumer group (`group`)."""

    uid: int  # 0: of a consumer group
    group: str  # "": of a stream
    producer: int
    epoch: int
    number: int
    since_ms: int


class OpenElsewhere(msgspec.Struct, array_like=True, gc=False):
    """The request to ask for a transaction at once."""

    producer: int
    number: int


Source = Callable[[Machine], Iterator[Orphan]]
"""Yields what is open in a kind of participants of a group."""


def open_in_streams(machine: Machine) -> Iterator[Orphan]:
    """Yield the transactions that are open in streams."""
    for stream in machine.directory.undecided.values():
        if stream.kafka is not None:
            for producer, opened in stream.kafka.open.items():
                yield Orphan(stream.uid, "", producer, opened.epoch, opened.number, opened.since_ms)


def open_in_groups(machine: Machine) -> Iterator[Orphan]:
    """Yield the transactions that have offsets of consumer groups."""
    for group in machine.consumer_groups.undecided.values():
        for producer, pending in group.pending.items():
            yield Orphan(0, group.id, producer, 0, pending.number, pending.since_ms)


SOURCES: list[Source] = [open_in_streams, open_in_groups]


class TransactionCounters(msgspec.Struct):
    """The values behind the metrics."""

    expired: int = 0
    orphans: int = 0  # settled as their coordinator answered
    unknown: int = 0  # of these: aborted, as the coordinator did not know them
    failures: int = 0


class TransactionJobs:
    """The jobs of one core, for the groups that it leads. Call `run_once` about once a second,
    without overlap."""

    def __init__(self, service: NodeService, sources: Iterable[Source] = SOURCES) -> None:
        self.counters = TransactionCounters()
        self._service = service
        service.rpc.serve(ASK_SOON, OpenElsewhere, bool, self._want)
        self._sources = sources
        self._expiring: set[tuple[int, str]] = set()
        self._asked_ms: dict[tuple[int, int], int] = {}  # (producer, number) -> when
        self._wanted: set[tuple[int, int]] = set()  # (producer, number): at once
        self._failures = Failures(
            log,
            "asking for the outcome of a transaction failed; retrying",
            PolynyaError,
            level=logging.INFO,
            counters=self.counters,
        )

    @property
    def open(self) -> int:
        """The number of transactions whose coordinators are led here, and that are not complete."""
        led = self._service.local.led.values()
        return sum(len(machine.transactions.active) for machine in led)

    @property
    def stable_end_lag_seconds(self) -> float:
        """The age of the oldest transaction that is open in a stream led here."""
        oldest_ms = min(
            (
                opened.since_ms
                for machine in self._service.local.led.values()
                for stream in machine.directory.undecided.values()
                if stream.kafka is not None
                for opened in islice(stream.kafka.open.values(), 1)
            ),
            default=None,
        )
        return 0.0 if oldest_ms is None else max(0, self._service.now_ms() - oldest_ms) / 1000

    async def ask_soon(self, group: int, producer: int, number: int) -> None:
        """Let the leader of a participant's group ask at once for a transaction that is in the way
        of a later one of its producer. Raises Unavailable."""
        wanted = OpenElsewhere(producer, number)
        await self._service.rpc.at_home(group, ASK_SOON, wanted, self._want)

    async def _want(self, wanted: OpenElsewhere) -> bool:
        if len(self._wanted) < WANTED_MAX:
            self._wanted.add((wanted.producer, wanted.number))
        return True

    async def run_once(self) -> None:
        """Run one pass."""
        now_ms = self._service.now_ms()
        for group, machine in tuple(self._service.local.led.items()):
            if len(machine.transactions):
                self._expire(group, machine, now_ms)
                self._forget(group, machine, now_ms)
        self._asked_ms = {
            key: at_ms for key, at_ms in self._asked_ms.items() if at_ms + ASK_MS > now_ms
        }
        due = self._due(now_ms)
        if due:
            gate = asyncio.Semaphore(ASKED_AT_ONCE)
            await asyncio.gather(*(self._settle(some, gate) for some in due.values()))

    # --- coordinators -----------------------------------------------------------------------------

    def _expire(self, group: int, machine: Machine, now_ms: int) -> None:
        late = (
            each
            for each in machine.transactions.active.values()
            if each.state == TransactionState.ONGOING
            and each.until_ms <= now_ms
            and (group, each.id) not in self._expiring
        )
        for transaction in list(islice(late, AT_ONCE)):
            self._expiring.add((group, transaction.id))
            command = TxnExpire(transaction.id, transaction.number, now_ms)
            done = partial(self._expired, (group, transaction.id))
            self._service.local.propose(group, command, done)

    def _expired(self, key: tuple[int, str], reply: Reply | BaseException) -> None:
        self._expiring.discard(key)
        self.counters.expired += isinstance(reply, Reply) and reply.code == Code.OK

    def _forgotten(self, key: tuple[int, str], reply: Reply | BaseException) -> None:
        self._expiring.discard(key)

    def _forget(self, group: int, machine: Machine, now_ms: int) -> None:
        for transaction in list(islice(machine.transactions.idle.values(), AT_ONCE)):
            if transaction.used_ms + TRANSACTIONAL_ID_KEPT_MS > now_ms:
                return
            if (group, transaction.id) not in self._expiring:
                self._expiring.add((group, transaction.id))
                command = TxnForget(transaction.id, transaction.used_ms)
                done = partial(self._forgotten, (group, transaction.id))
                self._service.local.propose(group, command, done)

    # --- participants -----------------------------------------------------------------------------

    def _due(self, now_ms: int) -> dict[tuple[int, int], list[tuple[int, Orphan]]]:
        """Return the transactions to ask for now, by producer and number, with where they are
        open."""
        due: dict[tuple[int, int], list[tuple[int, Orphan]]] = {}
        for group, machine in self._service.local.led.items():
            for source in self._sources:
                for orphan in source(machine):
                    key = (orphan.producer, orphan.number)
                    is_old = orphan.since_ms + ORPHAN_MS <= now_ms
                    if (is_old or key in self._wanted) and key not in self._asked_ms:
                        due.setdefault(key, []).append((group, orphan))
        self._asked_ms |= dict.fromkeys(due, now_ms)
        self._wanted.clear()
        return due

    async def _settle(self, orphans: list[tuple[int, Orphan]], gate: asyncio.Semaphore) -> None:
        """Ask the coordinator, and end the transaction in all places as it answered."""
        service = self._service
        async with gate:
            with self._failures:
                answer = await self._ask(orphans[0][1])
                if answer is None:
                    return
                commit, epoch, decided_ms = answer
                for group, orphan in orphans:
                    command = TxnSettle(
                        orphan.uid,
                        orphan.group,
                        orphan.producer,
                        epoch if epoch >= 0 else orphan.epoch,
                        orphan.number,
                        commit,
                        decided_ms,
                        service.now_ms(),
                    )
                    await service.call(group, command)
                self._settled(orphans, commit=commit, is_known=epoch >= 0)

    async def _ask(self, orphan: Orphan) -> tuple[bool, int, int] | None:
        """Return (commit, epoch of the markers, time of the decision), or None while it is open. An
        id whose group no longer exists has no coordinator."""
        now_ms, coordinator = self._service.now_ms(), orphan.producer >> 47
        if not 0 < coordinator <= self._service.groups:
            return (*UNKNOWN, now_ms)
        asked = TxnAsk(orphan.producer, orphan.number, now_ms)
        reply = await self._service.call(coordinator, asked)
        if reply.detail is None:
            return None
        commit, epoch, decided_ms = reply.detail
        return commit, epoch, decided_ms

    def _settled(self, orphans: list[tuple[int, Orphan]], *, commit: bool, is_known: bool) -> None:
        self.counters.orphans += len(orphans)
        self.counters.unknown += 0 if is_known else len(orphans)
        group, orphan = orphans[0]
        log.warning(
            "a transaction was open without a coordinator that ends it; ended it here",
            extra={
                "producer": orphan.producer,
                "number": orphan.number,
                "outcome": "commit" if commit else "abort",
                "known": is_known,
                "places": len(orphans),
                "group": group,  # of the first one, as are these
                "stream": orphan.uid,
                "consumer_group": orphan.group,
            },
        )
