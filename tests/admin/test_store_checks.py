"""Checks of a cluster's store through one node: the leader of each group answers, despite losses
and moves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from sim import tier as sim_tier
from sim.clock import WALL_MS
from sim.cluster import GROUPS, Node, World
from sim.store import SimStore
from sim.tier import COLLECT, chance_of
from stories.cluster import A, led, stories

from polynya.admin.store_checks import StoreChecks
from polynya.base.errors import Unavailable
from polynya.cli.storage.cluster_store import WholeStore, spelled_groups
from polynya.cli.terminal import exits
from polynya.client.http import Options
from polynya.cold import Collector, PackVerifier, verifier
from polynya.front.http.protocol.extension import Request
from polynya.stream.features.packs.commands import PackWritten, ReleasePack
from polynya.tiering.copy_verifier import CopyVerifier
from polynya.tiering.store_health import StorePatience

NAMES = (A, "test/b", "test/c", "test/d", "test/e")


class Asked:
    """The admin port of a node, in place of `Client`: requests go to the checks of that node."""

    options = Options(servers=("http://127.0.0.1:1",))

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.posted: list[str] = []
        self.on_post: Any = None
        self.checks: dict[tuple[int, int], StoreChecks] = {}
        for node in world.alive():
            self.arm(node)

    def arm(self, node: Node) -> None:
        assert self.world.store is not None
        store, groups = (
            self.world.store.on(node.number, lambda verb, moment: False),
            node.engine.groups,
        )
        more = {"packs_prefix": "x/", "in_flight": set(), "owns_root": None, "sweep_deletes": False}
        tier: Any = SimpleNamespace(
            verifier=PackVerifier(groups, store),
            copy_verifier=CopyVerifier(store, (sim_tier.CLUSTER, self.world.history)),
            collector=Collector(groups, store, COLLECT, **more),
        )
        self.checks[node.number, node.life] = StoreChecks(node.engine.service, tier)

    async def send_on(
        self, wire: object, method: str, path: str, *, body: object, seconds: float
    ) -> httpx.Response:
        verb = path.rpartition("/")[2]
        self.posted.append(verb)
        if self.on_post is not None:
            await self.on_post(verb)
        node = self.world.nodes[self.number]
        request = Request(method, path, (verb,), {}, {}, msgspec.json.encode(body), "")
        try:
            answer = await self.checks[node.number, node.life].handle(request)
        except Unavailable as fault:
            return httpx.Response(
                503, json={"error": {"code": "UNAVAILABLE", "message": str(fault)}}
            )
        return httpx.Response(answer.status, content=answer.body)

    def refused(self, answer: httpx.Response) -> exits.Ended:
        return exits.Busy(answer.json()["error"]["message"])


async def begun() -> tuple[World, Asked]:
    """Streams of both groups in packs, which node 1 is asked about."""
    loop = asyncio.get_running_loop()
    world, _ = await led(
        World(store=SimStore(1, lambda: int(loop.time() * 1000) + WALL_MS - 1_000_000))
    )
    for name in NAMES:
        if name != A:
            await world.nodes[1].create(name)
        await world.nodes[1].append(name, b"x" * 100)
    await world.wait(
        lambda: (
            not any(
                machine.directory.hot_bytes
                for node in world.alive()
                for machine in node.core.led.values()
            )
        )
    )
    return world, Asked(world, 1)


@pytest.fixture(autouse=True)
def a_pack_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(verifier, "PART_PACKS", 1)
    # else who is refused hands over what it leads, and others look
    monkeypatch.setattr(sim_tier, "PATIENCE", StorePatience(persists=600.0))
    with chance_of(1):
        yield


story = stories(begun)


async def look(
    asked: Asked, verb: str = "verify"
) -> tuple[list[dict[str, Any]], WholeStore, list[tuple[list[int], str]]]:
    heard: list[dict[str, Any]] = []
    question = {} if verb == "verify" else {"dry_run": True}
    whole = WholeStore(asked, verb, question, heard.append)  # type: ignore[arg-type]
    unseen = await whole.look()
    return heard, whole, [(each.groups, each.why) for each in unseen]


def slices(world: World) -> int:
    """Count the slices that the current leaders name."""
    led = [machine for node in world.alive() for machine in node.core.led.values()]
    return sum(
        len(list(machine.packs.whole_index_of(stream)))
        for machine in led
        for stream in machine.directory.streams.values()
    )


def faults(heard: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {
        (fault["kind"], name)
        for part in heard
        for fault in part["faults"]
        for name in fault["streams"]
    }


def needed_by(world: World, name: str) -> str:
    group = world.group_of(name)
    leader = world.leader(group)
    assert leader is not None
    machine = leader.core.led[group]
    return next(iter(machine.packs.whole_index_of(machine.directory.streams[name]))).pack


@story
async def test_any_node_has_all_groups_looked_at(world: World, asked: Asked) -> None:
    for number in (1, 2, 3):
        asked.number = number
        heard, whole, unseen = await look(asked)
        assert (unseen, whole.done, whole.total) == ([], GROUPS + 1, GROUPS + 1)
        assert sum(part["slices"] for part in heard) == slices(world) >= len(NAMES)
        assert not faults(heard)
    heard, _, unseen = await look(asked, "sweep")
    assert unseen == [] and sum(part["count"] for part in heard) == 0


@story
async def test_what_is_damaged_is_found_wherever_it_is_led(world: World, asked: Asked) -> None:
    assert world.store is not None
    groups = {world.group_of(name): name for name in NAMES}
    assert len(groups) == GROUPS, "the names are of all groups"
    for name in groups.values():
        del world.store.objects[needed_by(world, name)]
    heard, _, unseen = await look(asked)
    assert unseen == [] and {("missing", name) for name in groups.values()} <= faults(heard)


@story
async def test_groups_are_looked_at_though_their_leader_dies_meanwhile(
    world: World, asked: Asked
) -> None:
    group = world.group_of(A)
    asked.number = next(node.number for node in world.alive() if node is not world.leader(group))
    named = slices(world)

    async def lose(verb: str) -> None:
        leader = world.leader(group)
        if asked.posted.count("verify") == 1 and leader is not None and len(world.alive()) == 3:
            leader.kill()

    asked.on_post = lose
    heard, whole, unseen = await look(asked)
    assert len(world.alive()) == 2 and unseen == [] and whole.done == GROUPS + 1
    assert sum(part["slices"] for part in heard) == named, "nothing twice, nothing left out"
    assert not faults(heard)


@story
async def test_groups_that_nobody_leads_are_named_with_the_nodes_that_are_away(
    world: World, asked: Asked
) -> None:
    world.nodes[2].kill()
    world.nodes[3].kill()
    await world.wait(lambda: not world.nodes[1].core.led)
    heard, whole, unseen = await look(asked)
    assert heard == [] and whole.done == 0
    ((groups, why),) = unseen
    assert (
        groups == list(range(GROUPS + 1))
        and why == "no leader; of nodes 1, 2, 3 the one asked is not connected to 2, 3"
    )


@story
async def test_a_store_that_refuses_one_node_is_said_with_the_node(
    world: World, asked: Asked
) -> None:
    assert world.store is not None
    leader = world.leader(world.group_of(A))
    assert leader is not None
    world.store.refused.add(leader.number)
    heard, _, unseen = await look(asked)
    assert unseen == [
        (
            [world.group_of(A)],
            f"node {leader.number}: the object store cannot be read: 403 Forbidden",
        )
    ]
    assert sum(part["slices"] for part in heard) > 0


@story
async def test_a_pack_that_a_group_led_elsewhere_never_got_is_let_go_of(
    world: World, asked: Asked
) -> None:
    """Lose a publication in a crash; different nodes lead the two groups now."""
    owner_group, other = (
        world.group_of(name)
        for name in (A, next(name for name in NAMES if world.group_of(name) != world.group_of(A)))
    )
    first = world.leader(owner_group)
    assert first is not None
    await world.wait(lambda: world.leader(other))
    if world.leader(other) is first:
        first.core.transfer(other, first.number % 3 + 1)
        await world.wait(lambda: world.leader(other) not in (None, first))
    service, key = first.engine.service, f"x/packs/h/{owner_group}-{'0' * 32}"
    held = needed_by(world, next(name for name in NAMES if world.group_of(name) == other))
    for pack in (key, held):
        await service.call(owner_group, PackWritten(pack, [other], service.now_ms()))
    await asyncio.sleep(COLLECT.settle_after_ms / 1000 + 1)
    collector = asked.checks[first.number, first.life]._tier.collector  # type: ignore[union-attr]
    await collector._settle_elsewhere()
    led = world.leader(other)
    assert led is not None
    machine = led.core.led[other]
    assert list(machine.packs.released) == [key], "what it holds it keeps"
    assert [
        (group, command)
        for group, command in machine.outbox.messages.values()
        if isinstance(command, ReleasePack)
    ] == [(owner_group, ReleasePack(key, other, machine.counters.log_ms))]
    assert collector.counters.failures == 0


def test_groups_are_spelled_in_runs() -> None:
    assert spelled_groups([3]) == "group 3"
    assert spelled_groups([9, 4, 5, 6, 0]) == "groups 0, 4-6 and 9"
