"""Rehydrate evicted streams: a write waits until the state is read and returned through the log; a
read uses a copy.

Commands that wait for one stream proceed in order of arrival. A command that arrives while an
eviction is in flight waits until that is decided. So no command ever finds its stream evicted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from msgspec import structs

from polynya.base.errors import CorruptData, OutcomeUnknown, PolynyaError, Unavailable
from polynya.base.futures import settle
from polynya.base.limits import (
    RECALL_BYTES_MAX,
    RECALL_ENTRY_BYTES,
    RECALL_STREAMS,
    RECALL_STREAMS_MAX,
)
from polynya.base.names import companion_of, spelled_name
from polynya.cold import PackGone
from polynya.local.dependencies import StateReader
from polynya.local.hooks import after_applied
from polynya.local.waiting import size_of
from polynya.stream.command import Command, named_by
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.pages.commands import Evict, Return
from polynya.stream.features.pages.eviction import evicted_view, needed_by, slice_of, whole_of
from polynya.stream.features.subscriptions.commands import LinkSubscription
from polynya.stream.features.tables.commands import ClaimRanges
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import Stream

log = logging.getLogger("polynya.service")

Propose = Callable[[int, Command, Done], None]
LOADS_AT_ONCE = 16


class RehydrationCounters(msgspec.Struct):
    """The counters behind the metrics. They only grow."""

    returned: int = 0  # rehydrated streams, whichever node requested them
    copies: int = 0  # copies for reads
    refused: int = 0  # requests that could not wait or whose rehydration failed


class _Queue:
    """Commands that wait for one stream. `coming`: a task is rehydrating it; else the decision on
    an eviction is pending."""

    __slots__ = ("coming", "commands", "size")

    def __init__(self) -> None:
        self.coming = False
        self.commands: list[tuple[Command, Done]] = []
        self.size = 0


class Rehydration:
    """The rehydration of one core. `propose` sends to the log; `again` handles a command that has
    waited as a new one."""

    def __init__(
        self,
        machines: dict[int, Machine],
        propose: Propose,
        again: Propose,
        now_ms: Callable[[], int],
    ) -> None:
        self.counters = RehydrationCounters()
        self.states: StateReader | None = None
        self.recent: dict[
            int, int
        ] = {}  # uid → log time of its rehydration; the evictor removes entries
        self.racing: dict[str, int] = {}  # stream name → evictions in flight
        self._machines = machines
        self._propose = propose
        self._again = again
        self._now_ms = now_ms
        self._queues: dict[str, _Queue] = {}
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # --- commands ---------------------------------------------------------------------------------

    def before(self, group: int, machine: Machine, command: Command, done: Done) -> Done | None:
        """Return the callback for a command that may be proposed now; None if the command waits."""
        raced = [name for name in named_by(command) if name in self.racing] if self.racing else []
        if raced:
            self.hold(group, raced[0], command, done)
            return None
        if isinstance(command, LinkSubscription | TxnMarkers):
            done = self._watching(group, command, done)
        names = list(islice(needed_by(machine, command), RECALL_STREAMS_MAX))
        if not names:
            return done
        if len(names) == 1 and not isinstance(command, ClaimRanges):
            self.hold(group, names[0], command, done)
        else:
            self._spawn(self._after_many(group, names, command, done))
        return None

    def hold(self, group: int, name: str, command: Command, done: Done) -> None:
        """Queue a command until its stream is rehydrated, or its eviction is cancelled."""
        batch = command.batch if isinstance(command, Append | Create | Produce) else None
        size = size_of(batch)
        if self._waiting_bytes + size > RECALL_BYTES_MAX:
            self.counters.refused += 1
            done(Unavailable("too many requests wait for evicted streams to be rehydrated; retry"))
            return
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
            if name not in self.racing:
                self._bring_one(group, name)
        queue.commands.append((command, done))
        queue.size += size
        self._waiting_bytes += size

    def racing_with(self, group: int, command: Evict, done: Done) -> tuple[Evict, Done]:
        """Return an eviction and its callback as they may be proposed. Until it is decided, commands
        that name its streams wait."""
        machine = self._machines[group]
        command = self.only_present(machine, command)
        return command, self._racing_with(group, machine, command, done)

    def only_present(self, machine: Machine, command: Evict) -> Evict:
        """Drop streams from an eviction that are evicted already. Behind a return in flight it
        would evict a stream that `racing` does not list."""
        by_uid = machine.directory.by_uid
        if all(slot[0] in by_uid for slot in command.slots):
            return command
        return structs.replace(
            command, slots=[slot if slot[0] in by_uid else (0, *slot[1:]) for slot in command.slots]
        )

    @after_applied(Return)
    def note(self, group: int, command: Return, reply: Reply) -> None:
        """Count an applied `Return`."""
        now_ms = self._now_ms()
        for at in reply.detail or ():
            self.recent[command.states[at][1]] = now_ms
            self.counters.returned += 1

    def _racing_with(self, group: int, machine: Machine, command: Evict, done: Done) -> Done:
        names = [
            stream.name
            for uid, *_ in command.slots
            if (stream := machine.directory.by_uid.get(uid)) is not None
        ]
        for name in names:
            self.racing[name] = self.racing.get(name, 0) + 1

        def answered(reply: Reply | BaseException) -> None:
            for name in names:
                left = self.racing[name] - 1
                if left:
                    self.racing[name] = left
                else:
                    del self.racing[name]
                    self._decided(group, name)
            done(reply)

        return answered

    def _decided(self, group: int, name: str) -> None:
        """Resume the queue after an eviction was applied or rejected."""
        queue = self._queues.get(name)
        # else it was evicted during its rehydration, which notices it
        if queue is not None and not queue.coming:
            self._arrived(group, name, Reply(Code.OK))

    def _watching(self, group: int, command: Command, done: Done) -> Done:
        """Retry a command when the log replies that it needs other evicted streams."""

        def answered(reply: Reply | BaseException) -> None:
            if isinstance(reply, Reply) and reply.code == Code.EVICTED:
                self._again(group, command, done)
            else:
                done(reply)

        return answered

    # --- rehydration ------------------------------------------------------------------------------

    def _bring_one(self, group: int, name: str) -> None:
        self._queues[name].coming = True
        self._spawn(self._one(group, name))

    async def _one(self, group: int, name: str) -> None:
        """Rehydrate one stream for its queue."""
        try:
            loaded = [await self._load(group, each) for each in self._with_bodies(group, name)]
        except PolynyaError as fault:
            self._arrived(group, name, _refusal(fault))
            return
        states = [state for state in loaded if state is not None]
        if not states:  # already rehydrated, or the group has left
            self._arrived(group, name, Reply(Code.OK))
        else:
            self._propose(
                group, Return(states, self._now_ms()), partial(self._arrived, group, name)
            )

    def _arrived(self, group: int, name: str, outcome: Reply | BaseException) -> None:
        """Resume or reject the queue after a rehydration. If the stream was evicted again,
        rehydrate it again."""
        arrived, machine = (
            isinstance(outcome, Reply) and outcome.code == Code.OK,
            self._machines.get(group),
        )
        if arrived and machine is not None and name in machine.directory.evicted:
            self._bring_one(group, name)
            return
        queue = self._queues.pop(name)
        self._waiting_bytes -= queue.size
        if arrived:
            for command, done in queue.commands:
                self._again(group, command, done)
            return
        # of the `Return`; the waiting commands were not proposed
        if isinstance(outcome, OutcomeUnknown):
            outcome = Unavailable(f"the stream could not be rehydrated: {outcome}; retry")
        self.counters.refused += len(queue.commands)
        for _, done in queue.commands:
            done(outcome)

    async def _after_many(self, group: int, names: list[str], command: Command, done: Done) -> None:
        """Rehydrate many streams for one command. A command that can use a subset proceeds at once
        after that."""
        try:
            for begin in range(0, len(names), RECALL_STREAMS):
                await self.bring(group, names[begin : begin + RECALL_STREAMS])
        except PolynyaError as fault:
            self.counters.refused += 1
            done(_refusal(fault))
            return
        if isinstance(command, ClaimRanges):
            self._propose(group, command, done)
        else:
            self._again(group, command, done)

    async def bring(self, group: int, names: list[str]) -> None:
        """Return streams into memory, at most `RECALL_STREAMS` of them. Raises Unavailable,
        OutcomeUnknown, CorruptData."""
        states: list[tuple[str, int, bytes]] = []
        names = [each for name in names for each in self._with_bodies(group, name)]
        for begin in range(0, len(names), LOADS_AT_ONCE):
            loads = (self._load(group, name) for name in names[begin : begin + LOADS_AT_ONCE])
            found = await asyncio.gather(*loads, return_exceptions=True)
            faults = [each for each in found if isinstance(each, BaseException)]
            if faults:
                raise faults[0]
            states += [each for each in found if isinstance(each, tuple)]
            if sum(len(state) for _, _, state in states) >= RECALL_ENTRY_BYTES:
                await self._log(group, states)
                states = []
        if states:
            await self._log(group, states)

    def _with_bodies(self, group: int, name: str) -> list[str]:
        """Return a stream behind the evicted one that has the bodies of its snapshots."""
        machine, companion = self._machines.get(group), companion_of(name)
        if machine is not None and companion in machine.directory.evicted:
            return [companion, name]
        return [name]

    async def _log(self, group: int, states: list[tuple[str, int, bytes]]) -> None:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._propose(group, Return(states, self._now_ms()), partial(settle, future))
        if (await future).code:
            raise Unavailable("evicted streams could not be rehydrated: the journal's disk is full")

    async def _load(self, group: int, name: str) -> tuple[str, int, bytes] | None:
        """Return an entry for `Return`; None when the stream is not evicted any more."""
        found = await self._read(group, name)
        return None if found is None else (name, found[0].uid, found[1])

    async def copy(self, group: int, name: str) -> Stream | None:
        """Return a readable copy of an evicted stream; None when it is not evicted any more. Raises
        Unavailable, CorruptData."""
        found = await self._read(group, name)
        if found is None:
            return None
        self.counters.copies += 1
        return found[2]

    async def _read(self, group: int, name: str) -> tuple[Stream, bytes, Stream] | None:
        """Return the in-memory part, the state bytes, and the stream built from both."""
        machine = self._machines.get(group)
        view = None if machine is None else evicted_view(machine, name)
        if machine is None or view is None:
            return None
        if self.states is None:
            raise Unavailable(
                "the stream is evicted to an object store, and this node has none configured "
                "(cold.backend)"
            )
        try:
            state = await self.states.state(slice_of(machine, view))
        except PackGone:
            if self._machines.get(group) is machine and evicted_view(machine, name) == view:
                raise CorruptData(
                    f"the state of the evicted stream {spelled_name(name)} is missing in the "
                    "object store"
                ) from None
            return None  # the stream was rehydrated, and its block released
        if self._machines.get(group) is not machine or evicted_view(machine, name) != view:
            return None
        return view, state, whole_of(view, state)

    def close(self) -> None:
        """Cancel all rehydrations."""
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _refusal(fault: PolynyaError) -> Unavailable:
    """Return the error for commands whose stream cannot be rehydrated."""
    if isinstance(fault, Unavailable):
        return fault
    log.error("an evicted stream could not be rehydrated", extra={"error": str(fault)})
    return Unavailable(f"{fault}; run 'polynya store verify'")
