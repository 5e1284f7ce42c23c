"""Proposals of one core: to a group here, to another core of this node, or over the forwarding to
another node; and those of other cores for groups here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from polynya.base.errors import NotLeader
from polynya.base.futures import settle
from polynya.local.api import AppendTo
from polynya.local.appends import Appender
from polynya.local.local import LocalGroups
from polynya.replica.log import check_proposal, decode_command, encode_command
from polynya.routing import messages
from polynya.routing.bundles import AppendBundle, Bundles, handler_of
from polynya.routing.diskless import DisklessRoutes, DisklessWriter, RemoteAppender
from polynya.routing.forwarding import Forwarding
from polynya.routing.forwarding_appender import ForwardingAppender
from polynya.routing.leaders import Leaders
from polynya.routing.requests.core_requests import CoreTransport
from polynya.routing.stream_groups import StreamGroups
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.replies import Code, Done, Reply
from polynya.wal import DiskFull

_APPENDS = (Append, Produce)  # `Append | Produce` would be built at each check


class Proposals:
    """The proposals of core `core` of a node with `cores` cores. `transport` is None on a node with
    one core."""

    def __init__(
        self,
        local: LocalGroups,
        groups: StreamGroups,
        *,
        core: int,
        cores: int,
        transport: CoreTransport | None,
    ) -> None:
        self._local = local
        self._group_of = groups.of
        self._groups = groups.known
        self._core = core
        self._cores = cores
        self._transport = transport
        self._bundles: Bundles | None = None
        self._forwarding: Forwarding | None = None
        self.diskless = DisklessRoutes(self._propose_waited)
        # expect appends of a stream that is diskless; if it is not, they only take longer
        self.expect_diskless = self.diskless.expect

    def join(self, forwarding: Forwarding) -> None:
        """Join a cluster, in which other nodes may lead groups."""
        self._forwarding = forwarding

    def take_diskless(self, writer: DisklessWriter) -> None:
        """Send the appends of diskless streams to this core's writer."""
        self.diskless.writer = writer

    def expects_diskless(self, name: str) -> bool:
        """Report whether this core sends appends of a stream to its writer."""
        return name in self.diskless.names

    def appender(self, group: int) -> AppendTo:
        """Return the bound appender of a stream of a group; see `StreamHandle`."""
        forwarding = self._forwarding
        if group % self._cores == self._core:
            here = Appender(self._local.appends, group, self.diskless).append
            return (
                here if forwarding is None else ForwardingAppender(forwarding, group, here).append
            )
        there = self._propose_at if forwarding is None else forwarding.propose
        return RemoteAppender(self.diskless, group, there).append

    def propose(self, name: str, command: Command, done: Done) -> None:
        """Propose a command of this stream; see `polynya.service.api.Service`."""
        group = self._groups.get(name) or self._group_of(name)
        if isinstance(command, _APPENDS):
            self._append(group, command, done)
        else:
            self.propose_to(group, command, done)

    def propose_to(self, group: int, command: Command, done: Done) -> None:
        """Propose a command by group number; it may name no stream."""
        if self._forwarding is not None:
            self._forwarding.propose(group, command, done)
        elif group % self._cores != self._core:
            self._propose_at(group, command, done)
        else:
            if isinstance(command, _APPENDS):
                done = partial(self.diskless.answered, group, command, done)
            self._local.propose(group, command, done)

    async def call(self, group: int, command: Command) -> Reply:
        """Propose a command as one step of a larger operation. Raise the fault that `done` would
        receive, and DiskFull, so that a failed step is not mistaken for a completed one."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.propose_to(group, command, partial(settle, future))
        reply = await future
        if reply.code == Code.DISK_FULL:
            raise DiskFull("the journal's disk is full; nothing was applied")
        return reply

    def _append(self, group: int, command: Append | Produce, done: Done) -> None:
        """Propose an append for which its caller keeps no handle."""
        diskless, forwarding = self.diskless, self._forwarding
        if command.name in diskless.names or (
            forwarding is not None and forwarding.is_diskless(group, command.name)
        ):
            diskless.append(group, command, done)
        elif forwarding is None and group % self._cores == self._core:
            done = partial(diskless.answered, group, command, done)
            self._local.appends.propose(group, command, done)
        else:
            self.propose_to(group, command, done)

    def _propose_waited(self, group: int, command: Command, done: Done) -> None:
        """Propose an append that has waited: log time never goes back."""
        self.propose_to(group, self._local.stamped(command), done)

    def _propose_at(self, group: int, command: Command, done: Done) -> None:
        """Propose to the core of this node that hosts the group."""
        if self._bundles is None:
            assert self._transport is not None
            self._bundles = Bundles(self._transport, self._landed)
        self._bundles.propose(group % self._cores, group, command, encode_command(command), done)

    def _landed(self, bundle: AppendBundle, outcomes: list[Reply | BaseException]) -> None:
        """Hand out the outcomes of appends that another core of this node judged."""
        for command, done, outcome in zip(bundle.commands, bundle.dones, outcomes, strict=True):
            self.diskless.answered(bundle.group, command, done, outcome)


class ReceivedProposals:
    """The proposals of other cores, for groups that this core leads."""

    def __init__(self, local: LocalGroups, leaders: Leaders, transport: CoreTransport) -> None:
        self._local = local
        self._leaders = leaders
        # counts the appends of a group by the core that sent them
        self._came: Callable[[int, int, int], None] = _not_counted
        transport.on(messages.PROPOSE, self._propose)
        transport.on(
            messages.PROPOSE_ALL,
            handler_of(
                leaders.leads, leaders.leader_here, local.propose, local.now_ms, self._count
            ),
        )

    def join(self, forwarding: Forwarding) -> None:
        """Join a cluster, in which a group may follow those who write to it."""
        self._came = forwarding.demand.came

    def _count(self, group: int, sender: int, count: int) -> None:
        self._came(group, sender, count)

    def _propose(
        self, body: bytes, reply: Callable[[bytes | BaseException], None], peer: int
    ) -> None:
        group = int.from_bytes(body[:2], "little")
        if not self._leaders.leads(group):
            reply(NotLeader(self._leaders.leader_here(group)))
            return

        self._came(group, peer, 1)

        def done(outcome: Reply | BaseException) -> None:
            reply(outcome if isinstance(outcome, BaseException) else messages.encode(outcome))

        command = self._local.stamped(decode_command(body[2:]))
        check_proposal(command)  # the engine trusts appends
        self._local.propose(group, command, done)


def _not_counted(group: int, sender: int, count: int) -> None:
    """Do nothing: outside a cluster no leader follows the writers."""
