"""Proposals of one core: to a group here, to another core of this node, or over the forwarding to
another node; and those of other cores for groups here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from polynya.base.errors import NotLeader
from polynya.base.futures import settle
from polynya.base.histogram import Histogram
from polynya.base.names import group_of
from polynya.base.spans import Tracer
from polynya.local.api import AppendTo
from polynya.local.appends import Appender
from polynya.local.local import LocalGroups
from polynya.replica.log import check_proposal, decode_command, encode_command
from polynya.routing import messages
from polynya.routing.bundles import AppendBundle, Bundles, handler_of
from polynya.routing.directory import Leaders, SoleDirectory
from polynya.routing.diskless import DisklessRoutes, DisklessWriter
from polynya.routing.requests import Received
from polynya.routing.rpc import CoreTransport
from polynya.routing.send import SoleTargets
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.replies import Code, Done, Reply
from polynya.wal import DiskFull

_NAMES_MAX = 65_536
Propose = Callable[[int, Command, Done], None]
_APPENDS = (Append, Produce)  # `Append | Produce` would be built at each check


async def reply_to(propose: Callable[[Done], object]) -> Reply:
    """Propose a command by a call that gets its `done`, and wait for the reply. Raises the fault
    that `done` gets instead."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    propose(partial(settle, future))
    return await future


class StreamGroups:
    """The `count` groups of streams, as one core computes them. `known` is the cache: a hot path
    looks there before it calls `of`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """Return the group of a stream."""
        group = self.known.get(name)
        if group is None:
            if len(self.known) >= _NAMES_MAX:
                self.known.clear()
            group = self.known[name] = group_of(name, self.count)
        return group


class Router(Protocol):
    """The routes of proposals to the leaders of their groups: `polynya.routing.forwarding`, or
    outside a cluster `SoleRouter`."""

    diskless: DisklessRoutes

    @property
    def forward_seconds(self) -> Histogram:
        """The time of requests to other cores that lead a group."""
        ...

    def append(self, group: int, command: Append | Produce, done: Done) -> None:
        """Propose an append, or hand it to the writer of diskless streams."""
        ...

    def appender(self, group: int) -> AppendTo:
        """Return the bound appender of a stream of a group."""
        ...

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose as `LocalGroups.propose` does, wherever the leader is."""
        ...


class SoleRouter:
    """The router of core `core` of a node with `cores` cores, outside a cluster."""

    def __init__(
        self, local: LocalGroups, transport: CoreTransport, *, core: int, cores: int
    ) -> None:
        self.directory, self.targets = SoleDirectory(local.machines), SoleTargets(core, cores)
        self.diskless = DisklessRoutes(self._propose_waited)
        self._local = local
        self._core, self._cores = core, cores
        self._bundles = Bundles(transport, self._on_bundle_result)

    @property
    def forward_seconds(self) -> Histogram:
        """The time of requests to other cores of this node."""
        return self._bundles.seconds

    def came(self, group: int, sender: int, count: int) -> None:
        """Do nothing: outside a cluster no leader follows the writers."""

    def appender(self, group: int) -> AppendTo:
        """Return the bound appender of a stream of a group."""
        if group % self._cores != self._core:
            return partial(self.append, group)
        return Appender(self._local.appends, group, self.diskless).append

    def append(self, group: int, command: Append | Produce, done: Done) -> None:
        """Propose an append, or hand it to the writer of diskless streams."""
        if command.name in self.diskless.names:
            self.diskless.append(group, command, done)
        elif group % self._cores == self._core:
            done = partial(self.diskless.answered, group, command, done)
            self._local.appends.propose(group, command, done)
        else:
            self._propose_at(group, command, done)

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose as `LocalGroups.propose` does, on the core that hosts the group."""
        if group % self._cores != self._core:
            self._propose_at(group, command, done)
            return
        if isinstance(command, _APPENDS):
            done = partial(self.diskless.answered, group, command, done)
        self._local.propose(group, command, done)

    def _propose_waited(self, group: int, command: Command, done: Done) -> None:
        """Propose an append that has waited: log time never goes back."""
        self.propose(group, self._local.stamped(command), done)

    def _propose_at(self, group: int, command: Command, done: Done) -> None:
        """Propose to another core of this node, which hosts the group."""
        self._bundles.propose(group % self._cores, group, command, encode_command(command), done)

    def _on_bundle_result(
        self, bundle: AppendBundle, outcomes: list[Reply | BaseException]
    ) -> None:
        """Hand out the outcomes of appends that another core of this node judged."""
        for command, done, outcome in zip(bundle.commands, bundle.dones, outcomes, strict=True):
            self.diskless.answered(bundle.group, command, done, outcome)


class Proposals:
    """The proposals of one core: by the name of a stream, by group, or as a step of a larger
    operation."""

    def __init__(self, router: Router, groups: StreamGroups) -> None:
        self.diskless = router.diskless
        # expect appends of a stream that is diskless; if it is not, they only take longer
        self.expect_diskless = self.diskless.expect
        self.forward_seconds = router.forward_seconds
        self.tracer: Tracer | None = None  # of requests that other cores trace
        self.appender = router.appender  # the bound appender of a stream of a group
        self.propose_to = router.propose  # by group number; the command may name no stream
        self._append = router.append
        self._group_of = groups.of

    def take_diskless(self, writer: DisklessWriter) -> None:
        """Send the appends of diskless streams to this core's writer."""
        self.diskless.writer = writer

    def expects_diskless(self, name: str) -> bool:
        """Report whether this core sends appends of a stream to its writer."""
        return name in self.diskless.names

    def propose(self, name: str, command: Command, done: Done) -> None:
        """Propose a command of this stream; see `StreamHandle.propose`."""
        group = self._group_of(name)
        if isinstance(command, _APPENDS):
            self._append(group, command, done)
        else:
            self.propose_to(group, command, done)

    async def call(self, group: int, command: Command, propose: Propose | None = None) -> Reply:
        """Propose a command as one step of a larger operation. Raise the fault that `done` would
        receive, and DiskFull, so that a failed step is not mistaken for a completed one. `propose`:
        the way to the log; by default to the leader, wherever it is."""
        reply = await reply_to(partial(propose or self.propose_to, group, command))
        if reply.code == Code.DISK_FULL:
            raise DiskFull("the journal's disk is full; nothing was applied")
        return reply


class ReceivedProposals:
    """The proposals of other cores, for groups that this core leads."""

    def __init__(
        self,
        local: LocalGroups,
        directory: Leaders,
        received: Received,
        came: Callable[[int, int, int], None],
    ) -> None:
        """Take proposals. `came` counts the appends of a group by the core that sent them."""
        self._local = local
        self._directory = directory
        self._came = came
        received.on(messages.PROPOSE, self._propose)
        received.on(
            messages.PROPOSE_ALL,
            handler_of(directory.leads, directory.leader_here, local.propose, local.now_ms, came),
        )

    def _propose(
        self, body: bytes, reply: Callable[[bytes | BaseException], None], peer: int
    ) -> None:
        group = int.from_bytes(body[:2], "little")
        if not self._directory.leads(group):
            reply(NotLeader(self._directory.leader_here(group)))
            return

        self._came(group, peer, 1)

        def done(outcome: Reply | BaseException) -> None:
            reply(outcome if isinstance(outcome, BaseException) else messages.encode(outcome))

        command = self._local.stamped(decode_command(body[2:]))
        check_proposal(command)  # the engine trusts appends
        self._local.propose(group, command, done)
