"""The faults: each is inflicted on a cluster under load and healed after a while. A fault whose
prerequisite is missing is skipped, with the prerequisite named."""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import psutil

from chaos.disks import Disk, flip_in_the_middle, tear_the_tail
from chaos.nodes import EXIT_CORRUPT, EXIT_STORAGE, Cluster, Node

Mend = Callable[[], Awaitable[None]]
# what was done, and what undoes it beside starting what is down, healing the network and the disks
Inflicted = tuple[str, Mend | None]


class Failed(Exception):
    """Raised when a node does not react to a fault as required."""


class Fault(msgspec.Struct, frozen=True):
    """A fault. `needs`: of "namespaces", "power", "shim", "the same disk". `seconds`: its minimal
    and maximal duration. `dies`: for the others it only means the end of one node, so that
    another leader takes over soon."""

    name: str
    inflict: Callable[[Cluster, Random], Awaitable[Inflicted]]
    needs: tuple[str, ...] = ()
    seconds: tuple[float, float] = (1.0, 4.0)
    dies: bool = False


FAULTS: list[Fault] = []


def fault(
    name: str, *needs: str, seconds: tuple[float, float] = (1.0, 4.0), dies: bool = False
) -> Callable[
    [Callable[[Cluster, Random], Awaitable[Inflicted]]],
    Callable[[Cluster, Random], Awaitable[Inflicted]],
]:
    """Add the decorated function to the list."""

    def put(
        inflict: Callable[[Cluster, Random], Awaitable[Inflicted]],
    ) -> Callable[[Cluster, Random], Awaitable[Inflicted]]:
        FAULTS.append(Fault(name, inflict, needs, seconds, dies))
        return inflict

    return put


async def _one(cluster: Cluster, draw: Random) -> Node:
    """Choose a node, mostly one involved in the current move, else half of the time the node that
    leads the most."""
    # one may be just coming, or going
    able = [number for number in cluster.numbers if cluster.nodes[number].cores()]
    aims = [number for number in cluster.aims if number in able]
    if aims and draw.random() < 0.7:
        return cluster.nodes[draw.choice(aims)]
    number = await cluster.leader_most() if draw.random() < 0.5 else draw.choice(able)
    return cluster.nodes[number if number in able else able[0]]


def _some(cluster: Cluster, draw: Random, count: int) -> list[int]:
    """Choose nodes, mostly with two that are involved in the current move."""
    aims = [number for number in dict.fromkeys(cluster.aims) if number in cluster.nodes]
    chosen = draw.sample(aims, 2) if len(aims) > 1 and draw.random() < 0.7 else []
    return chosen + draw.sample(
        [number for number in cluster.numbers if number not in chosen], count - len(chosen)
    )


# --- processes ------------------------------------------------------------------------------------


