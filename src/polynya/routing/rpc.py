"""Requests to other cores, of this node and of others, and the kinds that this core serves. A request
goes to a core, to the core that acts for a group, to a replica, or to replicas of many groups."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.local.dependencies import LocalMachines
from polynya.local.local import LocalGroups
from polynya.routing import messages, requests
from polynya.routing.directory import Directory, Leaders, SoleDirectory
from polynya.routing.in_flight import LOOK_SECONDS, PATIENCE_SECONDS
from polynya.routing.requests import Answer, Received
from polynya.routing.send import SoleTargets, Targets
from polynya.routing.tails import RemoteTail, TailPush, TailTransport
from polynya.stream.command import Command
from polynya.stream.replies import Reply

HERE = -1
Result = TypeVar("Result")


class CoreTransport(TailTransport, Protocol):
    """Messages between the cores of a node; see `polynya.transport`."""

    def call_nowait(self, core: int, kind: int, body: bytes, done: Answer) -> None: ...

    def protocol(self, core: int) -> int: ...

    def on(self, kind: int, handler: Callable[[bytes, Answer, int], None]) -> None: ...


class NoTransport:
    """The transport of a node with one core, which gets no requests."""

    def on(self, kind: int, handler: Callable[[bytes, Answer, int], None]) -> None:
        """Do nothing: no request comes."""

    def on_stream(self, kind: int, handler: Callable[[bytes, TailPush, int], None]) -> None:
        """Do nothing: no request comes."""

    def call_nowait(self, core: int, kind: int, body: bytes, done: Answer) -> None:
        raise AssertionError(f"this node has one core; a request was for core {core}")

    def subscribe(
        self,
        core: int,
        kind: int,
        body: bytes,
        on_item: Callable[[bytes], None],
        on_end: Callable[[BaseException | None], None],
    ) -> RemoteTail:
        raise AssertionError(f"this node has one core; a subscription was for core {core}")

    def protocol(self, core: int) -> int:
        return 0


class CoreService(Protocol):
    """The service of a core, for rooms whose work belongs to groups: the groups here, the leaders
    of all, the requests to other cores, and commands to a group's log."""

    @property
    def local(self) -> LocalMachines: ...

    @property
    def directory(self) -> Leaders: ...

    @property
    def rpc(self) -> Rpc: ...

    @property
    def groups(self) -> int:
        """The number of user groups."""
        ...

    def now_ms(self) -> int: ...

    async def call(self, group: int, command: Command) -> Reply: ...


