"""The coordinators of transactional ids, as one core reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

from msgspec import structs

from polynya.base.errors import NotLeader
from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import MARKED_MAX
from polynya.routing.group_locations import GroupLocations
from polynya.service.node_service import NodeService
from polynya.service.transactions.calls import (
    ACT,
    SETTLED,
    TRANSACTIONS,
    ConnectionUse,
    TransactionAct,
    TransactionDetails,
    TransactionEnd,
    TransactionQuery,
    TransactionRefused,
    details_of,
)
from polynya.service.transactions.connections import TransactionConnections
from polynya.service.transactions.marker_sender import MarkerSender
from polynya.stream.command import Command
from polynya.stream.features.transactions.commands import (
    EPOCH,
    TxnAdd,
    TxnEnd,
    TxnExpire,
    TxnInit,
)
from polynya.stream.features.transactions.state import PREPARED, Transaction, TransactionState
from polynya.stream.replies import Code, Reply

WAIT_MS = 400  # for the end of the transaction before; then the log answers
Pair: TypeAlias = tuple[int, int]  # producer, epoch
_NO_PAIR: Pair = (-1, -1)


class TransactionService:
    """The calls of fronts. Each raises TransactionRefused, Unavailable if it was not applied, and
    OutcomeUnknown; a repeat is safe then. The caller checks ids (1 to `TRANSACTIONAL_ID_BYTES_MAX`
    bytes) and timeouts (1 to `TRANSACTION_TIMEOUT_MS_MAX`). `use`: the request of a client, which is
    proposed on this node only, and only as long as it is not late."""

    def __init__(
        self, service: NodeService, markers: MarkerSender, locations: GroupLocations | None
    ) -> None:
        self._service, self._markers = service, markers
        self.connections = TransactionConnections(service, locations.node if locations else 0)
        markers.wake = self._wake
        self._waiting: dict[int, list[asyncio.Event]] = {}  # by group
        self.now_ms = service.now_ms
        service.rpc.serve(TRANSACTIONS, TransactionQuery, list[TransactionDetails], self._answer)
        service.rpc.serve(ACT, TransactionAct, Reply, self._act)
        service.rpc.serve(SETTLED, TransactionEnd, bool, self._settled)

    @property
    def is_ready(self) -> bool:
        """Report whether all nodes know transactions, as far as this core knows."""
        return self._service.level >= TRANSACTION_LEVEL

    def group_of(self, id_: str) -> int:
        """Return the Raft group whose leader coordinates an id."""
        return self._service.group_of(f"transaction/{id_}")

    def _is_ending(self, group: int, id_: str) -> bool:
        """Report whether the markers of the last transaction are on their way. A request would be
        refused then, by an entry of the log."""
        machine = self._service.local.led.get(group)
        known = None if machine is None else machine.transactions.get(id_)
        return (
            known is not None
            and known.state in PREPARED
            and not self._markers.is_acknowledging(group, known.messages)
        )

    async def init(  # noqa: PLR0913
        self,
        id_: str,
        timeout_ms: int,
        pair: Pair = _NO_PAIR,
        *,
        owner: int = 0,
        use: ConnectionUse | None = None,
    ) -> Pair:
        """Return a new pair of producer and epoch, which fences all former ones. `pair`: the caller
        has it, and goes on; an id that is unknown is a new one whatever the pair, as in Kafka.
        `owner`: a hash of the principal; 0 without access control."""
        if pair != _NO_PAIR:
            _check(pair)
        command = TxnInit(id_, self._service.now_ms(), timeout_ms, *pair, owner)
        try:
            return _pair_of(await self._call_after(id_, command, use))
        except TransactionRefused as refused:
            if pair == _NO_PAIR or refused.code != Code.NOT_FOUND:
                raise
        if use is not None:
            use = structs.replace(use, producer=-1, epoch=-1)
        return await self.init(id_, timeout_ms, owner=owner, use=use)

    async def add(  # noqa: PLR0913
        self,
        id_: str,
        pair: Pair,
        streams: list[tuple[int, int, str]],
        groups: list[str],
        *,
        version: int,
        use: ConnectionUse | None = None,
    ) -> int:
        """Add streams (group, uid, name) and consumer groups to the open transaction, or begin one.
        Returns its number."""
        _check(pair)
        if len(streams) + len(groups) > MARKED_MAX:
            raise TransactionRefused(Code.TOO_LARGE)
        placed = [(self._service.group_of(f"consumer-group/{group}"), group) for group in groups]
        now_ms = self._service.now_ms()
        command = TxnAdd(id_, *pair, now_ms, streams, placed, version)
        number: int = await self._call_after(id_, command, use)
        return number

    async def participants(self, id_: str, pair: Pair) -> tuple[int, list[int], list[str]]:
        """Return the number of the open transaction, and the uids and consumer groups that were
        added to it."""
        found = await self._one(id_)
        if (found.producer, found.epoch) != pair:
            raise TransactionRefused(Code.FENCED)
        if found.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
            raise TransactionRefused(Code.TXN_CONCURRENT)
        if found.state != TransactionState.ONGOING:
            raise TransactionRefused(Code.TXN_STATE)
        return found.number, [uid for uid, _ in found.streams], found.groups

    async def end(  # noqa: PLR0913
        self,
        id_: str,
        pair: Pair,
        *,
        commit: bool,
        version: int,
        use: ConnectionUse | None = None,
    ) -> Pair:
        """Commit or abort the open transaction. Returns the pair of the next one, which is the same
        one in version 1."""
        _check(pair)
        command = TxnEnd(id_, *pair, commit, version, self._service.now_ms())
        if use is None:
            return _pair_of(await self._call(id_, command))
        return _pair_of(await self._call_after(id_, command, use, 0))

    async def is_settled(self, id_: str) -> bool:
        """Report whether the participants of the last transaction have its outcome. Its coordinator
        waits a moment for that. Raises Unavailable."""
        asked = TransactionEnd(self.group_of(id_), id_)
        found: bool = await self._service.rpc.at_home(asked.group, SETTLED, asked, self._settled)
        return found

    async def abort(self, id_: str) -> TransactionDetails:
        """Abort the open transaction of an id, and fence its producer. Returns what it was."""
        found = await self._one(id_)
        if found.state != TransactionState.ONGOING:
            raise TransactionRefused(Code.TXN_STATE)
        await self._call(id_, TxnExpire(id_, found.number, self._service.now_ms(), force=True))
        return found

    async def describe(self, ids: Iterable[str]) -> dict[str, TransactionDetails]:
        """Return those of these ids that their coordinators know, with their participants."""
        by_group: dict[int, list[str]] = {}
        for id_ in ids:
            by_group.setdefault(self.group_of(id_), []).append(id_)
        wanted = [TransactionQuery([group], some) for group, some in by_group.items()]
        found = [each for query in wanted for each in await self._at_home(query)]
        return {each.id: each for each in found}

    async def list_transactions(
        self,
        *,
        states: Iterable[TransactionState] = (),
        producers: Iterable[int] = (),
        open_ms: int = -1,
    ) -> list[TransactionDetails]:
        """Return the ids of all coordinators, by id, without participants. `open_ms`: only those
        whose transaction is open for as long."""
        since_ms = self._service.now_ms() - open_ms if open_ms >= 0 else -1
        states, producers = list(states), list(producers)

        def query(groups: list[int]) -> TransactionQuery:
            return TransactionQuery(groups, [], states, producers, since_ms)

        groups = range(1, self._service.groups + 1)
        parts = await self._service.rpc.of_groups(groups, TRANSACTIONS, query, self._answer)
        return sorted((each for part in parts for each in part), key=lambda each: each.id)

    async def _one(self, id_: str) -> TransactionDetails:
        found = await self._at_home(TransactionQuery([self.group_of(id_)], [id_]))
        if not found:
            raise TransactionRefused(Code.NOT_FOUND)
        return found[0]

    async def _at_home(self, query: TransactionQuery) -> list[TransactionDetails]:
        found: list[TransactionDetails] = await self._service.rpc.at_home(
            query.groups[0], TRANSACTIONS, query, self._answer
        )
        return found

    async def _answer(self, query: TransactionQuery) -> list[TransactionDetails]:
        """Answer from the replicas of this core, after all that was committed before."""
        await self._service.local.linearize_all(query.groups)
        found = []
        for group in query.groups:
            known = self._service.local.here(group).transactions
            some = [known.get(id_) for id_ in query.ids] if query.ids else list(known)
            found += [
                details_of(group, each, whole=bool(query.ids))
                for each in some
                if each is not None and _matches(query, each)
            ]
        return found

    async def _call_after(
        self,
        id_: str,
        command: TxnInit | TxnAdd | TxnEnd,
        use: ConnectionUse | None,
        wait_ms: int | None = None,
    ) -> Any:
        """Call the coordinator, which waits a moment while the transaction before ends."""
        wait_ms = WAIT_MS if wait_ms is None else wait_ms
        act = TransactionAct(self.group_of(id_), command, wait_ms, use)
        return _detail_of(
            await self._service.rpc.at_home(act.group, ACT, act, self._act, changes=True)
        )

    async def _act(self, act: TransactionAct) -> Reply:
        if act.group not in self._service.local.led:
            raise NotLeader(0)
        if act.wait_ms:
            await self._wait_a_moment(act.group, act.command.id, min(act.wait_ms, WAIT_MS))
        if act.use is None:
            return await self._service.call(act.group, act.command)
        if self.connections.is_late(act.use):
            return Reply(Code.TXN_LATE)
        # never by way of another node, where it could come behind the client's repeat
        propose = self._service.local.propose
        return await self._service.proposals.call(act.group, act.command, propose)

    async def _settled(self, asked: TransactionEnd) -> bool:
        if asked.group not in self._service.local.led:
            raise NotLeader(0)
        await self._wait_a_moment(asked.group, asked.id, WAIT_MS)
        return not self._is_ending(asked.group, asked.id)

    async def _wait_a_moment(self, group: int, id_: str, wait_ms: int) -> None:
        if self._is_ending(group, id_):
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wait_ended(group, id_)

    async def _wait_ended(self, group: int, id_: str) -> None:
        """Wait until the acknowledgements of the last markers are on their way into the log."""
        woken = asyncio.Event()
        waiting = self._waiting.setdefault(group, [])
        waiting.append(woken)
        try:
            while self._is_ending(group, id_):
                woken.clear()
                await woken.wait()
        finally:
            waiting.remove(woken)
            if not waiting:
                self._waiting.pop(group, None)

    def _wake(self, group: int) -> None:
        for woken in self._waiting.get(group, ()):
            woken.set()

    async def _call(self, id_: str, command: Command) -> Any:
        return _detail_of(await self._service.call(self.group_of(id_), command))


def _detail_of(reply: Reply) -> Any:
    if reply.code != Code.OK:
        raise TransactionRefused(Code(reply.code))
    return reply.detail


def _check(pair: Pair) -> None:
    """Refuse a pair that no client got."""
    if pair[0] < 0 or not EPOCH[0] <= pair[1] <= EPOCH[1]:
        raise TransactionRefused(Code.FENCED)


def _pair_of(detail: Any) -> Pair:
    producer, epoch = detail
    return producer, epoch


def _matches(query: TransactionQuery, transaction: Transaction) -> bool:
    return (
        (not query.states or transaction.state in query.states)
        and (not query.producers or transaction.producer in query.producers)
        and (
            query.since_ms < 0 or (transaction.is_active and transaction.since_ms <= query.since_ms)
        )
    )
