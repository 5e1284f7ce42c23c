"""Reads of streams wherever their groups are, and the handle of a stream."""

from __future__ import annotations

from msgspec import structs

from polynya.cold import PackGone
from polynya.local.api import AppendTo, Isolation, Page, ReadQuery, Refusal, Sink, StreamInfo
from polynya.local.local import LocalGroups
from polynya.local.reads.pieces import PlannedPage
from polynya.routing import messages
from polynya.routing.answers import LocalAnswers
from polynya.routing.proposals import Proposals
from polynya.routing.rpc import CoreTransport, Rpc
from polynya.routing.tails import RemoteTails
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.replies import Done

HIDDEN_PAGES_MAX = 8  # that a read passes over


class StreamReads:
    """Reads and live readers of one core: of the local replica of a group if it may serve them,
    else of others."""

    def __init__(
        self, local: LocalGroups, rpc: Rpc, answers: LocalAnswers, transport: CoreTransport
    ) -> None:
        self.read_nowait = local.reads.read_nowait
        self.local = local
        self._machines = local.machines
        self._rpc = rpc
        self._answers = answers
        self._transport = transport
        self._tails: dict[tuple[bool, bool], RemoteTails] = {}  # by local, numbers of `attach`

    def is_readable(self, group: int) -> bool:
        """Report whether this core may answer reads of the group now, without other nodes."""
        return group in self._machines and self.local.readable(group)

    async def info(self, group: int, name: str, *, local: bool = False) -> StreamInfo | Refusal:
        """Return facts that reflect every append acknowledged before the call. `local`: return this
        node's state without contacting the leader."""
        question = messages.Attach(group, name, local)
        found: StreamInfo | Refusal = await self._rpc.at_replica(
            group, messages.INFO, question, self._answers.info, local=local
        )
        return found

    async def read(self, group: int, query: ReadQuery) -> Page | Refusal:
        """Return a page. If it has only batches that the reader does not get, go on behind them, a
        few times: then the page is empty, and ends there."""
        page = await self._read_page(group, query)
        for _ in range(HIDDEN_PAGES_MAX - 1):
            if not isinstance(page, Page) or not _is_hidden(page, query):
                break
            query = structs.replace(query, record=page.record, byte=page.byte)
            found = await self._read_page(group, query)
            if not isinstance(found, Page) or found.info.uid != page.info.uid:
                break  # trimmed or deleted meanwhile, as the next read tells
            page = found
        return page

    async def _read_page(self, group: int, query: ReadQuery) -> Page | Refusal:
        try:
            return await self._read(group, query)
        except PackGone:  # the index has changed since the plan: plan again, once
            return await self._read(group, query)

    async def _read(self, group: int, query: ReadQuery) -> Page | Refusal:
        question = messages.Query(group, query, self.local.reads.cold is not None)
        answer: Page | Refusal | PlannedPage = await self._rpc.at_replica(
            group, messages.READ, question, self._answers.read, local=query.local
        )
        if isinstance(answer, PlannedPage):
            return await self.local.reads.pieces.page(answer, query)
        return answer

    async def attach(
        self, group: int, name: str, sink: Sink, *, local: bool = False, numbers: bool = False
    ) -> StreamInfo | Refusal:
        """Deliver every event after the returned tail to `sink`, in order. Attach first, read up to
        the returned tail, then go live. `numbers`: a tail watch, whose events carry no payload if
        the stream is on another core."""

        async def here() -> StreamInfo | Refusal:
            await self.local.prepare(group, local=local)
            return self.local.streams.attach(group, name, sink, local=local)

        async def there(core_id: int) -> StreamInfo | Refusal:
            tails = self._tails.get((local, numbers))
            if tails is None:
                seconds = self.local.feeds.seconds
                tails = RemoteTails(self._transport, seconds, local=local, numbers=numbers)
                self._tails[local, numbers] = tails
            return await tails.attach(core_id, group, name, sink)

        return await self._rpc.from_replica(group, here, there, local=local)

    def detach(self, uid: int, sink: Sink) -> None:
        """Deliver no more events to `sink`."""
        for tails in self._tails.values():
            tails.detach(uid, sink)
        if uid >> 48 in self._machines:
            self.local.streams.detach(uid, sink)


def _is_hidden(page: Page, query: ReadQuery) -> bool:
    """Report whether the reader gets nothing of a page, and there is more behind it."""
    return (
        not page.spans
        and not page.up_to_date
        and query.isolation == Isolation.ROWS
        and page.record > max(query.record, page.begin_record)
    )


class StreamHandle:
    """A stream by its name, whether it exists or not. A handle is valid for the life of the
    process, and its user keeps it.

    It holds what never changes: the name, the group and the bound appender `append`. What may
    change (the leader, the stream itself, its incarnation and profile) is asked at each call.
    `append` takes an append that was stamped in this pass of the loop; a definite refusal may call
    `done` before it returns."""

    __slots__ = ("_proposals", "_reads", "append", "group", "name")
    append: AppendTo

    def __init__(self, name: str, group: int, proposals: Proposals, reads: StreamReads) -> None:
        self.name, self.group = name, group
        self._proposals, self._reads = proposals, reads

    def __getattr__(self, name: str) -> AppendTo:
        """Bind the appender at the first append: most handles of a request only read."""
        if name != "append":
            raise AttributeError(f"a StreamHandle has no {name!r}")
        self.append = append = self._proposals.appender(self.group)
        return append

    def propose(self, command: Command, done: Done) -> None:
        """Propose any command of the stream to its group's log. `done` runs on the loop with the
        reply, Unavailable (not applied) or OutcomeUnknown. A refusal that needs no log entry may
        call `done` before this returns."""
        if isinstance(command, (Append, Produce)):
            self.append(command, done)
        else:
            self._proposals.propose_to(self.group, command, done)

    @property
    def is_readable(self) -> bool:
        """Report whether this core may answer reads of the stream now, without other nodes."""
        return self._reads.is_readable(self.group)

    def ended_number(self, producer: int) -> int:
        """Return the number of the producer's last transaction that ended in the stream, as far as
        this core knows; 0: none."""
        machine = self._reads.local.machines.get(self.group)
        stream = None if machine is None else machine.directory.streams.get(self.name)
        if stream is None or stream.kafka is None:
            return 0
        ended = stream.kafka.ended.get(producer)
        return 0 if ended is None else ended[0]

    def info_nowait(self) -> StreamInfo | Refusal | None:
        """Return the facts of the stream if its group is local and no create or delete of the name
        is in flight; None: call `info`."""
        local, group, name = self._reads.local, self.group, self.name
        if group in local.machines and local.readable(group) and local.lifecycle.settled(name):
            return local.streams.info(group, name)
        return None

    async def info(self, *, local: bool = False) -> StreamInfo | Refusal:
        """Return the facts of the stream as `StreamReads.info` does."""
        return await self._reads.info(self.group, self.name, local=local)

    def read_nowait(self, query: ReadQuery) -> Page | Refusal | None:
        """Return a page of the stream if all of it is local and in memory; None: call `read`."""
        return self._reads.read_nowait(self.group, query)

    async def read(self, query: ReadQuery) -> Page | Refusal:
        """Return a page of the stream."""
        return await self._reads.read(self.group, query)

    async def attach(
        self, sink: Sink, *, local: bool = False, numbers: bool = False
    ) -> StreamInfo | Refusal:
        """Attach a live reader as `StreamReads.attach` does."""
        return await self._reads.attach(self.group, self.name, sink, local=local, numbers=numbers)
