"""Mishaps of nodes, disks, ways and clocks that are hard on the edges: a node stands still, dies at
a very call of its disk, is slow alone; the network parts by who leads; ways lose, repeat or hold
little; clocks change. Each is drawn per seed, and a step of a schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sim.disk import CHANGES, PUT, Crash
from sim.network import Bad

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

PAUSE_SECONDS = (0.05, 0.3, 0.7, 1.5, 4.0, 8.0)
PLACES: tuple[
    tuple[tuple[str, ...], int], ...
] = (  # what a node dies at, and by how many such calls later at most
    (("write",), 20),
    (("write", "sync"), 20),
    (("sync",), 20),
    (("create",), 2),
    (("allocate",), 2),
    (("rename",), 3),
    (("unlink",), 3),
    (("truncate",), 2),
    (("sync_folder",), 4),
    (CHANGES, 30),
    ((PUT,), 3),
)


def _alive(episode: Episode) -> Node | None:
    alive = episode.world.alive()
    return episode.draw.choice(alive) if alive else None


def _leader(episode: Episode) -> Node | None:
    """Return the leader of a drawn group: most faults matter most there."""
    group = episode.draw.randrange(len(episode.world.map.voters))
    return episode.world.leader(group) or _alive(episode)


def pause(episode: Episode) -> None:
    node = _leader(episode) if episode.draw.random() < 0.6 else _alive(episode)
    if node is not None:
        seconds = episode.draw.choice(PAUSE_SECONDS) * episode.draw.uniform(0.7, 1.3)
        episode.note(f"node {node.number} stands still for {seconds:.2f} s")
        node.pause(seconds, timers_first=episode.draw.random() < 0.5)


def crash(episode: Episode) -> None:
    """Crash a node at one of its next calls to the disk or the object store, or at its start."""
    node, draw = _alive(episode), episode.draw
    calls, most = draw.choice(PLACES)
    doom = Crash(
        calls,
        draw.randrange(most),
        draw.choice(("before", "middle", "after")),
        draw.choice((None, 0.0, 0.5, 1.0)),
    )
    starts, snapshots = draw.random() < 0.15, draw.random() < 0.7
    if calls == (PUT,):
        doom.at = draw.choice(("before", "after"))
    elif node is not None and starts:
        doom.calls, doom.after = CHANGES, draw.randrange(12)
        node.kill(power=doom.power)
    if node is not None:
        episode.note(
            f"node {node.number} dies {doom.at} {doom.calls} {doom.after}, power {doom.power}"
        )
        node.disk.crash = doom
        if snapshots and node.alive and calls != (PUT,):
            node.snapshot_soon()
        elif not node.alive:
            node.start_or_say()


def slow_disk(episode: Episode) -> None:
    node, draw = _alive(episode), episode.draw
    if node is not None:
        node.slow = None if node.slow else draw.choice(((0.05, 0.2), (0.2, 0.6), (0.5, 1.0)))
        node.process.slow_seconds = node.slow[1] if node.slow else 0.0
        episode.note(f"the disk of node {node.number} takes {node.slow} s")


def bad_way(episode: Episode) -> None:
    """Degrade the link from one node to another, all its outbound links, or all its inbound ones."""
    world, draw = episode.world, episode.draw
    sender, to = draw.sample(world.voters, 2)
    bad = Bad(
        draw.choice((0.0, 0.3, 0.5)),
        draw.choice((0.0, 0.1, 0.3)),
        draw.choice((0, 1, 2, 5, 20)),
        draw.random() < 0.5,
    )
    which = draw.choice(("one", "from", "to", "all"))
    for way in [(a, b) for a in world.voters for b in world.voters if a != b]:
        if {"one": way == (sender, to), "from": way[0] == sender, "to": way[1] == to, "all": True}[
            which
        ]:
            world.bad[way] = bad
    episode.note(f"ways {which} {sender} {to}: {bad}")


def leader_cut(episode: Episode) -> None:
    """Cut a leader off: inbound, outbound or both."""
    node, world = _leader(episode), episode.world
    if node is not None:
        how = episode.draw.choice(("both", "in", "out"))
        episode.note(f"node {node.number}, which leads, is cut off: {how}")
        if how == "in":
            world.part(world.voters, (node.number,), back=False)
        else:
            world.part((node.number,), world.voters, back=how == "both")


def ring(episode: Episode) -> None:
    numbers = episode.draw.sample(episode.world.voters, len(episode.world.voters))
    episode.note(f"everybody is heard by another majority: {numbers}")
    episode.world.ring(numbers)


def bridge(episode: Episode) -> None:
    numbers = episode.draw.sample(episode.world.voters, len(episode.world.voters))
    episode.note(f"two halves and one between: {numbers}")
    episode.world.bridge(numbers)


def strobe(episode: Episode) -> None:
    """Let the wall's clock go forth and back."""
    draw = episode.draw
    node = draw.choice(list(episode.world.nodes.values()))
    seconds, ms = draw.choice((0.01, 0.1, 0.5)), draw.choice((-3_600_000, -700, 400, 2000, 60_000))
    node.clock.strobe(asyncio.get_running_loop().time() + draw.uniform(0.5, 5.0), seconds, ms)
    episode.note(f"the wall's clock of node {node.number} is {ms} ms off every {seconds} s")


def rates(episode: Episode) -> None:
    """Change the rates of the clocks: some go as fast as they may, some as slow."""
    draw, drift = episode.draw, episode.world.drift * 0.99
    for node in episode.world.nodes.values():
        rate = 1 + draw.choice((-drift, 0.0, drift, draw.uniform(-drift, drift)))
        node.clock.set_rate(rate, now=asyncio.get_running_loop().time())
        episode.note(f"the clock of node {node.number} goes at {rate:.4f}")


FAULTS: dict[str, Callable[[Episode], None]] = {
    "pause": pause,
    "crash at a call": crash,
    "slow disk": slow_disk,
    "bad way": bad_way,
    "leader cut": leader_cut,
    "ring": ring,
    "bridge": bridge,
    "strobe": strobe,
    "rates": rates,
}


def weights(seed: int) -> dict[str, float]:
    """Draw the frequency of each fault in a world; many worlds have only a few kinds."""
    random = Random(f"faults {seed}")
    some = random.random() < 0.5
    drawn = {
        name: random.choice((0.0, 0.0, 0.0, 1.0) if some else (0.0, 1.0, 1.0, 3.0))
        for name in FAULTS
    }
    return drawn if any(drawn.values()) else dict.fromkeys(FAULTS, 1.0)
