"""Loss of a connection between nodes: never while much data moves, and soon after nothing does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from sim.loop import run_simulated

from polynya.transport.keepalive import MOVED_BYTES, SILENCE_SECONDS, Keepalive
from polynya.transport.link import FrameType
from polynya.transport.raft_links import PAUSE_SECONDS, RaftLinks

TICK = 0.25


class Wire:
    """The part of a link that a keepalive sees. The peer's kernel takes `rate` bytes per tick; its
    process is silent."""

    def __init__(self) -> None:
        self.quiet = self.up = True
        self.handed = self.unsent = 0
        self.rate = MOVED_BYTES

    def send(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        assert type_ == FrameType.PING
        self.give(20)

    def give(self, size: int) -> None:
        self.handed += size
        self.unsent += size

    def close(self) -> None:
        self.up = False

    def pass_tick(self) -> None:
        self.unsent -= min(self.unsent, self.rate)


def ticks_until_lost(wire: Wire, keepalive: Keepalive, begin: int) -> tuple[int, int]:
    """Count the ticks until the link is lost, and those that report progress."""
    moving = 0
    for tick in range(begin, begin + 1000):
        wire.pass_tick()
        keepalive.beat(wire, tick * TICK)  # type: ignore[arg-type]
        moving += keepalive.moving
        if not wire.up:
            return tick - begin, moving
    raise AssertionError("it is never given up")


def test_a_kernel_that_takes_pings_for_a_process_that_stands_still_is_no_life():
    wire, keepalive = Wire(), Keepalive()
    keepalive.begin(0.0)
    assert ticks_until_lost(wire, keepalive, 1) == (SILENCE_SECONDS / TICK, 0)


def test_a_link_on_which_much_moves_is_kept_until_it_stops():
    wire, keepalive = Wire(), Keepalive()
    keepalive.begin(0.0)
    wire.give(100 * MOVED_BYTES)
    lasted, moving = ticks_until_lost(wire, keepalive, 1)
    assert 98 <= moving <= 100 and lasted <= moving + SILENCE_SECONDS / TICK + 1


def test_what_moves_too_slowly_keeps_the_link_and_tells_nobody_to_wait():
    wire, keepalive = Wire(), Keepalive()
    keepalive.begin(0.0)
    wire.rate = MOVED_BYTES // 2
    wire.give(100 * MOVED_BYTES)
    lasted, moving = ticks_until_lost(wire, keepalive, 1)
    assert lasted > 150 and moving == 0


def test_what_is_given_while_nothing_is_taken_is_no_life():
    wire, keepalive = Wire(), Keepalive()
    keepalive.begin(0.0)
    wire.rate = 0
    wire.give(100 * MOVED_BYTES)
    assert ticks_until_lost(wire, keepalive, 1) == (SILENCE_SECONDS / TICK, 0)


class Ends:
    """The part of a connected link that a lane sees."""

    up, full, quiet, handed, unsent = True, False, False, 0, 0

    def __init__(self) -> None:
        self.transport = SimpleNamespace(set_write_buffer_limits=lambda high, low: None)

    def send(self, *frame: object) -> None:
        """Send to a process that stands still."""
        self.quiet = True


@pytest.mark.parametrize("pauses", [True, False])
def test_a_node_that_fell_silent_seems_up_for_a_moment_and_one_that_hung_up_does_not(pauses):
    async def story():
        links = RaftLinks((0, 1), {2: lambda core: None}, lambda *bulk: True)
        lane = links._nodes[2].lanes[0]
        assert not links.seems_up(2)
        assert lane._begin(Ends())
        assert links.is_up(2) and links.seems_up(2)
        await asyncio.sleep(SILENCE_SECONDS + 0.1 if pauses else 0.1)
        lane._gone()
        assert not links.is_up(2)
        assert links.seems_up(2) == pauses
        await asyncio.sleep(PAUSE_SECONDS + 0.1)
        assert not links.seems_up(2) and not links.seems_up(3)

    run_simulated(story())
