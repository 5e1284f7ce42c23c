"""The groups on this core: which state may serve, what is proposed to it, and what was applied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from msgspec import structs

from polynya.base import levels
from polynya.base.errors import NotLeader, Unavailable
from polynya.cold import FaultedStreams
from polynya.local.appends import Appends
from polynya.local.atomic_appends import AtomicAppends
from polynya.local.dependencies import Agreement, Proposer
from polynya.local.feeds import Feeds
from polynya.local.hooks import KEEPS_JUDGEMENTS, Hooks, after_applied, proposed
from polynya.local.hot_memory import HotMemory
from polynya.local.lifetimes.lifecycle import StreamLifecycle
from polynya.local.lifetimes.retention import TrimCounters
from polynya.local.lifetimes.ttl import Lifetimes
from polynya.local.local_streams import LocalStreams
from polynya.local.name_index import SortedNames, live_names
from polynya.local.profile_changes import ProfileChanges
from polynya.local.reads.local_reads import LocalReads
from polynya.local.rehydration import Rehydration
from polynya.local.segments import SEGMENT_LIMITS, SegmentWriter
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import APPEND_BASES, APPENDS
from polynya.stream.features.lifetimes.commands import (
    Create,
    CreateWithAttributes,
    Delete,
    Expire,
)
from polynya.stream.features.pages.commands import Evict
from polynya.stream.features.profiles.commands import SetProfile
from polynya.stream.machine import Machine
from polynya.stream.parts import SegmentLimits
from polynya.stream.replies import Code, Done, Reply


class LocalGroups:
    """The groups of one core. `machines` maps the number of each local group to its machine. `led`
    holds the groups that this core may propose for: all, or in a cluster (with an `agreement`)
    those it leads. Work that must happen once per cluster uses `led`.
    """

    def __init__(
        self,
        machines: dict[int, Machine],
        proposer: Proposer,
        now_ms: Callable[[], int],
        *,
        groups: int,
        hot_bytes_max: int,
        history: int,
        segment_limits: SegmentLimits = SEGMENT_LIMITS,
    ) -> None:
        self.machines = self.led = machines
        self.history = history
        self.agreement: Agreement | None = None
        self.feeds = Feeds()
        self.now_ms = now_ms
        self.profiles = ProfileChanges(self, proposer.propose)
        self.lifetimes = Lifetimes(machines, self.feeds, proposer.propose, now_ms)
        self.trims = TrimCounters()
        self._proposer = proposer
        self.rehydration = Rehydration(machines, proposer.propose, self.propose_again, now_ms)
        self.faulted = FaultedStreams(machines, self._changed)
        self.memory = HotMemory(machines, self.faulted, proposer, hot_bytes_max)
        self.segments = SegmentWriter(self, proposer.propose, segment_limits)
        self.lifecycle = StreamLifecycle(
            self, proposer.propose, self.lifetimes, self.memory, self.segments
        )
        self.appends = Appends(
            machines, proposer, self, self.memory, self.faulted, self.rehydration, self.segments
        )
        self._names = SortedNames(
            name for machine in machines.values() for name in live_names(machine)
        )
        self.streams = LocalStreams(self, self._names, groups=groups, history=history)
        self.reads = LocalReads(self, history=history)
        together = AtomicAppends(
            machines, proposer, self.lifecycle, self.profiles, self.faulted, self.memory, now_ms
        )
        self._hooks = Hooks(
            self, self.lifecycle, self.profiles, self.trims, self.rehydration, together
        )
        for machine in machines.values():
            machine.tails.watched = self.feeds.sinks

    # --- groups -----------------------------------------------------------------------------------

    def join(self, agreement: Agreement, led: dict[int, Machine]) -> None:
        """Join a cluster, in which the groups are replicated."""
        self.agreement, self.led = agreement, led
        self.lifetimes.spread()

    @property
    def level(self) -> int:
        """The feature level that all nodes support, as far as the groups here show: they are raised
        only then. A core without groups knows nothing, and leaves it to the leaders."""
        if self.agreement is None or not self.machines:
            return levels.LEVEL
        return max(machine.counters.level for machine in self.machines.values())

    def readable(self, group: int) -> bool:
        """Report whether the current local state may serve a linearizable read or refusal."""
        return self.agreement is None or self.agreement.readable(group)

    def fit(self, group: int) -> bool:
        """Report whether this core serves reads of the group."""
        return group in self.machines if self.agreement is None else self.agreement.fit(group)

    async def linearize(self, group: int) -> None:
        """Wait until `readable`. Raises Unavailable."""
        if self.agreement is not None:
            await self.agreement.linearize(group)

    async def prepare(self, group: int, *, local: bool) -> None:
        """Wait until this core may serve a read. `local`: any replica that has received its initial
        copy will do. Raises Unavailable."""
        if not local:
            await self.linearize(group)
        elif not self.fit(group):
            raise Unavailable(
                "this node has no readable replica of the group; retry, or use another node"
            )

    async def linearize_all(self, groups: Iterable[int]) -> None:
        """Wait until all of the groups are `readable`."""
        if self.agreement is not None:
            await asyncio.gather(*map(self.agreement.linearize, groups))

    def here(self, group: int) -> Machine:
        """Return the group's machine. Raises Unavailable when the group has left this node."""
        machine = self.machines.get(group)
        if machine is None:
            raise Unavailable("the group has moved to other nodes; retry")
        return machine

    def put(self, group: int, machine: Machine) -> None:
        """Add a group, or replace its state with that from another node. Live readers resume on the
        new state."""
        self.remove(group)
        self.machines[group] = machine
        machine.tails.watched = self.feeds.sinks
        for name in live_names(machine):
            self._names.add(name)
        self._changed()

    def remove(self, group: int) -> None:
        """Remove a group from this core."""
        self.faulted.forget(group)
        old = self.machines.pop(group, None)
        if old is None:
            return
        for name in live_names(old):
            self._names.discard(name)
        self.cut_readers(group)
        self.lifecycle.forget(group)
        self._changed()

    def cut_readers(self, group: int) -> None:
        """Disconnect the live readers of a group, so that they resume."""
        for uid in self.feeds.uids():
            if uid >> 48 == group:
                self.feeds.cut(uid)

    # --- proposals --------------------------------------------------------------------------------

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose to the log, unless committed state allows a definite refusal."""
        # stamped in this pass of the loop
        if isinstance(command, APPEND_BASES):
            self.appends.propose(group, command, done)
            return
        if group not in self.machines:  # the group left while the command waited
            done(NotLeader(0))
            return
        command = self.stamped(command)
        machine = self.machines[group]
        if machine.directory.evicted or self.rehydration.racing:
            ready = self.rehydration.before(group, machine, command, done)
            if ready is None:
                return
            done = ready
        propose = self._hooks.proposed.get(type(command), self._proposer.propose)
        propose(group, command, done)

    @proposed(Evict)
    def _evict(self, group: int, command: Evict, done: Done) -> None:
        self.appends.epoch += 1
        self._proposer.propose(group, *self.rehydration.racing_with(group, command, done))

    @proposed(SetProfile)
    def _set_profile(self, group: int, command: SetProfile, done: Done) -> None:
        self.appends.epoch += 1
        self.profiles.begin(group, command, done)

    def propose_again(self, group: int, command: Command, done: Done) -> None:
        """Propose a command that has waited: stamp it again, and check that the group is still
        local."""
        if group in self.machines:
            self.propose(group, self.stamped(command), done)
        else:
            done(NotLeader(0))

    def stamped(self, command: Command) -> Command:
        """Stamp the command with this core's log time, which never goes back. It may come from
        another core or have waited."""
        return (
            structs.replace(command, now_ms=self.now_ms())
            if "now_ms" in command.__struct_fields__
            else command
        )

    def applied(self, group: int, command: Command, reply: Reply) -> None:
        """Handle an applied command before its writer gets the reply. An append matters only where
        its stream has live readers."""
        kind = type(command)
        machine = self.machines.get(group)
        if machine is not None and machine.tails.effects:
            self.feeds.moved(machine.tails.take_effects(), known=self.readable(group))
        if kind in APPENDS:
            return
        if kind not in KEEPS_JUDGEMENTS:
            self.appends.epoch += 1
            if machine is not None and (machine.diskless.changing or self.profiles.changes):
                self.profiles.look(group)
        hook = self._hooks.applied.get(kind)
        if hook is not None:
            hook(group, command, reply)

    @after_applied(Create, CreateWithAttributes)
    def _created(self, group: int, command: Create, reply: Reply) -> None:
        if reply.code == Code.CREATED:
            self._names.add(command.name)

    @after_applied(Delete, Expire)
    def _ended(self, group: int, command: Delete | Expire, reply: Reply) -> None:
        if reply.code == Code.OK:
            self._names.discard(command.name)
        self.lifetimes.forget(reply.uid)

    @property
    def turns(self) -> int:
        """A number that grows with each turn that applied a command; unchanged means nothing to
        scan."""
        return self.memory.turns

    def _changed(self) -> None:
        """Handle a group that came or went, or a fault of a stream."""
        self.appends.epoch += 1
        self.memory.measure()

    def sweep(self) -> None:
        """Expire streams that no request has found, and go on with changes of profiles. Call this
        about once a second."""
        self.profiles.sweep()
        self.lifecycle.sweep()
