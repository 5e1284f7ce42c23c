"""Evicted streams come back: whoever writes to one waits until its state was read and returned through the log; whoever reads gets a copy.

Commands that wait for the same stream go on in the order in which they came. What comes while an eviction is on its way to the log waits until it
is decided: so no command for one stream ever finds it gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from msgspec import structs

from polynya.base.errors import CorruptData, OutcomeUnknown, PolynyaError, Unavailable
from polynya.base.futures import settle
from polynya.base.limits import RECALL_BYTES_MAX, RECALL_ENTRY_BYTES, RECALL_STREAMS, RECALL_STREAMS_MAX
from polynya.base.names import spelled_name
from polynya.cold import PackGone
from polynya.service.streams.dependencies import StateReader
from polynya.stream.commands import Append, ClaimRanges, Command, Create, Evict, LinkSubscription, Return, Trim
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.rules.eviction import ghost_of, needed_by, slice_of, whole_of
from polynya.stream.state.model import Stream

log = logging.getLogger("polynya.service")

Propose = Callable[[int, Command, Done], None]
WAITING_COST = 512  # bytes that a waiting command is taken for beside its payload
LOADS_AT_ONCE = 16


class RehydrationCounters(msgspec.Struct):
    """What metrics show; only growing."""

    returned: int = 0  # streams, by whichever node's request
    copies: int = 0  # made for reads
    refused: int = 0  # requests that could not wait, or did so in vain


class _Queue:
    """Commands that wait for one stream. `coming`: it is being brought back for them, by one task; else an eviction is about to be decided."""

    __slots__ = ("coming", "commands", "size")

    def __init__(self) -> None:
        self.coming = False
        self.commands: list[tuple[Command, Done]] = []
        self.size = 0


class Rehydration:
    """Of one core. `propose` is the log's door; `again` takes a command that has waited, as if it came now."""

    def __init__(self, machines: dict[int, Machine], propose: Propose, again: Propose, now_ms: Callable[[], int]) -> None:
        self.counters = RehydrationCounters()
        self.states: StateReader | None = None
        self.recent: dict[int, int] = {}  # uid -> log time at which it came back; the evictor forgets them
        self.racing: dict[str, int] = {}  # names of streams -> evictions on their way to the log
        self._machines = machines
        self._propose = propose
        self._again = again
        self._now_ms = now_ms
        self._queues: dict[str, _Queue] = {}
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # --- commands --------------------------------------------------------------------------------------------------------------

    def before(self, group: int, machine: Machine, command: Command, done: Done) -> Done | None:
        """Who is to be answered when the command is proposed now; None when it waits."""
        if isinstance(command, Evict):
            return self._racing_with(group, machine, command, done)
        raced = [name for name in _named(command) if name in self.racing] if self.racing else []
        if raced:
            self.hold(group, raced[0], command, done)
            return None
        if isinstance(command, LinkSubscription):
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
        """The command goes on when the stream is back, or stays. It is evicted, or about to be."""
        batch = command.batch if isinstance(command, Append | Create) else None
        size = WAITING_COST + (0 if batch is None else len(batch.payload))
        if self._waiting_bytes + size > RECALL_BYTES_MAX:
            self.counters.refused += 1
            done(Unavailable("too many requests wait for streams that come back from the object store; retry"))
            return
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
            if name not in self.racing:
                self._bring_one(group, name)
        queue.commands.append((command, done))
        queue.size += size
        self._waiting_bytes += size

    def only_present(self, machine: Machine, command: Evict) -> Evict:
        """An eviction as it may be logged now: of a stream that is evicted already it would find, behind a return that is on its way, one that nobody
        knows to be about to go."""
        by_uid = machine.by_uid
        if all(slot[0] in by_uid for slot in command.slots):
            return command
        return structs.replace(command, slots=[slot if slot[0] in by_uid else (0, *slot[1:]) for slot in command.slots])

    def note(self, command: Return, reply: Reply) -> None:
        """An applied `Return`."""
        now_ms = self._now_ms()
        for at in reply.detail or ():
            self.recent[command.states[at][1]] = now_ms
            self.counters.returned += 1

    def _racing_with(self, group: int, machine: Machine, command: Evict, done: Done) -> Done:
        names = [stream.name for uid, *_ in command.slots if (stream := machine.by_uid.get(uid)) is not None]
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
        """The stream has gone, or it stays."""
        queue = self._queues.get(name)
        if queue is not None and not queue.coming:  # else it went while it was brought back, which finds it so
            self._arrived(group, name, Reply(Code.OK))

    def _watching(self, group: int, command: Command, done: Done) -> Done:
        """For what may find other streams gone than it did now."""

        def answered(reply: Reply | BaseException) -> None:
            if isinstance(reply, Reply) and reply.code == Code.EVICTED:
                self._again(group, command, done)
            else:
                done(reply)

        return answered

    # --- coming back -----------------------------------------------------------------------------------------------------------

    def _bring_one(self, group: int, name: str) -> None:
        self._queues[name].coming = True
        self._spawn(self._one(group, name))

    async def _one(self, group: int, name: str) -> None:
        """For those who wait for one stream."""
        try:
            state = await self._load(group, name)
        except PolynyaError as fault:
            self._arrived(group, name, _refusal(fault))
            return
        if state is None:  # others have brought it back, or the group has left
            self._arrived(group, name, Reply(Code.OK))
        else:
            self._propose(group, Return([state], self._now_ms()), partial(self._arrived, group, name))

    def _arrived(self, group: int, name: str, outcome: Reply | BaseException) -> None:
        """The stream is back, stays, or cannot come; or it has gone, perhaps again."""
        arrived, machine = isinstance(outcome, Reply) and outcome.code == Code.OK, self._machines.get(group)
        if arrived and machine is not None and name in machine.evicted:
            self._bring_one(group, name)
            return
        queue = self._queues.pop(name)
        self._waiting_bytes -= queue.size
        if arrived:
            for command, done in queue.commands:
                self._again(group, command, done)
            return
        if isinstance(outcome, OutcomeUnknown):  # of the return: those who wait were not proposed
            outcome = Unavailable(f"the stream could not be brought back: {outcome}; retry")
        self.counters.refused += len(queue.commands)
        for _, done in queue.commands:
            done(outcome)

    async def _after_many(self, group: int, names: list[str], command: Command, done: Done) -> None:
        """A command that concerns many streams. What can do with some of them goes on at once then."""
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
        """Back into memory, at most `RECALL_STREAMS` of them. Raises Unavailable, OutcomeUnknown, CorruptData."""
        states: list[tuple[str, int, bytes]] = []
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

    async def _log(self, group: int, states: list[tuple[str, int, bytes]]) -> None:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._propose(group, Return(states, self._now_ms()), partial(settle, future))
        if (await future).code:
            raise Unavailable("streams could not be brought back: the disk has no room")

    async def _load(self, group: int, name: str) -> tuple[str, int, bytes] | None:
        """An entry of `Return`; None when the stream is not evicted any more."""
        found = await self._read(group, name)
        return None if found is None else (name, found[0].uid, found[1])

    async def copy(self, group: int, name: str) -> Stream | None:
        """What the evicted stream would be, to be read from at once; None when it is not evicted any more. Raises Unavailable, CorruptData."""
        found = await self._read(group, name)
        if found is None:
            return None
        self.counters.copies += 1
        return found[2]

    async def _read(self, group: int, name: str) -> tuple[Stream, bytes, Stream] | None:
        """What is known, the state, and both as one."""
        machine = self._machines.get(group)
        ghost = None if machine is None else ghost_of(machine, name)
        if machine is None or ghost is None:
            return None
        if self.states is None:
            raise Unavailable("the state of the stream is in an object store, and this node has none (cold.backend)")
        try:
            state = await self.states.state(slice_of(machine, ghost))
        except PackGone:
            if self._machines.get(group) is machine and ghost_of(machine, name) == ghost:
                raise CorruptData(f"the state of the stream {spelled_name(name)} is gone from the object store") from None
            return None  # the stream was brought back, and its block let go
        if self._machines.get(group) is not machine or ghost_of(machine, name) != ghost:
            return None
        return ghost, state, whole_of(ghost, state)

    def close(self) -> None:
        """Nobody waits any more."""
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _named(command: Command) -> Sequence[str]:
    """The streams that a command names, if it is one that names streams."""
    if isinstance(command, Trim):
        return command.names
    name = getattr(command, "name", None)
    return () if name is None else (name,)


def _refusal(fault: PolynyaError) -> Unavailable:
    """What those are told who need a stream that cannot be brought back."""
    if isinstance(fault, Unavailable):
        return fault
    log.error("an evicted stream cannot come back", extra={"error": str(fault)})
    return Unavailable(f"{fault}; look at 'polynya store verify'")