@fault("kill a core", seconds=(0.5, 2.0), dies=True)
async def kill_core(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    cores = node.cores()
    core = draw.randrange(len(cores))
    with suppress(psutil.NoSuchProcess):
        cores[core].kill()
    return f"core {core} of node {node.number}", None


@fault("kill a node", seconds=(0.5, 3.0), dies=True)
async def kill_node(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    await node.kill()
    return f"node {node.number}", None


@fault("kill a majority", seconds=(0.5, 2.0))
async def kill_two(cluster: Cluster, draw: Random) -> Inflicted:
    numbers = _some(cluster, draw, 2)
    await asyncio.gather(*(cluster.nodes[number].kill() for number in numbers))
    return f"nodes {numbers[0]} and {numbers[1]}", None


@fault("kill all", seconds=(0.1, 1.0))
async def kill_all(cluster: Cluster, draw: Random) -> Inflicted:
    await asyncio.gather(*(node.kill() for node in cluster.nodes.values()))
    return "all nodes at once", None


@fault("pause a node", seconds=(1.0, 6.0), dies=True)
async def pause_node(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    node.signal(signal.SIGSTOP)

    async def mend() -> None:
        node.signal(signal.SIGCONT)

    return f"node {node.number}", mend


@fault("pause a core for moments", seconds=(1.0, 3.0))
async def pause_core(cluster: Cluster, draw: Random) -> Inflicted:
    """Pause and resume a core a few times, each time for around the length of a lease."""
    node = await _one(cluster, draw)
    cores = node.cores()
    core = draw.randrange(len(cores))
    for _ in range(draw.randint(2, 5)):
        with suppress(psutil.NoSuchProcess):
            cores[core].suspend()
            await asyncio.sleep(draw.uniform(0.2, 1.2))
            cores[core].resume()
            await asyncio.sleep(draw.uniform(0.0, 0.4))
    return f"core {core} of node {node.number}", None


@fault("pause all", seconds=(1.0, 4.0))
async def pause_all(cluster: Cluster, draw: Random) -> Inflicted:
    for node in cluster.nodes.values():
        node.signal(signal.SIGSTOP)

    async def mend() -> None:
        for number in draw.sample(cluster.numbers, len(cluster.numbers)):
            cluster.nodes[number].signal(signal.SIGCONT)
            await asyncio.sleep(draw.uniform(0.0, 0.5))

    return "all nodes; they wake up one after the other", mend


@fault("stop a node in order", seconds=(0.2, 1.0), dies=True)
async def stop_node(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    code = await node.stop()
    if code:
        raise Failed(f"node {node.number} ended with {code} at SIGTERM")
    return f"node {node.number}, by SIGTERM", None


@fault("kill a node as it stops", seconds=(0.2, 1.0), dies=True)
async def kill_stopping(cluster: Cluster, draw: Random) -> Inflicted:
    """Kill a node during its shutdown: while it hands over, answers requests in flight, or closes
    its files."""
    node = await _one(cluster, draw)
    node.terminate()
    await asyncio.sleep(draw.uniform(0.0, 0.6))
    await node.kill()
    return f"node {node.number}", None


@fault("kill a node as it starts", seconds=(0.1, 1.0))
async def kill_starting(cluster: Cluster, draw: Random) -> Inflicted:
    """Kill a node repeatedly during its start: while it reads its disk, connects to the others,
    and catches up."""
    node, times = await _one(cluster, draw), draw.randint(2, 4)
    await node.kill()
    for _ in range(times):
        node.start()
        await asyncio.sleep(draw.uniform(0.1, 2.5))
        await node.kill()
    return f"node {node.number}, {times} times", None


@fault("kill a supervisor", seconds=(0.2, 1.0), dies=True)
async def kill_supervisor(cluster: Cluster, draw: Random) -> Inflicted:
    """Kill the supervisor. Its cores must not run on: a new supervisor would start them a second
    time."""
    node = await _one(cluster, draw)
    supervisor, *cores = node.processes()
    with suppress(psutil.NoSuchProcess):
        supervisor.kill()
    await node.ended(5.0)
    left = [core.pid for core in (await asyncio.to_thread(psutil.wait_procs, cores, 5.0))[1]]
    if left:
        raise Failed(f"processes {left} of node {node.number} live on without their supervisor")
    return f"that of node {node.number}, whose cores end", None


@fault("another number of cores", seconds=(0.1, 1.0))
async def share_out(cluster: Cluster, draw: Random) -> Inflicted:
    """Reshare a node's data at its start, and kill it half-way."""
    node = await _one(cluster, draw)
    before, kills = node.count, draw.choice((0, 1, 2))
    count = draw.choice([each for each in (1, 2, 3) if each != before])
    await node.kill()
    node.share_out(count)
    for _ in range(kills):
        node.start()
        await asyncio.sleep(draw.uniform(0.3, 2.0))
        await node.kill()
    return (
        f"node {node.number}, {count} instead of {before}, killed {kills} times as it starts",
        None,
    )


# --- the network ----------------------------------------------------------------------------------


def _both(one: int, others: list[int]) -> list[tuple[int, int]]:
    return [pair for other in others for pair in ((one, other), (other, one))]


@fault("cut a node off", seconds=(2.0, 8.0), dies=True)
async def isolate(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    cluster.network.cut(
        cluster.wires,
        _both(node.number, [other for other in cluster.numbers if other != node.number]),
    )
    return f"node {node.number} from the others, not from clients", None


@fault("cut one way", seconds=(2.0, 8.0))
async def one_way(cluster: Cluster, draw: Random) -> Inflicted:
    sender, to = _some(cluster, draw, 2)
    cluster.network.cut(cluster.wires, [(sender, to)])
    return f"nothing passes from node {sender} to node {to}", None


@fault("mute a node", seconds=(2.0, 6.0))
async def mute(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    cluster.network.cut(
        cluster.wires, [(node.number, other) for other in cluster.numbers if other != node.number]
    )
    return f"node {node.number} hears the others and is not heard", None


@fault("bridge", seconds=(2.0, 8.0))
async def bridge(cluster: Cluster, draw: Random) -> Inflicted:
    one, other, between = _some(cluster, draw, 3)
    cluster.network.cut(cluster.wires, _both(one, [other]))
    return f"nodes {one} and {other} do not reach each other, but node {between}", None


@fault("cut all", seconds=(1.0, 4.0))
async def cut_all(cluster: Cluster, draw: Random) -> Inflicted:
    cluster.network.cut(cluster.wires, cluster.wires.pairs)
    return "every node from every other", None


@fault("cuts that come and go", seconds=(0.1, 0.5))
async def flap(cluster: Cluster, draw: Random) -> Inflicted:
    for _ in range(draw.randint(3, 6)):
        node = draw.choice(cluster.numbers)
        cluster.network.cut(
            cluster.wires, _both(node, [other for other in cluster.numbers if other != node])
        )
        await asyncio.sleep(draw.uniform(0.2, 1.5))
        cluster.network.heal()
        cluster.wires.heal()
        await asyncio.sleep(draw.uniform(0.0, 0.3))
    return "one node after the other, for moments", None


@fault("lose packets", "namespaces", seconds=(2.0, 6.0))
async def lose(cluster: Cluster, draw: Random) -> Inflicted:
    share = draw.choice((0.05, 0.15, 0.3))
    pairs = draw.sample(cluster.wires.pairs, draw.randint(1, len(cluster.wires.pairs)))
    cluster.network.lose(pairs, share)
    return f"{share:.0%} on {len(pairs)} of {len(cluster.wires.pairs)} ways", None


@fault("delay", seconds=(2.0, 6.0))
async def delay(cluster: Cluster, draw: Random) -> Inflicted:
    low, high = draw.choice(((0.01, 0.05), (0.05, 0.2), (0.1, 0.6), (0.0, 1.0)))
    pairs = draw.sample(cluster.wires.pairs, draw.randint(1, len(cluster.wires.pairs)))
    for pair in pairs:
        cluster.wires.delay(pair, low, high)
    return (
        f"{low * 1000:.0f} to {high * 1000:.0f} ms on {len(pairs)} of {len(cluster.wires.pairs)} "
        "ways",
        None,
    )


@fault("silence", "namespaces", seconds=(2.0, 6.0), dies=True)
async def silence(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    cluster.network.silence(node.number)
    return f"node {node.number} from everybody, clients too; nobody is told", None


@fault("a narrow way", seconds=(2.0, 6.0))
async def narrow(cluster: Cluster, draw: Random) -> Inflicted:
    rate = draw.choice((20_000, 100_000, 500_000))
    node = await _one(cluster, draw)
    pairs = draw.choice(
        (cluster.wires.pairs, [pair for pair in cluster.wires.pairs if node.number in pair])
    )
    for pair in pairs:
        cluster.wires.narrow(pair, rate)
    return f"{rate:,} bytes a second on {len(pairs)} of {len(cluster.wires.pairs)} ways", None


@fault("reset connections", seconds=(0.1, 1.0))
async def reset(cluster: Cluster, draw: Random) -> Inflicted:
    broken = 0
    for _ in range(draw.randint(1, 5)):
        for pair in draw.sample(cluster.wires.pairs, draw.randint(1, len(cluster.wires.pairs))):
            broken += cluster.wires.reset(pair)
        await asyncio.sleep(draw.uniform(0.05, 0.8))
    return f"{broken} of them", None


# --- clocks ---------------------------------------------------------------------------------------


@fault("the wall's clock jumps", "shim", seconds=(1.0, 3.0))
async def jump(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    seconds = draw.choice((-7200, -60, -2, 2, 60, 3600))
    assert node.orders is not None
    node.orders.give(real_ms=seconds * 1000)
    return f"by {seconds} s on node {node.number}, and stays so", None


@fault("the wall's clock flickers", "shim", seconds=(0.2, 1.0))
async def flicker(cluster: Cluster, draw: Random) -> Inflicted:
    """Set the clock back and forth, many times a second; it ends where it was."""
    node = await _one(cluster, draw)
    assert node.orders is not None
    before, widest = node.orders.clock("real_ms"), draw.choice((200, 5_000, 7_200_000))
    for _ in range(draw.randint(10, 40)):
        node.orders.give(real_ms=before + draw.randint(-widest, widest))
        await asyncio.sleep(draw.uniform(0.02, 0.15))
    node.orders.give(real_ms=before)
    return f"by up to {widest / 1000:g} s on node {node.number}", None


@fault("a machine was suspended", "shim", seconds=(0.5, 2.0))
async def suspend(cluster: Cluster, draw: Random) -> Inflicted:
    """Advance the clock that counts suspension by a leap, and the wall's clock too; the process
    noticed nothing."""
    node = await _one(cluster, draw)
    seconds = draw.choice((1, 5, 600))
    assert node.orders is not None
    orders = node.orders
    orders.give(
        boot_ms=orders.clock("boot_ms") + seconds * 1000,
        real_ms=orders.clock("real_ms") + seconds * 1000,
    )
    return f"node {node.number}, for {seconds} s", None


# --- disks ----------------------------------------------------------------------------------------


async def _ends_by(cluster: Cluster, draw: Random, what: str) -> Inflicted:
    """Let a node's disk fail after a while. The node must end and give the reason as its exit
    code."""
    node = await _one(cluster, draw)
    assert node.orders is not None
    node.orders.give(**{f"{what}_error": errno.EIO, f"{what}_after": draw.randrange(20)})
    await _start_after(node, EXIT_STORAGE)
    return f"with EIO on node {node.number}, which stops", None


async def _start_after(node: Node, code: int, *, seconds: float = 20.0) -> None:
    """Wait until the node ends with that code and logs the reason, then start it."""
    found = await node.ended(seconds)
    if found != code:
        raise Failed(f"node {node.number} ended with {found} instead of {code}")


@fault("fsync fails", "shim", seconds=(0.2, 1.0), dies=True)
async def sync_fails(cluster: Cluster, draw: Random) -> Inflicted:
    return await _ends_by(cluster, draw, "sync")


@fault("writes fail", "shim", seconds=(0.2, 1.0), dies=True)
async def write_fails(cluster: Cluster, draw: Random) -> Inflicted:
    return await _ends_by(cluster, draw, "write")


@fault("no room for writes", "shim", seconds=(1.0, 4.0))
async def no_room(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    assert node.orders is not None
    node.orders.give(write_error=errno.ENOSPC, write_after=draw.randrange(20))
    return f"on node {node.number}", None


@fault("a slow disk", "shim", seconds=(2.0, 6.0))
async def slow_disk(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    assert node.orders is not None
    ms = draw.choice((20, 100, 500))
    node.orders.give(sync_delay_us=ms * 1000)
    return f"each fsync of node {node.number} takes {ms} ms longer", None


@fault("a full disk", "power", seconds=(1.0, 4.0))
async def full_disk(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    disk = node.disk
    assert isinstance(disk, Disk)
    disk.fill(leave=draw.choice((0, 4096, 1 << 20)))

    async def mend() -> None:
        disk.empty()

    return f"of node {node.number}", mend


@fault("power cut of a node", "power", seconds=(0.1, 2.0), dies=True)
async def power_cut(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    await _cut_power([node])
    return f"node {node.number}", None


@fault("power cut of all", "power", seconds=(0.1, 1.0))
async def power_cut_all(cluster: Cluster, draw: Random) -> Inflicted:
    await _cut_power(list(cluster.nodes.values()))
    return "all nodes at once", None


async def _cut_power(nodes: list[Node]) -> None:
    """Stop the processes together with the power. While ext4 shuts down, an fsync may return
    success although the extents that it wrote are lost, and no client may see that."""
    disks = [node.disk for node in nodes if isinstance(node.disk, Disk)]
    for node in nodes:
        node.signal(signal.SIGSTOP)
    for disk in disks:
        disk.cut_power()
    await asyncio.gather(*(node.kill() for node in nodes))
    for disk in disks:
        await asyncio.to_thread(disk.restore)


@fault("die in a write", "shim", seconds=(0.2, 1.0), dies=True)
async def die_in_a_write(cluster: Cluster, draw: Random) -> Inflicted:
    """Kill a core in a write; its supervisor starts it again."""
    node = await _one(cluster, draw)
    return f"node {node.number}: {await _dies(node, draw)}", None


@fault("the power goes in a write", "shim", "power", seconds=(0.1, 1.0), dies=True)
async def power_goes_in_a_write(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    what = await _dies(node, draw)
    await _cut_power([node])
    return f"node {node.number}: {what}", None


async def _dies(node: Node, draw: Random) -> str:
    """Let a process of a node die at some write or fsync of a journal or snapshot: before it, when
    half is written, or before anybody hears that it is done."""
    assert node.orders is not None
    at, after = draw.randrange(3), draw.randrange(60)
    node.orders.give(die_at=at + 1, die_after=after)
    for _ in range(1000):
        if node.orders.has_died:
            return f"{('before', 'in', 'after')[at]} its write or fsync number {after + 1}"
        await asyncio.sleep(0.005)
    return "not yet: it writes nothing"


@fault("lose a disk", "the same disk", seconds=(0.1, 2.0), dies=True)
async def lose_disk(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    await node.kill()
    node.wipe()
    return f"that of node {node.number}", None


@fault("a torn tail", seconds=(0.1, 1.0))
async def torn_tail(cluster: Cluster, draw: Random) -> Inflicted:
    node = await _one(cluster, draw)
    await node.kill()
    journal = _journal(node, draw)
    if not list(journal.glob("*.journal")):
        return f"not yet: node {node.number} has no journal", None
    return f"node {node.number}: {tear_the_tail(journal, draw)}", None


@fault("a bit flips in a journal", "the same disk", seconds=(0.1, 1.0))
async def flipped(cluster: Cluster, draw: Random) -> Inflicted:
    """Flip a bit in a node's journal: it must refuse to start on it, and comes back as one that
    lost its disk."""
    node = await _one(cluster, draw)
    await node.kill()
    journal = _journal(node, draw)
    what = flip_in_the_middle(journal, draw)
    if not what:
        return f"not yet: the journal of node {node.number} is too short", None
    node.start()
    found = await node.ended(30.0)
    if found != EXIT_CORRUPT or not {"is damaged at offset", "move the data folder away"} <= _said(
        node
    ):
        raise Failed(
            f"node {node.number} ended with {found} instead of {EXIT_CORRUPT} on {what}:\n"
            f"{node.said()[-2000:]}"
        )
    if draw.random() < 0.5:
        node.wipe()
    else:
        shutil.rmtree(journal.parent)  # the damaged core's alone
    return f"node {node.number}: {what}: it refuses, and gets its data from the others", None


def _said(node: Node) -> set[str]:
    """Return the problems that the node reports to its operator."""
    return {
        words
        for words in ("is damaged at offset", "move the data folder away")
        if words in node.said()
    }


def _journal(node: Node, draw: Random) -> Path:
    return node.data / f"core-{draw.randrange(node.count)}" / "journal"
