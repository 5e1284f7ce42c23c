"""What an append costs that another node leads, beside all else: from the asking service to the
leader's and back, no sockets. `python -m bench.forwarding`.

Frames and checksums are real. By how many appends one pass of the loop has for one group;
microseconds of CPU an append on both nodes together, best of many passes: one by one as a node of
protocol 1 gets them, and together.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from time import thread_time
from typing import Any

from bench.core import append_of
from polynya.base.errors import Unavailable
from polynya.replica.log import decode_command
from polynya.routing import messages
from polynya.routing.bundles import handler_of
from polynya.routing.diskless import DisklessRoutes
from polynya.routing.forwarding import Forwarding
from polynya.routing.group_locations import BirthMap, CoreAddress, GroupLocations
from polynya.stream.commands import Command
from polynya.stream.machine import Machine
from polynya.stream.replies import Done, Reply
from polynya.transport.link import FrameLink
from polynya.transport.peer import Peer
from polynya.transport.peer_listener import ConnectionSet, InboundConnection

PASSES = 400
ANSWER = Reply(0, 1 << 48 | 7, 12345, 3160320, False, 0, 9)


class Socket:
    """What one side writes, for the other to read."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.pieces += pieces

    def set_write_buffer_limits(self, **limits: int) -> None:
        """There are none."""

    def abort(self) -> None:
        raise AssertionError("a frame was damaged")

    def empty_into(self, link: FrameLink) -> None:
        data, self.pieces = b"".join(self.pieces), []
        link.data_received(data)


class _NoGroups:
    """The local groups of a core that leads none."""

    def __init__(self) -> None:
        self.machines: dict[int, Machine] = {}

    def propose(self, group: int, command: Command, done: Done) -> None:
        raise AssertionError("nothing is led here")

    def stamped(self, command: Command) -> Command:
        raise AssertionError("nothing is led here")


class World:
    def __init__(self, protocol: int) -> None:
        connections = ConnectionSet()
        connections.handlers[messages.PROPOSE] = self._alone
        connections.handlers[messages.PROPOSE_ALL] = handler_of(
            lambda group: True, lambda group: 0, self._propose, lambda: 1, lambda *came: None
        )
        self.proposed: list[Any] = []
        self.there = InboundConnection(connections, lambda *hello: 1, checked=True)
        self.there.core = 1
        self.asked, self.answered = Socket(), Socket()
        self.there.link.connection_made(self.answered)  # type: ignore[arg-type]
        self.peer = Peer("the leader", _never, call_seconds=60)
        self.here = FrameLink(lambda: None, lambda *frame: None, lambda: None, checked=True)
        self.here.connection_made(self.asked)  # type: ignore[arg-type]
        self.peer._begin(self.here)
        self._protocol = protocol
        self.others: list[int] = []
        self.led: set[int] = set()
        where = GroupLocations(1, BirthMap((1, 2)), lambda node: True)
        self.forwarding = Forwarding(
            CoreAddress(1, 0, 1, 1),
            self,
            self,
            _NoGroups(),
            diskless=DisklessRoutes(_NoGroups().propose),
            address=lambda node, core: node << 8 | core,
            group_locations=where,
        )
        self.forwarding.led(1)

    def leader_of(self, group: int) -> int:
        return 2

    def epoch(self, group: int) -> int:
        return 1

    def fit(self, group: int) -> bool:
        return True

    def on(self, kind: int, handler: Any) -> None:
        """Nobody tells who leads."""

    def send(self, core: int, kind: int, body: bytes) -> bool:
        return True

    def cores_of(self, node: int) -> int:
        return 1

    def protocol(self, core: int) -> int:
        return self._protocol

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None:
        self.peer.call_nowait(kind, body, done)

    def exchange(self) -> None:
        """Carry what was sent to the leader, and its answers back."""
        self.forwarding._bundles._leave_all()
        self.here.flush()
        self.asked.empty_into(self.there.link)
        proposed, self.proposed = self.proposed, []
        for done in proposed:
            done(ANSWER)
        self.there.link.flush()
        self.answered.empty_into(self.here)

    def _propose(self, group: int, append: Any, done: Any) -> None:
        self.proposed.append(done)

    def _alone(self, body: bytes, reply: Any, sender: int) -> None:
        decode_command(body[2:])
        self.proposed.append(lambda outcome: reply(messages.encode(outcome)))


async def _never() -> FrameLink:
    raise Unavailable("it is there already")


async def cost(protocol: int, count: int) -> float:
    world, best = World(protocol), 1e9
    commands = [append_of(number, 1) for number in range(count)]
    came: list[Any] = []
    gc.collect()
    for _ in range(PASSES):
        begin = thread_time()
        for command in commands:
            world.forwarding.propose(1, command, came.append)
        while len(came) < count:  # at first one attempt at a time, until the leader is known
            world.exchange()
            if len(came) < count:
                await asyncio.sleep(0)
        best = min(best, thread_time() - begin)
        came.clear()
        await asyncio.sleep(0)
    return best / count * 1e6


def main() -> None:
    print("| appends of a pass and group | one by one, us | together, us |\n|---|---|---|")
    for count in (1, 2, 4, 8, 16, 32):
        print(
            f"| {count} | {asyncio.run(cost(1, count)):.2f} | {asyncio.run(cost(2, count)):.2f} |"
        )


if __name__ == "__main__":
    main()
