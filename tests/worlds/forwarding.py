"""A core of node 1 with fakes for its replicas and for the other cores and nodes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from polling import wait_for

from polynya.replica.log import decode_command
from polynya.routing import messages
from polynya.routing.forwarding import Forwarding, ForwardingAppender
from polynya.routing.group_locations import BirthMap, CoreAddress, GroupLocations
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import Acknowledge
from polynya.stream.machine import Machine
from polynya.stream.registry import AnyCommand
from polynya.stream.replies import Code, Done, Reply

OK = Reply(Code.OK)


class _Local:
    """The local groups: `here` gets each proposal."""

    def __init__(self, here: list[tuple[int, int, Any]]) -> None:
        self.machines: dict[int, Machine] = {}
        self._here = here

    def propose(self, group: int, command: Command, done: Done) -> None:
        self._here.append((group, number_of(command), done))

    def stamped(self, command: Command) -> Command:
        return command


class World:
    """Core 0 of the two of node 1; groups 0, 2, 4 are its own. `asked`: (place, number of the
    message, how to answer)."""

    def __init__(self) -> None:
        self.led: set[int] = set()
        self.leaders: dict[int, int] = {}
        self.gone: set[int] = set()
        self.others = [1]
        self.protocols = 3
        self._passed: list[tuple[int, int, Any]] = []
        self.here: list[tuple[int, int, Any]] = []
        self.asked: list[tuple[int, int, Any]] = []
        self.announced: list[dict[int, int]] = []
        self.announced_epochs: list[dict[int, int]] = []
        self.epochs: dict[int, int] = {}
        self.handlers: dict[int, Any] = {}
        self.local = _Local(self.here)
        self.forwarding = Forwarding(
            CoreAddress(1, 0, 2, 4),
            self,
            self,
            self.local,  # type: ignore[arg-type]
            GroupLocations(1, BirthMap((1, 2, 3)), lambda node: node not in self.gone),
        )

    def leader_of(self, group: int) -> int:
        return self.leaders.get(group, 0)

    def epoch(self, group: int) -> int:
        return self.epochs.get(group, 0)

    def fit(self, group: int) -> bool:
        return group % 2 == 0

    def lead(self, group: int, node: int) -> None:
        """Report a new leader by the replica here."""
        self.leaders[group] = node
        self.led.add(group) if node == 1 else self.led.discard(group)
        self.forwarding.led(group)

    def hear(self, **leaders: int) -> None:
        """Report new leaders by the sibling core."""
        self.handlers[messages.LEADERS](
            messages.encode(
                {int(group[1:]): (node, self.epoch(0)) for group, node in leaders.items()}
            ),
            None,
            1,
        )

    def on(self, kind: int, handler: Any) -> None:
        self.handlers[kind] = handler

    def send(self, core: int, kind: int, body: bytes) -> bool:
        assert (core, kind) == (1, messages.LEADERS)
        decoded = messages_decode(body)
        self.announced.append({int(group): node for group, (node, _) in decoded.items()})
        self.announced_epochs.append({int(group): epoch for group, (_, epoch) in decoded.items()})
        return True

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None:
        if kind == messages.PASS_ON:
            kind, group = struct.unpack_from("<HH", body)
            self.call_nowait(core, kind, body[4:], done)
            self._passed.append((kind, group, self.asked[-1][1]))
            return
        if kind == messages.PROPOSE_ALL:
            rest = msgspec.msgpack.decode(body[2:], type=list[AnyCommand])
            self.asked.append((core, [number_of(command) for command in rest], done))
            return
        assert kind == messages.PROPOSE
        self.asked.append((core, number_of(decode_command(body[2:])), done))

    def cores_of(self, node: int) -> int:
        return 2

    def protocol(self, core: int) -> int:
        return self.protocols

    def passed(self) -> list[tuple[int, int, Any]]:
        """Return the forwarded requests: kind, group, numbers."""
        return self._passed

    def answer_all(self, index: int, replies: list[Reply]) -> None:
        self.asked[index][2](messages.encode([replies, {}]))

    def append(self, group: int, number: int) -> list[Any]:
        answers: list[Any] = []
        self.forwarding.propose(group, Append(str(number), 1, "", None), answers.append)
        return answers

    def appender(self, group: int) -> tuple[list[tuple[int, Any]], Callable[[int], list[Any]]]:
        """Return the list of direct appends as (number, done), and a function that appends a
        number."""
        straight: list[tuple[int, Any]] = []
        to = ForwardingAppender(
            self.forwarding,
            group,
            lambda command, done: straight.append((number_of(command), done)),
        )

        def append(number: int) -> list[Any]:
            answers: list[Any] = []
            to.append(Append(str(number), 1, "", None), answers.append)
            return answers

        return straight, append

    def propose(self, group: int, number: int) -> list[Any]:
        answers: list[Any] = []
        self.forwarding.propose(group, Acknowledge(number), answers.append)
        return answers

    async def prove(self, group: int) -> None:
        """Let the group's leader accept an append, which leaves no trace in `asked`."""
        answers = self.append(group, 99)
        await wait_for(lambda: self.asked)
        self.asked.pop()[2](messages.encode(OK))
        assert answers == [OK]

    def sends(self) -> list[tuple[int, int]]:
        return [(core, number) for core, number, _ in self.asked]


def number_of(command: Command) -> int:
    assert isinstance(command, Acknowledge | Append)
    return command.message if isinstance(command, Acknowledge) else int(command.name)


def messages_decode(body: bytes) -> Any:
    return msgspec.msgpack.decode(body, strict=False)


def story(work: Callable[[World], Any]) -> None:
    async def run() -> None:
        world = World()
        try:
            await work(world)
        finally:
            world.forwarding.close()

    asyncio.run(run())


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
