"""Forward proposals to the leader of their group: on this core, on another core of this node, or on
another node.

A proposal that was rejected because the group has no leader, or a different one, is retried. The
retry timeout exceeds an election. A proposal that may have been accepted is never sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from polynya.base.errors import NotLeader
from polynya.base.histogram import Histogram
from polynya.engine.append_origins import AppendOrigins
from polynya.local.api import AppendTo
from polynya.local.appends import Appender
from polynya.local.local import LocalGroups
from polynya.replica.log import encode_command
from polynya.routing import messages
from polynya.routing.bundles import AppendBundle, Bundles, BundleTransport
from polynya.routing.directory import Directory, LeaderExchange, LeaderRpc, LocalReplicas
from polynya.routing.diskless import DisklessRoutes
from polynya.routing.group_locations import CoreAddress, GroupLocations
from polynya.routing.in_flight import Attempt, InFlight, WaitingAttempts
from polynya.routing.requests import Relay
from polynya.routing.send import THROUGH, Target, Targets, TargetTransport
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import APPEND_BASES, Append, Produce
from polynya.stream.replies import Code, Done, Reply

_WRONG_PROFILE = int(Code.WRONG_PROFILE)


class ForwardingTransport(BundleTransport, LeaderRpc, TargetTransport, Protocol):
    """Messages to other cores: of this node by number, of other nodes by address. See
    `polynya.transport`."""


class Forwarding:
    """The proposal router of one core of a cluster. `local` proposes to the groups of this core.

    `directory` has the leaders that this core knows, `targets` chooses the core to send to. A leader
    that is unknown, or known but unreachable, is looked for with one attempt or bundle at a
    time."""

    def __init__(
        self,
        own: CoreAddress,
        replicas: LocalReplicas,
        transport: ForwardingTransport,
        local: LocalGroups,
        locations: GroupLocations,
    ) -> None:
        self._now = now = asyncio.get_running_loop().time
        self.own = own
        self.demand = AppendOrigins(own.node, own.groups)
        self.came = self.demand.came
        self.forwarded = 0
        self._local = local
        self.diskless = DisklessRoutes(self._propose_waited)
        self.directory = Directory(own, replicas, locations, now)
        self.targets = Targets(own, self.directory, transport)
        self._bundles = Bundles(transport, self._on_bundle_result)
        # by group: the bundle for its known leader in this pass of the loop
        self._open = self._bundles.open
        self._led = replicas.led
        self.attempts = WaitingAttempts(self._free_target, self._go)
        self._waiting = self.attempts.by_group
        self._in_flight = InFlight(now)
        self._flying = self._in_flight.counts  # group → attempts in flight
        # Groups led here of which no proposal is in flight or waits. Members are re-judged by
        # `propose`, and leave when the leader may change, or when an attempt sets out or waits.
        self.direct: set[int] = set()
        self.exchange = LeaderExchange(
            own,
            self.directory,
            transport,
            core_at=self.targets.core_at,
            suspect=self._in_flight.suspect,
            retry=self.attempts.retry,
        )
        self.relay = Relay(transport, self.targets.leader_at, replicas.leader_of)
        transport.on(messages.PASS_ON, self.relay.handle)

    def start(self) -> None:
        """Send the known leaders to the other cores of this node, now and from time to time."""
        self.exchange.start()

    def close(self) -> None:
        """Stop the timers, and reject the waiting attempts."""
        self.exchange.close()
        self.attempts.close()

    @property
    def payload(self) -> Mapping[int, int]:
        """The bytes of appends sent to each core of another node."""
        return self._bundles.payload

    @property
    def forward_seconds(self) -> Histogram:
        """The time of requests to other cores that lead a group."""
        return self._bundles.seconds

    # --- proposals --------------------------------------------------------------------------------

    def appender(self, group: int) -> AppendTo:
        """Return the bound appender of a stream of a group."""
        if group % self.own.cores != self.own.core:
            return partial(self.append, group)
        here = Appender(self._local.appends, group, self.diskless).append
        return ForwardingAppender(self, group, here).append

    def append(self, group: int, command: Append | Produce, done: Done) -> None:
        """Propose an append, or hand it to the writer of diskless streams."""
        if self.is_diskless(group, command.name):
            self.diskless.append(group, command, done)
        else:
            self.propose(group, command, done)

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose as `LocalGroups.propose` does, wherever the leader is. `done` gets OutcomeUnknown
        when the request or response is lost."""
        bundle = self._open.get(group)
        if bundle is not None and isinstance(command, APPEND_BASES) and group not in self._waiting:
            self.forwarded += 1
            self._bundles.add(bundle, command, encode_command(command), done)
            return
        if group not in self._led or self._flying.get(group) or group in self._waiting:
            self._send(self.attempts.new(group, command, done))
            return
        if bundle is None:
            self.direct.add(group)
        self.demand.here[group] += 1
        self._local.propose(group, command, partial(self.answered, group, command, done))

    def is_diskless(self, group: int, name: str) -> bool:
        """Report whether this core sends the appends to a stream to its writer. It learns from its
        replica that a stream is diskless, before the payload crosses to the leader in vain."""
        if name in self.diskless.names:
            return True
        machine = self._local.machines.get(group)
        if (
            machine is None
            or not machine.diskless.streams
            or group in self._led
            or group in self._waiting
        ):
            return False
        stream = machine.directory.streams.get(name)
        if (
            stream is None
            or stream.uid not in machine.diskless.streams
            or stream.uid in machine.diskless.changing
        ):
            return False
        self.diskless.expect(name, settles=bool(self._flying.get(group)))
        return True

    def answered(
        self, group: int, command: Command, done: Done, answer: Reply | BaseException
    ) -> None:
        """Handle the answer to a proposal to a group that this core led."""
        if type(answer) is Reply and answer.code != _WRONG_PROFILE:
            done(answer)
        elif type(answer) is NotLeader:
            self._send(self.attempts.new(group, command, done))
        else:
            self.diskless.answered(group, command, done, answer)

    # --- changes of the replicas of this core -----------------------------------------------------

    def led(self, group: int) -> None:
        """Handle a possible change of the leader or role of a local group."""
        self.direct.discard(group)
        if self.directory.replica_changed(group):
            self._in_flight.suspect(group)
            self.exchange.announce(group)
        self.attempts.notify(group)

    def gone(self, group: int) -> None:
        """Handle the removal of the group's replica from this core."""
        self.direct.discard(group)
        self._in_flight.suspect(group)
        self.directory.forget(group)
        self.exchange.announce(group)

    # --- attempts ---------------------------------------------------------------------------------

    def _send(self, attempt: Attempt) -> None:
        target = self._free_target(attempt)
        if target[0] < 0 or attempt.group in self._waiting:
            self._wait(attempt)
        else:
            self._go(attempt, target)

    def _free_target(self, attempt: Attempt) -> Target:
        """Return the target that an attempt can go to now; -1: it must wait."""
        group = attempt.group
        target, known = self.targets.candidate(group)
        is_local = target == self.own.core
        if not self._flying.get(group) or (
            known and self._in_flight.can_join(group, target, is_local=is_local)
        ):
            return target, known
        bundle = self._open.get(group) if isinstance(attempt.command, (Append, Produce)) else None
        # that bundle has not been sent yet
        joins = bundle is not None and bundle.target == target
        return target if joins else -1, known

    def _go(self, attempt: Attempt, to: Target) -> None:
        target, known = to
        group, command = attempt.group, attempt.command
        self.direct.discard(group)
        if target != self.own.core:
            self.forwarded += 1
            attempt.body = attempt.body or encode_command(command)
            if isinstance(command, (Append, Produce)):
                self._join(
                    attempt,
                    command,
                    self._bundles.bundle(target, group, grows=known or target >= THROUGH),
                )
                return
        self._in_flight.begin(group, target)

        def answered(answer: Reply | BaseException) -> None:
            self._in_flight.end(group)
            if type(answer) is NotLeader:
                self._again(attempt, target, answer)
            else:
                self._found(group, target, is_accepted=type(answer) is Reply)
                self.diskless.answered(group, command, attempt.done, answer)

        try:
            if target == self.own.core:
                self._local.propose(group, self._local.stamped(command), answered)
            else:
                self._bundles.propose(target, group, command, attempt.body, answered)
        except BaseException:  # it was never sent, and later attempts must not wait for it
            self._in_flight.end(group)
            raise

    def _join(self, attempt: Attempt, command: Append | Produce, bundle: AppendBundle) -> None:
        """Add an append to its group's bundle. A bundle counts as one attempt in flight."""
        if not bundle.dones:
            self._in_flight.begin(attempt.group, bundle.target)
            bundle.deadline = attempt.deadline
        bundle.number = max(bundle.number, attempt.number)
        bundle.tried[len(bundle.dones)] = attempt
        self._bundles.add(bundle, command, attempt.body, attempt.done)

    def _on_bundle_result(
        self, bundle: AppendBundle, outcomes: list[Reply | BaseException]
    ) -> None:
        group, target = bundle.group, bundle.target
        self._in_flight.end(group)
        refused = [
            (index, outcome) for index, outcome in enumerate(outcomes) if type(outcome) is NotLeader
        ]
        if len(refused) < len(outcomes):
            is_accepted = any(type(outcome) is Reply for outcome in outcomes)
            self._found(group, target, is_accepted=is_accepted)
        for index, fault in refused:
            # an append without an attempt joined the bundle later and comes after all others
            attempt = bundle.tried.get(index)
            more = (bundle.commands[index], bundle.bodies[index], bundle.dones[index])
            self._again(
                attempt or Attempt(bundle.number, group, *more, bundle.deadline), target, fault
            )
        # after the refused ones: an answered proposer may propose at once, and then comes after
        for done, command, outcome in zip(bundle.dones, bundle.commands, outcomes, strict=True):
            if type(outcome) is Reply and outcome.code != _WRONG_PROFILE:
                done(outcome)
            elif type(outcome) is not NotLeader:
                self.diskless.answered(group, command, done, outcome)

    def _again(self, attempt: Attempt, target: int, fault: NotLeader) -> None:
        """Retry an attempt whose target was not the leader."""
        self._in_flight.suspect(attempt.group)
        if self._now() >= attempt.deadline:
            attempt.done(fault)
            return
        learned = self.targets.learn(attempt.group, target, fault.node)
        self._wait(attempt)
        self.attempts.redirected(attempt, learned=learned)

    def _wait(self, attempt: Attempt) -> None:
        if self.attempts.add(attempt):
            self.direct.discard(attempt.group)

    def _found(self, group: int, target: int, *, is_accepted: bool) -> None:
        """Record that the target did not refuse a proposal, and so is the leader."""
        is_news = is_accepted and self._in_flight.accept(group, target)
        if self.targets.confirm(group, target) or is_news:
            self.attempts.notify(group)

    def _propose_waited(self, group: int, command: Command, done: Done) -> None:
        """Propose an append that has waited: log time never goes back."""
        self.propose(group, self._local.stamped(command), done)


class ForwardingAppender:
    """The bound appender of one stream of a group that this core may lead. While the group is
    `direct`, an append goes to `here`, the bound appender of the local stream."""

    __slots__ = ("_forwarding", "_group", "_here")

    def __init__(self, forwarding: Forwarding, group: int, here: AppendTo) -> None:
        self._forwarding = forwarding
        self._group = group
        self._here = here

    def append(self, command: Append | Produce, done: Done) -> None:
        """Propose an append to the stream."""
        forwarding, group = self._forwarding, self._group
        if group in forwarding.direct:
            forwarding.demand.here[group] += 1
            self._here(command, partial(forwarding.answered, group, command, done))
        else:
            forwarding.append(group, command, done)
