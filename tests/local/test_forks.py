"""Forks across groups and cores: stitched reads from every tier, and a protocol that ends cleanly
wherever it is interrupted."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from polling import wait_for
from stories.service import node_story, story_on_one_and_two_cores
from worlds.service import Code, Listener, Node, World, json_batch, name_in, raw_batch

from polynya.base.errors import NotLeader, OutcomeUnknown, PolynyaError, Unavailable
from polynya.local import forks
from polynya.local.api import Page, Position, ReadQuery, Refusal, StreamInfo, TrimQuery
from polynya.stream.command import Command
from polynya.stream.features.forks.commands import PinSource
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.parts import Retention
from polynya.stream.replies import Reply

SOURCE, CHILD, GRANDCHILD = name_in(1), name_in(2), name_in(3)


@story_on_one_and_two_cores
async def test_a_fork_of_a_fork_reads_hot_and_cold_and_deleted_sources(world: World) -> None:
    await world.create(SOURCE)
    for number in range(6):
        await world.append(SOURCE, b"s%d;" % number)
    await world.service.flush(SOURCE)
    for number in range(6, 8):
        await world.append(SOURCE, b"s%d;" % number)
    assert (await world.fork(CHILD, SOURCE, (7, 21))).code == Code.CREATED
    for number in range(3):
        await world.append(CHILD, b"c%d;" % number)
    await world.service.flush(CHILD)
    assert (await world.fork(GRANDCHILD, CHILD, (9, 27))).code == Code.CREATED
    await world.append(GRANDCHILD, b"g;")
    await world.append(SOURCE, b"unseen")
    whole = b"s0;s1;s2;s3;s4;s5;s6;c0;c1;g;"
    for bytes_max in (1, 5, 7, 1000):
        assert await world.read(GRANDCHILD, bytes_max=bytes_max) == whole
    assert (await world.delete(SOURCE)).code == Code.OK
    assert (await world.delete(CHILD)).code == Code.OK
    assert await world.code_of(SOURCE) == await world.code_of(CHILD) == Code.GONE
    await world.service.flush("")
    assert await world.read(GRANDCHILD, bytes_max=4) == whole
    page = await world.page(GRANDCHILD, 5, 15, bytes_max=4)
    assert (page.begin_record, page.begin_byte, page.spans[0].payload) == (5, 15, b"s5;")


@pytest.mark.parametrize("cold", [False, True])
def test_sub_offsets_cut_raw_records_and_count_json_ones(cold: bool) -> None:
    async def run() -> None:
        world = World().start()
        await world.create(SOURCE)
        await world.create("test/json", json=True)
        for number in range(4):
            await world.append(SOURCE, b"record%d" % number)
            await world.append("test/json", b"%d" % number, b"[%d]" % number, json=True)
        if cold:
            await world.service.flush("")
        assert (
            await world.fork(CHILD, SOURCE, (1, 7), 10, batch=raw_batch(b"!"))
        ).code == Code.CREATED
        assert await world.read(CHILD) == b"record0record1rec!"
        info = await world.info(CHILD)
        assert isinstance(info, StreamInfo) and (info.record, info.byte) == (4, 18)
        assert (
            await world.fork("test/k", "test/json", (2, 6), 3, batch=json_batch(b"9"))
        ).code == Code.CREATED
        assert await world.read("test/k") == b"0,[0],1,[1],2,9,"
        assert (await world.fork("test/l", SOURCE, (3, 21), 8)).code == Code.SUB_OFFSET
        assert (await world.fork("test/m", "test/json", (7, 0), 2)).code == Code.SUB_OFFSET
        assert (await world.fork("test/n", SOURCE, (9, 0))).code == Code.OFFSET_BEYOND_TAIL
        await world.settle()
        pins = [
            stream.pins
            for machine in world.local.machines.values()
            for stream in machine.directory.streams.values()
            if stream.pins
        ]
        assert sorted(len(each) for each in pins) == [1, 1], "a rejected fork leaves no pin"
        await world.stop()

    asyncio.run(run())


@story_on_one_and_two_cores
async def test_a_fork_whose_body_was_read_as_what_its_source_was_before_is_refused(
    world: World,
) -> None:
    """Refuse a stale fork body: without a content type of its own it uses its source's, which may
    be re-created with another one."""
    await world.create(SOURCE, json=True)
    with pytest.raises(Unavailable, match="another content type"):
        await world.fork(CHILD, SOURCE, content_type="", batch=raw_batch(b"no JSON"))
    assert await world.code_of(CHILD) == Code.NOT_FOUND
    assert (
        await world.fork(CHILD, SOURCE, content_type="", batch=json_batch(b"1"))
    ).code == Code.CREATED
    await world.settle()
    assert await world.read(CHILD) == b"1,"


@story_on_one_and_two_cores
async def test_refused_forks_leave_nothing_and_repeats_are_the_same(world: World) -> None:
    await world.create(SOURCE)
    await world.append(SOURCE, b"x")
    assert (await world.fork(CHILD, "test/nothing")).code == Code.NOT_FOUND
    assert (
        await world.fork(CHILD, SOURCE, content_type="application/json")
    ).code == Code.CONTENT_TYPE
    assert (await world.fork(CHILD, SOURCE)).code == Code.CREATED
    assert (await world.fork(CHILD, SOURCE)).code == Code.EXISTS
    assert (await world.fork(CHILD, SOURCE, (0, 0))).code == Code.EXISTS_DIFFERENT
    await world.delete(SOURCE)
    assert (await world.fork(GRANDCHILD, SOURCE)).code == Code.GONE
    await world.delete(CHILD)

    async def is_gone() -> bool:
        return await world.code_of(SOURCE) == Code.NOT_FOUND

    await wait_for(is_gone, what="the last fork takes the source with it")


class CutService:
    """A service whose coordinator dies before or after its n-th step."""

    def __init__(self, world: World, step: int, *, after: bool) -> None:
        self.world = world
        self.left = step
        self.after = after

    def now_ms(self) -> int:
        return self.world.service.now_ms()

    def group_of(self, name: str) -> int:
        return self.world.service.group_of(name)

    async def read(self, query: ReadQuery) -> object:
        return await self.world.service.read(query)

    async def call(self, group: int, command: Command) -> Reply:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise asyncio.CancelledError
        reply = await self.world.service.call(group, command)
        if self.left == 0:
            raise asyncio.CancelledError
        return reply


class ChangedService(CutService):
    """A service whose source is trimmed, kept short or deleted right after the n-th step."""

    def __init__(self, world: World, step: int, change: str) -> None:
        super().__init__(world, step, after=True)
        self.change = change

    async def call(self, group: int, command: Command) -> Reply:
        self.left -= 1
        reply = await self.world.service.call(group, command)
        if self.left == 0:
            await self._change()
        return reply

    async def _change(self) -> None:
        service = self.world.service
        if self.change == "trim":
            assert not isinstance(await service.trim(TrimQuery(SOURCE, 6, 18)), Refusal)
        elif self.change == "retain":
            await service.call(
                service.group_of(SOURCE),
                SetRetention(SOURCE, Retention(None, 0), service.now_ms(), 0),
            )
            assert [await self.world.engine.retainer.run_once() for _ in range(2)] == [0, 1], (
                "a round begins with the second pass"
            )
        else:
            assert (await self.world.delete(SOURCE)).code == Code.OK
        await self.world.snapshot()


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("change", ["trim", "retain", "delete"])
@pytest.mark.parametrize("cold", [0, 4, 6])
def test_a_source_that_changes_between_two_steps_loses_nothing_that_the_fork_inherits(
    step: int, change: str, cold: int
) -> None:
    """Change the source between two steps. `cold`: the number of its six records in the object
    store."""

    async def run() -> None:
        world = World().start()
        await world.create(SOURCE)
        for number in range(6):
            if number == cold:
                await world.service.flush(SOURCE)
            await world.append(SOURCE, b"s%d;" % number)
        if cold == 6:
            await world.service.flush(SOURCE)
        created = await forks.create_fork(
            ChangedService(world, step, change), world.create_of(CHILD), SOURCE, (6, 18, 0)
        )  # type: ignore[arg-type]
        assert created.code == Code.CREATED
        world.clock.ms += 100_000
        await world.collector.collect()
        assert await world.read(CHILD) == b"s0;s1;s2;s3;s4;s5;"
        world.kill()
        assert await world.read(CHILD) == b"s0;s1;s2;s3;s4;s5;"
        await world.delete(CHILD)
        await world.settle()
        machines = world.local.machines.values()
        assert not any(machine.directory.hot_bytes or machine.packs.held for machine in machines), (
            "what only the fork needed goes with it"
        )
        await world.stop()

    asyncio.run(run())


NOTHING_PINNED = ((1, False), (3, True))  # or nothing pinned any more


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("refused", [False, True])
def test_a_coordinator_dies_between_any_two_steps(
    step: int, after: bool, restart: bool, refused: bool
) -> None:
    from polynya.local.forks import create_fork

    async def run() -> None:
        world = World().start()
        await world.create(SOURCE)
        await world.append(SOURCE, b"abc")
        if refused:
            await world.create(CHILD, json=True)
        create = world.create_of(CHILD)
        with pytest.raises(asyncio.CancelledError):
            await create_fork(CutService(world, step, after=after), create, SOURCE, (-1, 0, 0))  # type: ignore[arg-type]
        if restart:
            world.clock.ms += 1
            world.kill()
        world.clock.ms += 11_000
        if not restart:
            await world.engine.outbox_sender.sweep()
            pinned = any(machine.forks.unconfirmed for machine in world.local.machines.values())
            assert pinned == ((step, after) not in NOTHING_PINNED), (
                "its coordinator may only be slow"
            )
            world.clock.ms += 50_000
        await world.engine.outbox_sender.sweep()
        await world.settle()
        machines = world.local.machines.values()
        assert not any(machine.forks.unconfirmed for machine in machines)
        created = await world.code_of(CHILD) == 0 and not refused
        assert created == (not refused and (step == 3 or (step == 2 and after)))
        pins = [
            pin
            for machine in machines
            for stream in machine.directory.streams.values()
            for pin in (stream.pins or {}).values()
        ]
        assert len(pins) == created
        if created:
            assert await world.read(CHILD) == b"abc"
            await world.delete(CHILD)
        await world.delete(SOURCE)
        await world.settle()
        assert await world.code_of(SOURCE) == Code.NOT_FOUND
        await world.stop()

    asyncio.run(run())


class FailingService(CutService):
    """One step fails, with or without effect."""

    def __init__(self, world: World, step: int, fault: PolynyaError) -> None:
        super().__init__(world, step, after=False)
        self.fault = fault

    async def call(self, group: int, command: Command) -> Reply:
        self.left -= 1
        if self.left == 0:
            if isinstance(self.fault, OutcomeUnknown):
                await self.world.service.call(group, command)
            raise self.fault
        return await self.world.service.call(group, command)


@pytest.mark.parametrize(("step", "fault", "raised"), [
    (2, Unavailable("no"), Unavailable),
    (2, OutcomeUnknown("?"), OutcomeUnknown),
    (3, Unavailable("no"), OutcomeUnknown),
    (3, OutcomeUnknown("?"), OutcomeUnknown),
])  # fmt: skip
def test_what_the_client_is_told_when_a_step_fails(
    step: int, fault: PolynyaError, raised: type[PolynyaError]
) -> None:
    """Unavailable only when no fork was made."""
    from polynya.local.forks import create_fork

    async def run() -> None:
        world = World().start()
        await world.create(SOURCE)
        with pytest.raises(raised):
            await create_fork(
                FailingService(world, step, fault), world.create_of(CHILD), SOURCE, (-1, 0, 0)
            )  # type: ignore[arg-type]
        assert (await world.code_of(CHILD) == 0) == (raised is OutcomeUnknown)
        await world.stop()

    asyncio.run(run())


async def put_that_waits() -> tuple[World, asyncio.Future[Reply]]:
    """Start a PUT of a fork whose source was deleted while an abandoned attempt had pinned it."""
    world = World().start()
    await world.create(SOURCE)
    with pytest.raises(asyncio.CancelledError):
        await forks.create_fork(
            CutService(world, 1, after=True), world.create_of(CHILD), SOURCE, (-1, 0, 0)
        )  # type: ignore[arg-type]
    await world.delete(SOURCE)
    put = world.send(world.create_of(SOURCE))
    await world.engine.core.drain()
    return world, put


def test_a_put_on_the_deleted_source_waits_for_the_outcome_of_an_attempt() -> None:
    async def run() -> None:
        world, put = await put_that_waits()
        assert not put.done()
        world.clock.ms += 61_000
        await world.engine.outbox_sender.sweep()
        assert (await put).code == Code.CREATED
        await world.stop()

    asyncio.run(run())


def test_a_put_that_waits_for_an_attempt_is_asked_elsewhere_when_its_group_leaves() -> None:
    """Redirect the PUT: the group may also continue from another node's state with the outcome in
    it, which no command applied here reports."""

    async def run() -> None:
        world, put = await put_that_waits()
        group = world.service.group_of(SOURCE)
        world.local.put(group % world.groups + 1, world.local.machines[group % world.groups + 1])
        assert not put.done(), "that is another group"
        world.local.put(group, world.local.machines[group])
        with pytest.raises(NotLeader):
            await put
        await world.stop()

    asyncio.run(run())


def test_outboxes_are_delivered_after_a_restart_and_once_the_disk_has_room() -> None:
    async def run() -> None:
        world = World().start()
        await world.create(SOURCE)
        await world.fork(CHILD, SOURCE)
        await world.delete(SOURCE)
        world.engine.core.after_turn.clear()  # the process dies before it sends anything
        await world.delete(CHILD)
        assert world.local.machines[2].outbox.messages
        world.kill()
        world.engine.core.after_turn.clear()
        room, world.disk.capacity = world.disk.capacity, world.disk.used()
        while (await world.create(GRANDCHILD)).code != Code.DISK_FULL:
            await world.delete(GRANDCHILD)
        await world.engine.outbox_sender.sweep()
        await world.engine.core.drain()
        assert world.local.machines[2].outbox.messages and world.engine.outbox_sender.failures
        world.disk.capacity = room
        await world.settle()
        assert await world.code_of(SOURCE) == Code.NOT_FOUND
        await world.stop()

    asyncio.run(run())


def test_a_page_whose_pack_is_gone_is_planned_again_for_forks_too() -> None:
    async def run() -> None:
        from polynya.cold import PackGone

        world = World().start()
        await world.create(SOURCE)
        await world.append(SOURCE, b"abc")
        await world.fork(CHILD, SOURCE)
        await world.service.flush("")
        batches, failures = world.reader.batches, [PackGone("gone"), PackGone("gone")]

        async def gone_once(cold: object) -> object:
            if failures:
                raise failures.pop()
            return await batches(cold)  # type: ignore[arg-type]

        world.reader.batches = gone_once  # type: ignore[method-assign, assignment]
        del failures[1:]
        assert await world.read(CHILD) == b"abc"
        await world.stop()

    asyncio.run(run())


@story_on_one_and_two_cores
async def test_what_a_fork_cuts_off_and_its_own_body_are_together_no_more_than_one_append(
    world: World,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "APPEND_BYTES_MAX", 100)
        await world.create(SOURCE)
        await world.append(SOURCE, b"x" * 91)
        refused = await world.fork(CHILD, SOURCE, (0, 0), 90, batch=raw_batch(b"y" * 11))
        assert refused.code == Code.TOO_LARGE
        assert await world.code_of(CHILD) == Code.NOT_FOUND
        assert (
            await world.fork(CHILD, SOURCE, (0, 0), 90, batch=raw_batch(b"y" * 10))
        ).code == Code.CREATED
    info = await world.info(CHILD)
    assert isinstance(info, StreamInfo) and (info.record, info.byte) == (2, 100)
    assert (await world.delete(SOURCE)).code == Code.OK
    assert (await world.delete(CHILD)).code == Code.OK
    await world.settle()
    assert await world.code_of(SOURCE) == Code.NOT_FOUND, "no pin of the refused one holds it"


@node_story
async def test_a_source_on_a_core_that_is_away_refuses_and_comes_back(node: Node) -> None:
    here = node.worlds[0]
    await here.create(SOURCE)
    await here.append(SOURCE, b"abc")
    assert (await here.fork(CHILD, SOURCE)).code == Code.CREATED
    await node.kill_core(1)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await here.read(CHILD)
    assert not isinstance(await here.info(CHILD), Refusal)
    await node.start_core(1)
    await node.wait_connected()
    assert await here.read(CHILD) == b"abc"
    assert isinstance(await here.service.open(CHILD).attach(Listener()), StreamInfo)


@pytest.mark.parametrize("then", ["trimmed", "deleted", "shorter", "anew"])
def test_a_source_that_changes_while_its_fork_point_is_looked_for(then: str) -> None:
    """The point lies in a pack: the coordinator reads, and the source is trimmed, deleted, or
    another one: a shorter one by the second read, or any by the time it pins."""

    async def run() -> None:
        world = World().start()
        await world.create(SOURCE)
        for number in range(6):
            await world.append(SOURCE, b"s%d;" % number)
        await world.service.flush(SOURCE)
        read, call, reads = world.service.read, world.service.call, list[ReadQuery]()

        async def change() -> None:
            if then == "trimmed":
                await world.service.trim(TrimQuery(SOURCE, 5, 15))
                return
            assert (await world.delete(SOURCE)).code == Code.OK
            if then != "deleted":
                await world.create(SOURCE)
            if then == "anew":
                for number in range(6):
                    await world.append(SOURCE, b"another%d;" % number)

        async def read_late(query: ReadQuery) -> Page | Refusal:
            reads.append(query)
            if len(reads) == 2 and then != "anew":
                world.service.read = read  # type: ignore[method-assign]
                await change()
            return await read(query)

        async def call_late(group: int, command: Command) -> Reply:
            if isinstance(command, PinSource) and command.resolved and then == "anew":
                await change()
            return await call(group, command)

        world.service.read, world.service.call = read_late, call_late  # type: ignore[method-assign]
        if then == "anew":
            with pytest.raises(Unavailable, match="recreated"):
                await world.fork(CHILD, SOURCE, (2, 6))
            world.service.read, world.service.call = read, call  # type: ignore[method-assign]
            assert (await world.fork(CHILD, SOURCE, (2, 18))).code == Code.CREATED
            assert await world.read(CHILD) == b"another0;another1;"
        elif then == "shorter":
            with pytest.raises(Unavailable, match="recreated"):
                await world.fork(CHILD, SOURCE, (2, 6))
        else:
            code = {"trimmed": Code.TRIMMED, "deleted": Code.NOT_FOUND}[then]
            assert (await world.fork(CHILD, SOURCE, (2, 6))).code == code
        await world.settle()
        pins = [
            stream.pins
            for machine in world.local.machines.values()
            for stream in machine.directory.streams.values()
            if stream.pins
        ]
        assert len(pins) == (then == "anew"), "what was refused leaves no pin"
        await world.stop()

    asyncio.run(run())


@pytest.mark.parametrize("at", [(0, 0), (Position.AT_BYTE, 3)])
def test_a_page_of_a_fork_that_is_trimmed_meanwhile_does_not_begin_behind_what_was_asked_for(
    at: tuple[int, int],
) -> None:
    """Trim the fork while a page is read: the source drops inherited records that the fork no
    longer needs."""

    async def run() -> None:
        world = World().start()
        await world.create(SOURCE)
        for number in range(6):
            await world.append(SOURCE, b"s%d;" % number)
        assert (await world.fork(CHILD, SOURCE, (4, 12))).code == Code.CREATED
        await world.append(CHILD, b"c0;")
        sources = world.local.reads.parents
        assert sources is not None
        read_uid = sources.read_uid

        async def later(*arguments: Any, **more: Any) -> Any:
            await world.service.trim(TrimQuery(CHILD, 4, 12))
            await world.service.trim(TrimQuery(SOURCE, 5, 15))
            await world.settle()
            return await read_uid(*arguments, **more)

        with patch.object(sources, "read_uid", later):
            found = await world.service.read(ReadQuery(CHILD, *at))
        assert isinstance(found, Refusal) and found.code == Code.TRIMMED
        assert await world.read(CHILD) == b"c0;"
        await world.stop()

    asyncio.run(run())
