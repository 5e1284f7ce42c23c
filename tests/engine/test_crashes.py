"""A whole core, killed and failed anywhere: acknowledged and seen data stays, refused requests
never happened."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from random import Random

import pytest
from long_tests import long
from worlds.cold import FaultyStore
from worlds.fake_disk import FakeDisk
from worlds.service import Code, Listener, World, name_in
from worlds.stream import check_invariants

from polynya.base.errors import OutcomeUnknown, PolynyaError, Unavailable
from polynya.local.api import Refusal, StreamInfo
from polynya.objectstore import StoreError
from polynya.stream.features.lifetimes.commands import Delete
from polynya.stream.replies import Reply

State = tuple[bytes, bool] | None  # content and closed; None: not there
Change = Callable[[State], State]
A, B, C, FORK = name_in(1), name_in(2), name_in(1, hint="t"), name_in(3, hint="fork")
NAMES = (A, B, C, FORK)
A_THIRD = pytest.mark.parametrize("first", [1, *long([2, 3])])  # of all calls of the disk


class Oracle:
    """Expected states of each stream: one, or two after an unknown outcome."""

    def __init__(self) -> None:
        self.states: dict[str, set[State]] = {name: {None} for name in NAMES}
        self.heard: dict[
            str, tuple[StreamInfo, Listener]
        ] = {}  # by name: who heard of its events, and from where on

    def applied(self, name: str, change: Change) -> None:
        self.states[name] = {change(state) for state in self.states[name]}

    def unknown(self, name: str, change: Change) -> None:
        self.states[name] |= {change(state) for state in self.states[name]}

    async def check(self, world: World) -> None:
        for name in NAMES:
            found = await self.look(world, name)
            assert found in self.states[name], (name, found, self.states[name])
            self.states[name] = {found}
        for name, (begin, listener) in self.heard.items():
            info = await world.info(name)
            if isinstance(info, StreamInfo) and info.uid == begin.uid:
                assert (await world.read(name))[begin.byte :].startswith(listener.payload), (
                    "a reader saw what was not durable"
                )
        for machine in world.local.machines.values():
            check_invariants(machine)

    async def look(self, world: World, name: str) -> State:
        info = await world.info(name)
        if isinstance(info, Refusal):
            return None
        try:
            content = await world.read(name, bytes_max=100)
        except Unavailable:  # a client reads again
            content = await world.read(name, bytes_max=100)
        assert len(content) == info.byte, "the tail is where the stored bytes end"
        return content, info.closed


class Session:
    """One script of everything that a core does. Stops at the first outcome that a front would not
    go on from."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self.world = world
        self.oracle = oracle
        self.count = 0

    async def run(self) -> None:
        world = self.world
        world.clock.ms += 11_000
        # what a fork of the life before left open; a create of its source would wait for that
        await self.guarded(self.settle())
        await asyncio.gather(self.create(A), self.create(B))
        await self.watch(A)
        for _ in range(3):
            await asyncio.gather(self.append(A), self.append(A), self.append(B))
        await self.create(C)
        await self.append(C)
        await self.guarded(world.service.flush(""))
        await self.append(A)
        await self.fork(FORK, A)
        await self.append(FORK)
        await self.guarded(world.snapshot())
        await asyncio.gather(self.delete(C), self.append(B, close=True))
        await self.append(A)
        await self.delete(A)
        await self.guarded(world.service.flush(""))
        await self.guarded(world.snapshot())
        await self.create(C)
        await self.append(C)
        await self.delete(FORK)
        await self.guarded(self.settle())
        world.clock.ms += 120_000
        await self.guarded(world.collector.collect())
        await self.guarded(world.snapshot())
        await self.guarded(world.collector.collect())

    async def create(self, name: str) -> None:
        await self.act(name, self.world.create(name), lambda state: state or (b"", False))

    async def append(self, name: str, *, close: bool = False) -> None:
        self.count += 1
        payload = b"%03d " % self.count * 60
        await self.act(
            name,
            self.world.append(name, payload, close=close),
            lambda state: state and (state[0] + payload, close),
        )

    async def delete(self, name: str) -> None:
        await self.act(name, self.world.send(Delete(name, self.world.clock.ms)), lambda state: None)

    async def fork(self, name: str, source: str) -> None:
        content = await self.oracle.look(self.world, source)
        if content is not None:
            await self.act(
                name, self.world.fork(name, source), lambda state: state or (content[0], False)
            )

    async def watch(self, name: str) -> None:
        listener = Listener()
        info = await self.world.service.open(name).attach(listener)
        if isinstance(info, StreamInfo):
            self.oracle.heard[name] = (info, listener)

    async def act(self, name: str, work: object, change: Change) -> None:
        try:
            reply = await work  # type: ignore[misc]
        except OutcomeUnknown:
            self.oracle.unknown(name, change)
        except asyncio.CancelledError:
            self.oracle.unknown(name, change)
            raise
        except Unavailable:
            pass
        else:
            assert isinstance(reply, Reply)
            if reply.code < Code.NOT_FOUND:
                self.oracle.applied(name, change)

    async def guarded(self, work: object) -> None:
        """Run background work of the node; its failures are retried or end the process."""
        try:
            await work  # type: ignore[misc]
        except (PolynyaError, StoreError):
            pass
        except OSError as fault:
            self.world.faults.append(fault)

    async def settle(self) -> None:
        for _ in range(10):
            await self.world.engine.core.drain()
            await self.world.engine.outbox_sender.sweep()