class Rpc:
    """The requests of core `core` of a node with `cores` cores.

    Reads change nothing, so one that failed is retried on the next replica. A `handle` answers on
    this core, and is served under `kind` on the others."""

    def __init__(
        self,
        local: LocalGroups,
        directory: Directory | SoleDirectory,
        targets: Targets | SoleTargets,
        transport: CoreTransport,
        received: Received,
        *,
        core: int,
        cores: int,
    ) -> None:
        self.core = core
        self.payload: defaultdict[int, int] = defaultdict(int)  # bytes read by each other core
        self.home_of = targets.home
        self._cores = cores
        self._local, self._directory, self._targets = local, directory, targets
        self._transport, self._received = transport, received

    # --- cores ------------------------------------------------------------------------------------

    def others(self) -> list[int]:
        """Return the other cores of this node, and those of the other reachable nodes."""
        own = (core for core in range(self._cores) if core != self.core)
        return [*own, *self._targets.other_nodes()]

    async def ask(
        self, core_id: int, kind: int, question: Any, group: int = 0, *, changes: bool = False
    ) -> Any:
        """Send a request to a core, also of another node (see `home_of`), and return the answer.
        `group`: with a relay, the group whose leader gets it. `changes`: the request has an effect,
        so a lost response raises OutcomeUnknown."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(body: bytes | BaseException) -> None:
            if span is not None:
                requests.end(span, body)
            if isinstance(body, OutcomeUnknown) and not changes:
                # the request has no effect, so a retry is safe
                body = Unavailable(f"{body}; retry")
            settle(future, body if isinstance(body, BaseException) else messages.decode(kind, body))

        body, span = messages.encode(question), requests.span_of("ask", core_id, group)
        requests.ask(self._transport, core_id, group, kind, body, answered, span)
        return await future

    def serve(
        self, kind: int, shape: Any, answer: Any, handle: Callable[[Any], Awaitable[Any]]
    ) -> None:
        """Serve requests of this kind from other cores: `handle` gets a `shape` and returns an
        `answer`. The rooms define their own kinds and serve them on every core."""
        messages.DECODERS[kind] = msgspec.msgpack.Decoder(answer)
        self.register(kind, shape, handle)

    def register(self, kind: int, shape: Any, handle: Callable[[Any], Awaitable[Any]]) -> None:
        """Serve requests of a kind whose answer `messages` knows."""
        decoder = msgspec.msgpack.Decoder(shape)
        running: set[asyncio.Task[None]] = set()

        async def run(body: bytes, reply: Answer, peer: int) -> None:
            try:
                found = await handle(decoder.decode(body))
                if size := messages.payload_of(found):
                    self.payload[peer] += size
                reply(messages.encode(found))
            except Exception as fault:  # the calling core raises it again
                reply(fault)

        def handler(body: bytes, reply: Answer, peer: int) -> None:
            task = asyncio.get_running_loop().create_task(run(bytes(body), reply, peer))
            running.add(task)
            task.add_done_callback(running.discard)

        self._received.on(kind, handler)

    # --- the core that acts for a group -----------------------------------------------------------

    def is_home(self, group: int) -> bool:
        """Report whether this core acts for a group. Raise NotLeader while the group has no
        leader, as `home_of` does."""
        return self.home_of(group) == self.core

    async def at_home(
        self,
        group: int,
        kind: int,
        question: Any,
        handle: Callable[[Any], Awaitable[Any]],
        *,
        changes: bool = False,
    ) -> Any:
        """Return the response of the core that acts for a group: from `handle` if that is this
        core. Wait for an election. `handle` may raise NotLeader only before it has done anything.
        `changes`: the request has an effect, so a lost response raises OutcomeUnknown."""
        patience = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            core_id = HERE
            try:
                core_id = self.home_of(group, through=True)
                return await (
                    handle(question)
                    if core_id == self.core
                    else self.ask(core_id, kind, question, group, changes=changes)
                )
            except NotLeader as fault:
                if core_id >= 0:
                    self._targets.learn(group, core_id, fault.node)
                if asyncio.get_running_loop().time() > patience:
                    raise
                await asyncio.sleep(LOOK_SECONDS)

    async def at_own_home(
        self, group: int, kind: int, question: Any, handle: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """Return the response of the core of this node that acts for a group, as `at_home` does for
        a request with an effect. Raise NotLeader at once if another node does."""
        core_id = self.home_of(group)
        if core_id >= self._cores:
            raise NotLeader(0)
        return await (
            handle(question)
            if core_id == self.core
            else self.ask(core_id, kind, question, changes=True)
        )

    # --- replicas ---------------------------------------------------------------------------------

    async def at_replica(  # noqa: PLR0913
        self,
        group: int,
        kind: int,
        question: Any,
        handle: Callable[[Any], Awaitable[Any]],
        *,
        local: bool = False,
    ) -> Any:
        """Return the response of a replica: from `handle` if this core hosts one. `local`: prefer
        this node's replica, even a stale one."""
        return await self.from_replica(
            group,
            lambda: handle(question),
            lambda core_id: self.ask(core_id, kind, question),
            local=local,
        )

    async def of_groups(  # noqa: PLR0913
        self,
        groups: Iterable[int],
        kind: int,
        question: Callable[[list[int]], Any],
        handle: Callable[[Any], Awaitable[Any]],
        *,
        local: bool = False,
        missing: list[int] | None = None,
    ) -> list[Any]:
        """Return the results of a request over many groups, in parts; each group is in one part.
        `handle` serves groups with a replica on this core, other cores the rest. Raise Unavailable
        when no replica of a group responds; with `missing`, append such groups to it instead."""
        candidates = {group: self._replicas_of(group, local=local) for group in groups}
        answers: list[Any] = []
        while candidates:
            shares: dict[int, list[int]] = {}
            for group, core_ids in candidates.items():
                if core_ids:
                    shares.setdefault(core_ids[0], []).append(group)
                elif missing is None:
                    raise Unavailable(f"no replica of group {group} responded; retry")
                else:
                    missing.append(group)
            candidates = {group: core_ids for group, core_ids in candidates.items() if core_ids}
            asked = [
                handle(question(some))
                if core_id == HERE
                else self.ask(core_id, kind, question(some))
                for core_id, some in shares.items()
            ]
            for some, answer in zip(
                shares.values(), await asyncio.gather(*asked, return_exceptions=True), strict=True
            ):
                if isinstance(answer, Unavailable) and self._targets.has_replicas:
                    candidates |= {group: candidates[group][1:] for group in some}
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                answers.append(answer)
                for group in some:
                    del candidates[group]
        return answers

    async def from_replica(
        self,
        group: int,
        here: Callable[[], Awaitable[Result]],
        there: Callable[[int], Awaitable[Result]],
        *,
        local: bool = False,
    ) -> Result:
        """Return the result of the first replica that responds. Raise the last replica's error, or
        Unavailable when none is found within the timeout. `local`: prefer this node's replica, even
        a stale one."""
        loop = asyncio.get_running_loop()
        begin, asked, fault = (
            loop.time(),
            set[int](),
            Unavailable("no node with a replica of the group is reachable; retry"),
        )
        # the last call may take as long again
        while loop.time() - begin <= PATIENCE_SECONDS + LOOK_SECONDS:
            core_ids = self._replicas_of(group, local=local)
            core_id = next((each for each in core_ids if each not in asked), None)
            if core_id is None and asked:
                break
            if core_id is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            asked.add(core_id)
            try:
                return await (here() if core_id == HERE else there(core_id))
            except Unavailable as found:
                fault = found
        raise fault

    def _replicas_of(self, group: int, *, local: bool) -> list[int]:
        """Return the cores that may serve reads of the group, best first. This core is first unless
        only other nodes reach the leader."""
        here = self._local.fit(group) and self._directory.hosts(group)
        others = self._targets.to_read(group, local=local)
        return (
            [HERE] * here + others
            if local or self._directory.follows(group)
            else others + [HERE] * here
        )
