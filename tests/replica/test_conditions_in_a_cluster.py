"""Appends on a condition in a simulated cluster: at each node, while leaders change, and before all
nodes know them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

import pytest
from sim.clock import WALL_MS
from sim.cluster import GROUPS, Node, World
from sim.store import SimStore
from stories.cluster import A, stories
from worlds.service import raw_batch

from polynya.base.errors import OutcomeUnknown, Unavailable, UpgradePending
from polynya.base.levels import CONDITIONS_LEVEL
from polynya.stream.features.appends.commands import AppendIf
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Encoding, Producer, SegmentLimits
from polynya.stream.replies import Code, Reply

PROFILES = ("replicated", "leased", "diskless", "fork")


async def begun(release: int = CONDITIONS_LEVEL) -> tuple[World]:
    loop = asyncio.get_running_loop()
    world = World(1, store=SimStore(1, lambda: int(loop.time() * 1000) + WALL_MS - 1_000_000))
    world.release = release
    await world.start()

    def is_raised() -> bool:
        return all(
            node.engine.local.machines[group].counters.level >= release
            for node in world.alive()
            for group in range(GROUPS + 1)
        )

    await world.wait(is_raised)
    return (world,)


async def before() -> tuple[World]:
    return await begun(CONDITIONS_LEVEL - 1)


story = stories(begun)
story_of_an_upgrade = stories(before)


async def create(world: World, name: str, profile: str) -> None:
    """A stream of one record."""
    node = world.alive()[0]
    source = f"{name}-source" if profile == "fork" else name
    more = {
        "leased": {"segments": SegmentLimits(2, 0)},
        "diskless": {"profile": Profile.DISKLESS},
    }.get(profile, {})
    command = Create(source, 0, "text/plain", Encoding.BYTES, **more)  # type: ignore[arg-type]
    assert (await node.propose(source, command)).code == Code.CREATED
    if profile == "fork":
        await node.append(source, b"first;")
        create = Create(name, node.engine.service.now_ms(), "", 0)
        reply = await node.process.drive(node.engine.service.fork(create, source, -1, 0, 0))
        assert reply.code == Code.CREATED
    else:
        assert (await node.append(name, b"first;")).code == Code.OK


async def append_if(
    node: Node, name: str, payload: bytes, record: int, producer: Producer | None = None
) -> Reply:
    batch = raw_batch(payload)
    return await node.propose(name, AppendIf(name, 0, "text/plain", batch, producer, record=record))


@story
async def test_every_node_judges_every_profile(world: World) -> None:
    for profile in PROFILES:
        name = f"test/{profile}"
        await create(world, name, profile)
        for node in world.alive():
            for record in (0, 2):
                reply = await append_if(node, name, b"no;", record)
                assert (reply.code, reply.record) == (Code.PRECONDITION, 1), profile
        for round_ in range(1, 5):
            replies = await asyncio.gather(
                *(
                    append_if(node, name, b"%d.%d;" % (round_, node.number), round_)
                    for node in world.alive()
                    for _ in range(7)
                )
            )
            codes = sorted(reply.code for reply in replies)
            assert codes == [Code.OK] + [Code.PRECONDITION] * 20, profile
        for node, record in ((world.nodes[2], 4), (world.nodes[3], 5), (world.nodes[1], 6)):
            close = AppendIf(name, 0, "", None, close=True, record=record)
            reply = await node.propose(name, close)
            assert (
                reply.code
                == {
                    4: Code.PRECONDITION,
                    5: Code.OK,
                    6: Code.ALREADY_CLOSED,
                }[record]
            )
        content = await world.alive()[0].read(name)
        assert [part[:1] for part in content.split(b";")[:-1]] == [b"f", b"1", b"2", b"3", b"4"]
    await world.wait_equal()


class Writers:
    """Writers that compare and swap, each with its last known tail, and retry until the outcome is
    known."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.won: dict[int, bytes] = {}  # by the record that the winner named
        self.over = False

    async def run(self, number: int, *, keyed: bool) -> None:
        tail = 1
        for turn in count():
            if self.over:
                return
            payload = b"%d.%d;" % (number, turn)
            # an id for each append: its first sequence is the one that comes next
            producer = Producer(f"w{number}-{turn}", 0, 0) if keyed else None
            reply = await self.known(payload, tail, producer)
            if reply is None:
                continue
            if reply.code in (Code.OK, Code.DUPLICATE):
                assert tail not in self.won, "two writers have won with one tail"
                self.won[tail] = payload
            else:
                assert reply.code == Code.PRECONDITION
                assert reply.record != tail, "refused although it is the tail"
            tail = reply.record

    async def known(self, payload: bytes, tail: int, producer: Producer | None) -> Reply | None:
        """Resolve an unknown outcome: with a producer the append is repeated elsewhere, without
        one it stays unknown."""
        for attempt in count():
            nodes = self.world.alive()
            node = nodes[attempt % len(nodes)]
            with suppress(Unavailable):
                try:
                    return await append_if(node, self.name, payload, tail, producer)
                except OutcomeUnknown:
                    if producer is None:
                        return None
            await asyncio.sleep(0.1)
        raise AssertionError


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("profile", ["replicated", "leased", "diskless"])
def test_who_succeeds_has_seen_the_tail_whoever_leads(profile: str, keyed: bool) -> None:
    @story
    async def tell(world: World) -> None:
        await create(world, A, profile)
        writers = Writers(world, A)
        running = [asyncio.ensure_future(writers.run(number, keyed=keyed)) for number in range(5)]
        for _ in range(4):
            await asyncio.sleep(1.0)
            leader = world.leader(world.group_of(A))
            if leader is not None:
                leader.kill(power=0.0)
                await world.wait_leaders()
                await asyncio.sleep(1.0)
                leader.start()
        await world.wait_leaders()
        writers.over = True
        await asyncio.gather(*running)
        assert len(writers.won) > 10
        content = (await world.alive()[0].read(A)).split(b";")[:-1]
        for record, payload in writers.won.items():
            assert content[record] + b";" == payload, "at the very tail that it named"
        assert len(set(content)) == len(content), "nothing is there twice"
        if keyed:
            assert len(writers.won) == len(content) - 1, "each record has a writer that knows it"
        await world.wait_equal()

    tell()


@story_of_an_upgrade
async def test_until_all_nodes_know_conditions_none_is_judged_and_nothing_applied(
    world: World,
) -> None:
    for profile in ("replicated", "diskless"):
        name = f"test/{profile}"
        await create(world, name, profile)
        leader = world.leader(world.group_of(name))
        for node in world.alive():
            assert node.engine.service.level == CONDITIONS_LEVEL - 1
            if profile == "diskless":
                continue  # refused by the front, before it would wait in a pack
            with pytest.raises(UpgradePending):
                await append_if(node, name, b"no;", 1)
        assert leader is not None
        assert (await leader.append(name, b"second;")).code == Code.OK
        assert await leader.read(name) == b"first;second;"
    world.release = CONDITIONS_LEVEL
    await world.wait(lambda: all(node.engine.service.level == 4 for node in world.alive()))
    for profile in ("replicated", "diskless"):
        for node in world.alive():
            reply = await append_if(node, f"test/{profile}", b"no;", 1)
            assert reply.code == Code.PRECONDITION