async def finish(world: World, oracle: Oracle) -> None:
    """Check after the last restart that nothing is missing and everything works."""
    await oracle.check(world)
    state = world.state()
    world.kill()
    assert world.state() == state
    session = Session(world, oracle)
    # a fork that the crash cut off makes a create of its deleted source wait until it is settled
    world.clock.ms += 60_000
    await session.settle()
    await session.run()
    await oracle.check(world)
    await world.stop()


def start(world: World) -> bool:
    try:
        world.start()
    except OSError:
        world.disk.kill()
        return False
    return True


def calls_of_a_session() -> int:
    async def run() -> int:
        world = World().start()
        oracle = Oracle()
        await Session(world, oracle).run()
        for machine in world.local.machines.values():
            assert (
                not machine.outbox.messages
                and not machine.forks.unconfirmed
                and all(pack.groups for pack in machine.packs.owned.values())
            )
        await oracle.check(world)
        await world.stop()
        return world.disk.calls

    return asyncio.run(run())


def shares() -> Iterator[float]:
    while True:
        yield from (0.0, 0.5, 1.0)


@A_THIRD
def test_every_call_of_the_disk_fails_once(first: int) -> None:
    share = shares()

    async def run(fail_at: int) -> None:
        disk = FakeDisk(Random(fail_at))
        disk.fail_at = fail_at
        world, oracle = World(disk), Oracle()
        if start(world):
            await Session(world, oracle).run()
            if not disk.failed_call:
                await oracle.check(world)
            world.die()
        disk.power_cut(next(share))
        await finish(world.start(), oracle)

    for fail_at in range(first, calls_of_a_session() + 1, 3):
        asyncio.run(run(fail_at))


@A_THIRD
def test_a_disk_that_is_full_at_any_call_refuses_and_recovers(first: int) -> None:
    async def run(fail_at: int) -> None:
        disk = FakeDisk(Random(fail_at))
        disk.fail_at, disk.error = fail_at, errno.ENOSPC
        world, oracle = World(disk), Oracle()
        if not start(world):
            world.start()
        await Session(world, oracle).run()
        if not world.faults:
            await oracle.check(world)  # in the same life
            await Session(world, oracle).run()
            # a core whose journal failed does not know what of its last turn is durable
            if not world.faults:
                await oracle.check(world)
        await finish(world.kill(), oracle)

    for fail_at in range(first, calls_of_a_session() + 1, 3):
        asyncio.run(run(fail_at))


def test_a_full_disk_answers_so_and_reads_go_on() -> None:
    async def run() -> None:
        world, oracle = World(), Oracle()
        world.start()
        session = Session(world, oracle)
        await session.create(A)
        await session.append(A)
        room, world.disk.capacity = world.disk.capacity, world.disk.used()
        filling = [world.send(world.append_of(A, b"x" * 10_000)) for _ in range(20)]
        codes = [(await each).code for each in filling]
        assert set(codes) == {Code.DISK_FULL}
        while (await world.append(A, close=False, stream_seq="x")).code != Code.DISK_FULL:
            pass  # refused by the log, so that it takes room there
        assert (await world.create(B)).code == Code.DISK_FULL
        assert (await world.fork(FORK, A)).code == Code.DISK_FULL
        await oracle.check(world)
        assert world.engine.core.counters.disk_full
        world.disk.capacity = room
        await session.append(A)
        await session.run()
        await finish(world.power_cut(), oracle)

    asyncio.run(run())


@pytest.mark.parametrize("after", [True, *long([False])])
def test_every_call_of_the_object_store_fails_once(after: bool) -> None:
    async def run(fail_at: int) -> bool:
        store = FaultyStore(fail_at, after=after)
        world, oracle = World(store=store).start(), Oracle()
        await Session(world, oracle).run()
        failed = store.calls >= fail_at
        await oracle.check(world)
        await finish(world.power_cut(), oracle)
        return failed

    fail_at = 1
    while asyncio.run(run(fail_at)):
        fail_at += 1
    assert fail_at > 4


@pytest.mark.parametrize("seed", [*range(6), *long(range(6, 40))])
def test_a_core_dies_at_any_moment(seed: int) -> None:
    """Kill the core, or cut its machine's power, between any two steps of the loop, several times
    in a row."""

    async def run() -> None:
        random = Random(seed)
        world, oracle = World(FakeDisk(random)), Oracle()
        for _ in range(4):
            world.start()
            await oracle.check(world)
            session = asyncio.create_task(Session(world, oracle).run())
            for _ in range(random.randint(1, 400)):
                await asyncio.sleep(0)
            if random.random() < 0.5:  # in the middle of a write, or between it and its sync
                world.disk.fail_at = world.disk.calls + random.randint(1, 3)
            world.die()
            session.cancel()
            await asyncio.gather(session, return_exceptions=True)
            if random.random() < 0.7:
                world.disk.power_cut(random.choice((0.0, 0.5, 0.9, 1.0)))
        await finish(world.start(), oracle)

    asyncio.run(run())
