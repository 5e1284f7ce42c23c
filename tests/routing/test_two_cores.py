"""Two cores of a node: lists and flushes over both, and the pending messages of one while the
other is down."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from stories.service import node_story
from worlds.service import Code, Node, name_in

from polynya.base.errors import OutcomeUnknown, Unavailable

HERE, THERE = name_in(2), name_in(1)  # of core 0, of core 1


@node_story
async def test_either_core_lists_flushes_and_answers_for_both(node: Node) -> None:
    names = sorted(f"test/{number:02d}" for number in range(20))
    for number, name in enumerate(names):
        world = node.worlds[number % 2]
        assert (await world.create(name)).code == Code.CREATED
        await world.append(name, b"%d" % number)
    for world in node.worlds:
        assert [info.name for info in await world.service.list_streams("test/", "", 100)] == names
        assert [
            info.name for info in await world.service.list_streams("test/", names[3], 5)
        ] == names[4:9]
        assert [await world.read(name) for name in names] == [
            b"%d" % number for number in range(20)
        ]
    await node.worlds[1].service.flush("test/0")
    left = {
        name
        for world in node.worlds
        for machine in world.local.machines.values()
        for name, s in machine.directory.streams.items()
        if s.hot
    }
    assert left == set(names[10:])
    await node.worlds[0].service.flush("")
    assert all(world.hot_bytes == 0 for world in node.worlds)
    assert [await node.worlds[1].read(name) for name in names] == [
        b"%d" % number for number in range(20)
    ]


@node_story
async def test_a_forks_end_reaches_its_source_when_that_core_is_back(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE)
    assert (await here.fork(HERE, THERE)).code == Code.CREATED
    await here.delete(THERE)
    await node.kill_core(1)
    assert (await here.delete(HERE)).code == Code.OK
    with pytest.raises(Unavailable):
        await here.service.flush("")
    assert any(machine.outbox.messages for machine in here.local.machines.values())
    await node.start_core(1)
    await node.wait_connected()
    await node.settle()
    assert await here.code_of(THERE) == Code.NOT_FOUND
    assert not any(
        machine.directory.streams
        for world in node.worlds
        for machine in world.local.machines.values()
    )
    assert there.engine.outbox_sender.failures == 0


@node_story
async def test_a_coordinator_whose_sources_core_dies_leaves_a_pin_that_is_settled(
    node: Node,
) -> None:
    here, there = node.worlds
    await here.create(THERE)
    forking = asyncio.create_task(here.fork(HERE, THERE))
    while not any(machine.forks.unconfirmed for machine in there.local.machines.values()):
        await asyncio.sleep(0)
    await node.restart_core(1)
    outcome = (await asyncio.gather(forking, return_exceptions=True))[0]
    assert isinstance(outcome, (Unavailable, OutcomeUnknown)) or outcome.code == Code.CREATED  # type: ignore[union-attr]
    here.clock.ms += 61_000
    await there.engine.outbox_sender.sweep()
    machines = [machine for world in node.worlds for machine in world.local.machines.values()]
    assert not any(machine.forks.unconfirmed for machine in machines)
    pins = sum(
        len(stream.pins or ())
        for machine in machines
        for stream in machine.directory.streams.values()
    )
    assert pins == (await here.code_of(HERE) == 0)


@node_story
async def test_a_command_for_a_core_that_dies_is_unknown_or_not_applied_but_never_lost(
    node: Node,
) -> None:
    here = node.worlds[0]
    await here.create(THERE)
    acknowledged = 0
    for _ in range(5):
        sent = [here.send(here.append_of(THERE, b"x")) for _ in range(20)]
        for _ in range(3):
            await asyncio.sleep(0)
        await node.restart_core(1)
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(
            not isinstance(outcome, BaseException)
            or isinstance(outcome, (Unavailable, OutcomeUnknown))
            for outcome in outcomes
        )
        acknowledged += sum(not isinstance(outcome, BaseException) for outcome in outcomes)
    content = await here.read(THERE)
    assert acknowledged <= len(content) <= 100


@node_story
async def test_a_forwarded_append_is_stamped_by_its_owner(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE)
    await here.send(
        msgspec.structs.replace(here.append_of(THERE, b"x"), now_ms=here.clock.ms - 5000)
    )
    stream = there.local.machines[there.service.group_of(THERE)].directory.streams[THERE]
    assert stream.hot is not None and stream.hot[0].time_ms == stream.activity_ms == there.clock.ms


@pytest.mark.parametrize("changes", [False, True])
def test_what_changes_something_on_a_core_that_dies_is_not_called_refused(changes: bool) -> None:
    kind = 99

    @node_story
    async def story(node: Node) -> None:
        here, there = node.worlds
        asked = asyncio.Event()

        async def hang(question: int) -> int:
            asked.set()
            await asyncio.Event().wait()
            return question

        for world in node.worlds:
            world.service.rpc.serve(kind, int, int, hang)
        waiting = asyncio.create_task(
            here.service.rpc.at_home(there.service.group_of(THERE), kind, 1, hang, changes=changes)
        )
        await asked.wait()
        await node.kill_core(1)
        with pytest.raises(OutcomeUnknown if changes else Unavailable):
            await waiting

    story()
