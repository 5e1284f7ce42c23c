"""Eviction of idle streams, invisible to clients."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from worlds.cold import FaultyStore
from worlds.service import IDLE_MS, World

from polynya.base.errors import Unavailable
from polynya.base.limits import EVICT_STATE_BYTES_MAX, RECALL_ENTRY_BYTES, SNAPSHOT_GRACE_MS
from polynya.base.names import companion_of, group_of
from polynya.cold import Merger, MergeSettings
from polynya.cold.rewriting import merger
from polynya.local import rehydration
from polynya.local.api import Position, ReadQuery, Refusal, StreamInfo, Trimmed, TrimQuery
from polynya.objectstore import MemoryStore
from polynya.service.fork_snapshots import inherit_snapshots
from polynya.service.snapshot_sweep import sweep_snapshots
from polynya.service.snapshots import ANY_BYTE, Body, Staged, body_of, boundary_of, drop, stage
from polynya.service.snapshots import publish as publish_snapshot
from polynya.stream.command import Command
from polynya.stream.features.pages.commands import Evict, Return
from polynya.stream.features.retention.commands import BucketRetention
from polynya.stream.features.subscriptions.commands import LinkSubscription
from polynya.stream.parts import Producer, Retention
from polynya.stream.replies import Code, Done, Reply
from polynya.subscriptions.links import SubscriptionLinks
from polynya.transport.link import FRAME_BYTES_MAX

NAMES = [f"test/s{number}" for number in range(8)]


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World(store=FaultyStore()).start()
        try:
            await story(world)
        finally:
            assert not world.faults
            await world.stop()

    asyncio.run(run())


async def filled(world: World) -> None:
    """Streams with two records each, the second of a producer, all evicted."""
    for name in NAMES:
        await world.create(name)
        await world.append(name, b"one;")
        await world.append(name, b"two;", producer=Producer("p", 0, 0))
    assert await world.evict() == len(NAMES)
    assert world.evicted == set(NAMES)
    assert not any(machine.directory.streams for machine in world.local.machines.values())


async def collected(world: World) -> set[str]:
    """The objects that are left when everything was released that can be."""
    store = world.store
    assert isinstance(store, MemoryStore)
    for _ in range(3):
        await world.settle()
        await world.snapshot()
        world.clock.ms += 100_000
        await world.collector.collect()
    return set(store.objects)


def test_what_an_evicted_stream_answers_is_what_it_answered() -> None:
    async def story(world: World) -> None:
        for name in NAMES:
            await world.create(name)
            await world.append(name, b"one;", stream_seq="5")
            await world.append(name, b"two;", producer=Producer("p", 0, 0))
        before = [await world.info(name) for name in NAMES]
        assert await world.evict() == len(NAMES)
        assert [await world.info(name) for name in NAMES] == before
        assert await world.service.list_streams("test/", "", 100) == sorted(
            before, key=lambda info: info.name
        )  # type: ignore[union-attr]
        assert await world.read(NAMES[0]) == b"one;two;"
        assert await world.read(NAMES[1], bytes_max=3) == b"one;two;"
        tail = world.local.reads.read_nowait(
            group_of(NAMES[2], world.groups), ReadQuery(NAMES[2], Position.NOW)
        )
        assert tail is not None and tail.record == 2  # without its state
        assert world.evicted == set(NAMES), "no read brings a stream back"
        again = await world.append(NAMES[0], b"two;", producer=Producer("p", 0, 0))
        assert (again.code, again.first_record) == (Code.DUPLICATE, 1)
        assert (
            await world.append(NAMES[1], b"three;", producer=Producer("p", 0, 2))
        ).code == Code.PRODUCER_GAP
        assert (await world.append(NAMES[2], b"three;", stream_seq="4")).code == Code.SEQ_REGRESSION
        assert (await world.create(NAMES[3])).code == Code.EXISTS
        assert (await world.create(NAMES[4], json=True)).code == Code.EXISTS_DIFFERENT
        assert (await world.append(NAMES[5], b"three;")).record == 3
        assert await world.read(NAMES[5]) == b"one;two;three;"
        assert world.evicted == set(NAMES[6:])
        await world.flusher.flush_now()
        assert await world.evictor.evict_due() == 0, (
            "those that only came back stay for as long as one that was written to"
        )
        assert await world.evict() == 6

    play(story)


def test_appends_that_wait_for_a_stream_go_on_in_their_order() -> None:
    async def story(world: World) -> None:
        await filled(world)
        sent = [
            world.send(world.append_of(NAMES[0], b"%d" % number, producer=Producer("p", 0, number)))
            for number in range(1, 6)
        ]
        assert [(await each).code for each in sent] == [Code.OK] * 5
        assert await world.read(NAMES[0]) == b"one;two;12345"
        assert world.states.counters.loads == 1

    play(story)


def test_who_waits_for_a_stream_that_comes_and_goes_again_meanwhile() -> None:
    async def story(world: World) -> None:
        await filled(world)
        recalls_, gate, loads = world.local.rehydration, asyncio.Event(), 0
        load, faults = recalls_._load, list[object]()
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context)
        )

        async def slow(group: int, name: str) -> tuple[str, int, bytes] | None:
            nonlocal loads
            loads += 1
            if loads == 1:
                await gate.wait()
            return await load(group, name)

        recalls_._load = slow  # type: ignore[method-assign]
        sent = world.send(world.append_of(NAMES[0], b"three;"))
        await asyncio.sleep(0)
        await recalls_.bring(group_of(NAMES[0], world.groups), NAMES[:1])  # for another command
        assert await world.evict() == 1
        tasks = list(recalls_._tasks)
        gate.set()
        assert (await sent).code == Code.OK
        await asyncio.gather(*tasks)
        await world.engine.core.drain()
        assert not faults
        assert not recalls_._queues and not recalls_._waiting_bytes
        assert await world.read(NAMES[0]) == b"one;two;three;"

    play(story)


def test_states_come_back_in_entries_that_are_not_too_large() -> None:
    names = [f"test/{{x}}{number}" for number in range(2 * rehydration.LOADS_AT_ONCE + 1)]

    async def story(world: World) -> None:
        for name in names:
            await world.create(name)
        assert await world.evict() == len(names)
        entries: list[int] = []
        propose = world.local.rehydration._propose

        def noting(group: int, command: Command, done: Done) -> None:
            assert isinstance(command, Return)
            entries.append(len(command.states))
            propose(group, command, done)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.local.rehydration, "_propose", noting)
            patch.setattr(rehydration, "RECALL_ENTRY_BYTES", 1)
            await world.local.rehydration.bring(group_of(names[0], world.groups), names)
        assert entries == [rehydration.LOADS_AT_ONCE, rehydration.LOADS_AT_ONCE, 1]
        assert not world.evicted
        assert (
            rehydration.LOADS_AT_ONCE * EVICT_STATE_BYTES_MAX + RECALL_ENTRY_BYTES < FRAME_BYTES_MAX
        ), "the largest fits into a message"

    play(story)


def test_an_eviction_that_overtakes_requests_is_not_seen() -> None:
    async def story(world: World) -> None:
        await world.create("test/{x}a")
        await world.create("test/{x}b")
        world.clock.ms += IDLE_MS
        overtaken, applied, propose = 0, world.engine.core.on_applied, world.engine.groups.propose
        sent: list[asyncio.Future[Reply]] = []

        def note(group: int, command: Command, reply: Reply) -> None:
            nonlocal overtaken
            overtaken += reply.code == Code.EVICTED
            applied(group, command, reply)

        async def with_others(group: int, command: Command) -> Reply:
            """An eviction, with requests right behind it in the log, and others when it is
            applied."""
            if not isinstance(command, Evict) or sent:
                return await propose(group, command)
            eviction = asyncio.ensure_future(propose(group, command))
            for _ in range(2):
                await asyncio.sleep(0)
                for number in range(3):
                    sequence = len(sent)
                    sent.append(
                        world.send(
                            world.append_of(
                                "test/{x}a", b"%d" % number, producer=Producer("p", 0, sequence)
                            )
                        )
                    )
            sent.append(world.send(world.create_of("test/{x}b")))
            return await eviction

        world.engine.core.on_applied, world.engine.core.watched = note, (0,)
        world.engine.groups.propose = with_others  # type: ignore[method-assign]
        await world.evictor.evict_due()
        assert [(await each).code for each in sent] == [Code.OK] * 6 + [Code.EXISTS]
        assert world.local.rehydration.counters.returned == 2
        assert not overtaken, "none reaches the log before it is decided"
        assert not world.local.rehydration.racing
        assert await world.read("test/{x}a") == b"012012"

    play(story)


def test_a_stream_that_has_changed_since_its_state_was_written_stays() -> None:
    """Keep the stream also when it is cold again by then: the state in the block lacks the last
    records."""

    async def story(world: World) -> None:
        changed, idle = "test/{x}a", "test/{x}b"  # in one block
        for name in (changed, idle):
            await world.create(name)
            await world.append(name, b"one;")
        await world.flusher.flush_now()
        world.clock.ms += IDLE_MS
        write = world.evictor._steps.write

        async def written_late(*block: Any) -> None:
            await write(*block)
            world.evictor._steps.write = write  # type: ignore[method-assign]
            await world.append(changed, b"two;")
            await world.flusher.flush_now()

        world.evictor._steps.write = written_late  # type: ignore[method-assign]
        assert await world.evictor.evict_due() == 1
        assert world.evicted == {idle} and world.evictor.counters.refused == 1
        assert [await world.read(name) for name in (changed, idle)] == [b"one;two;", b"one;"]

    play(story)


def test_a_late_eviction_does_not_overtake_what_comes_behind_a_return() -> None:
    """Seed 238 of the swarm: the leader of before names in its own block a stream that is evicted
    already, and on its way back."""

    async def story(world: World) -> None:
        await world.create("test/{x}a")
        await world.create("test/{x}b")  # that keeps the block
        world.clock.ms += IDLE_MS
        propose, call = world.local.rehydration._propose, world.engine.groups.propose
        evictions: list[tuple[int, Evict]] = []
        late: list[asyncio.Future[Reply]] = []

        async def noted(group: int, command: Command) -> Reply:
            if isinstance(command, Evict):
                evictions.append((group, command))
            return await call(group, command)

        def with_the_late_one(
            group: int, command: Command, done: Callable[[Reply | BaseException], None]
        ) -> None:
            propose(group, command, done)
            late.append(asyncio.get_running_loop().create_future())
            world.local.propose(*evictions[0], late[-1].set_result)

        world.engine.groups.propose = noted  # type: ignore[method-assign]
        assert await world.evictor.evict_due() == 2
        world.local.rehydration._propose = with_the_late_one
        assert (await world.append("test/{x}a", b"x")).code == Code.OK
        assert [(await each).detail for each in late] == [[]]
        assert world.evicted == {"test/{x}b"}

    play(story)


def test_while_the_store_is_away_nothing_goes_and_nothing_hangs() -> None:
    async def story(world: World) -> None:
        await filled(world)
        store = world.store
        assert isinstance(store, FaultyStore)
        store.down = True
        with pytest.raises(Unavailable):
            await world.append(NAMES[0], b"three;")
        with pytest.raises(Unavailable):
            await world.read(NAMES[0])
        assert isinstance(await world.info(NAMES[0]), StreamInfo)
        await world.create("test/new")
        world.clock.ms += 2 * IDLE_MS
        assert await world.evictor.evict_due() == 0
        assert world.evicted == set(NAMES)
        store.down = False
        assert (await world.append(NAMES[0], b"three;")).code == Code.OK
        assert await world.evictor.evict_due() == 1

    play(story)


def test_a_restart_keeps_them_where_they_are() -> None:
    async def story(world: World) -> None:
        await filled(world)
        await world.append(NAMES[0], b"three;")
        state = world.state()
        world.kill()
        assert world.state() == state
        await world.snapshot()
        await world.append(NAMES[1], b"three;")
        await world.evict()
        await world.snapshot()
        state = world.state()
        world.power_cut()
        assert world.state() == state
        assert world.evicted == set(NAMES)
        for name in NAMES:
            assert await world.read(name) == b"one;two;three;" if name in NAMES[:2] else b"one;two;"
        assert len(await world.service.list_streams("test/", "", 100)) == len(NAMES)

    play(story)


def test_a_block_goes_when_nothing_of_it_is_evicted() -> None:
    async def story(world: World) -> None:
        await filled(world)
        for name in NAMES[:4]:
            assert (await world.delete(name)).code == Code.OK
        for name in NAMES[4:]:
            await world.append(name, b"three;")
        await world.flusher.flush_now()
        kept = await collected(world)
        named = {pack for machine in world.local.machines.values() for pack in machine.packs.held}
        assert kept == named
        assert {await world.read(name) for name in NAMES[4:]} == {b"one;two;three;"}
        for name in NAMES[4:]:
            await world.delete(name)
        assert await collected(world) == set()

    play(story)


def test_a_block_that_no_log_knows_is_swept() -> None:
    async def story(world: World) -> None:
        await world.create("test/a")
        world.clock.ms += IDLE_MS
        propose, world.evictor._steps.groups.propose = world.engine.groups.propose, _refuse  # type: ignore[method-assign]
        assert await world.evictor.evict_due() == 0
        world.engine.groups.propose = propose  # type: ignore[method-assign]
        assert len(world.store.objects) == 1  # type: ignore[attr-defined]
        assert not world.evicted
        world.clock.ms += 10_000_000_000_000
        assert len(await collected(world)) == 1, "only log time is ahead"
        objects: dict[str, tuple[bytes, int, int]] = world.store.objects  # type: ignore[attr-defined]
        objects |= {key: (data, version, 0) for key, (data, version, _) in objects.items()}
        world.clock.ms += 10_000_000
        assert await collected(world) == set()

    play(story)


async def _refuse(group: int, command: object) -> Reply:
    raise Unavailable("no")


def test_a_new_subscription_watches_evicted_streams_too() -> None:
    async def story(world: World) -> None:
        await filled(world)
        link = LinkSubscription("sub", 7, 1, "test/*", "", [])
        for group in range(1, world.groups + 1):
            assert (await world.service.call(group, link)).code == Code.OK
        assert not world.evicted
        assert await world.evict() == 0, "what a subscription watches stays"
        found = [
            info
            for machine in world.local.machines.values()
            for info in await SubscriptionLinks(world.service).page(_subscribed(), "", 100)
        ]
        assert {info.name for info in found} == set(NAMES)
        assert {info.record for info in found} == {2}

    play(story)


def _subscribed():  # type: ignore[no-untyped-def]
    from polynya.stream.features.subscriptions.commands import SubscriptionConfig
    from polynya.stream.features.subscriptions.state import Subscription

    return Subscription("sub", 7, SubscriptionConfig(1, "test/*", [], "", "", 1000), "", 0, {})


def test_a_new_table_takes_what_evicted_streams_have() -> None:
    async def story(world: World) -> None:
        await filled(world)
        table, _ = await world.tables.create("t", "test/")
        assert (await world.tables.lag(table)).records == 2 * len(NAMES)
        job = await world.jobs.plan("t")
        assert job is not None and {part.name for part in job.ranges} == set(NAMES)
        assert not world.evicted
        assert await world.evict() == 0, "no table says yet that it has taken them"

    play(story)


def test_trims_and_forks_of_evicted_streams() -> None:
    async def story(world: World) -> None:
        await filled(world)
        trimmed = await world.service.trim(TrimQuery(NAMES[0], 1, 4))
        assert isinstance(trimmed, Trimmed) and trimmed.records == 1
        assert await world.read(NAMES[0]) == b"two;"
        assert (await world.fork("test/fork", NAMES[1], (1, 4))).code == Code.CREATED
        await world.settle()
        assert await world.read("test/fork") == b"one;"
        assert await world.evict() == 1, "neither a fork goes, nor its source"
        assert world.evicted == {NAMES[0], *NAMES[2:]}

    play(story)


def test_the_retention_of_a_bucket_reaches_evicted_streams() -> None:
    async def story(world: World) -> None:
        await filled(world)
        await world.service.call(
            0, BucketRetention("test", Retention(age_seconds=7200), world.clock.ms)
        )
        retainer = world.engine.retainer
        for _ in range(3):
            await retainer.run_once()
        assert world.evicted == set(NAMES), "nothing is due"
        world.clock.ms += IDLE_MS + 1000
        for _ in range(8):
            await retainer.run_once()
        assert not world.evicted
        assert [(await world.info(name)).first_record for name in NAMES] == [2] * len(NAMES)  # type: ignore[union-attr]
        assert await world.evict() == len(NAMES)

    play(story)


def test_what_comes_back_to_be_trimmed_is_trimmed_before_it_goes_again() -> None:
    """Repeat a case of the simulation: streams that are idle after a moment came back, and went
    again before the next look."""

    async def story(world: World) -> None:
        await filled(world)
        await world.service.call(
            0, BucketRetention("test", Retention(age_seconds=7200), world.clock.ms)
        )
        world.clock.ms += IDLE_MS + 7_200_000
        for _ in range(3):
            await world.engine.retainer.run_once()
            await world.evict()
        assert [(await world.info(name)).first_record for name in NAMES] == [2] * len(NAMES)  # type: ignore[union-attr]
        returned = world.local.rehydration.counters.returned
        await world.engine.retainer.run_once()
        await world.engine.retainer.run_once()
        assert world.local.rehydration.counters.returned == returned == len(NAMES), (
            "each came back once"
        )

    play(story)


def test_packs_of_evicted_streams_are_emptied_while_the_streams_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A merge returns streams through the log, and they are evicted again later."""
    monkeypatch.setattr(merger, "GATHER_SECONDS", 0.0)

    async def story(world: World) -> None:
        groups: Any = world.engine.groups
        settings = MergeSettings(packs_spare=4)
        merging = Merger(groups, world.store, settings, "c1", world.flusher.in_flight)
        written = dict.fromkeys(NAMES, b"")
        for name in NAMES:
            await world.create(name)
        for number in range(16):
            name = NAMES[number % len(NAMES)]
            written[name] += b"%d;" % number
            await world.append(name, b"%d;" % number)
            await world.evict()
        before = len(await collected(world))
        assert before > 16, "a pack for each write, and blocks of states"
        merges = asyncio.create_task(merging.merge_due())
        while not merges.done():
            for name in NAMES[:2]:
                await world.append(name, b"+")
                written[name] += b"+"
        assert await merges > 0
        world.clock.ms += IDLE_MS
        await world.evict()
        await merging.merge_due()
        await world.evict()
        assert len(await collected(world)) < before / 2
        for name in NAMES:
            assert await world.read(name) == written[name]

    play(story)


# --- snapshots ------------------------------------------------------------------------------------

NOTED = NAMES[0]
BODIES = companion_of(NOTED)


async def publish(world: World, record: int, body: bytes, name: str = NOTED) -> Code:
    """Publish a snapshot of a stream as a client does."""
    info = await facts(world, name)
    staged = await stage(world.service, info, body, diskless=False)
    assert isinstance(staged, Staged), staged
    wanted = Body(hashlib.sha256(body).digest(), "text/plain")
    at = await boundary_of(world.service, info, record, ANY_BYTE)
    assert isinstance(at, tuple), at
    return (await publish_snapshot(world.service, info, at, wanted, [staged])).code


async def facts(world: World, name: str = NOTED) -> StreamInfo:
    info = await world.info(name)
    assert isinstance(info, StreamInfo), info
    return info


async def bodies(world: World) -> dict[int, bytes]:
    """The bodies of the snapshots that readers see, by record."""
    info = await facts(world)
    found = {mark.record: await body_of(world.service, info, mark) for mark in info.marks or ()}
    return {record: bytes(body) for record, body in found.items() if not isinstance(body, Refusal)}


async def noted(world: World) -> None:
    """A stream of two records with snapshots, evicted, and then the bodies of these."""
    await world.create(NOTED)
    for record in (b"one;", b"two;"):
        await world.append(NOTED, record)
    assert await publish(world, 1, b"at one") == Code.CREATED
    assert await publish(world, 2, b"at two") == Code.CREATED
    assert await world.evict() == 1
    assert world.evicted == {NOTED}, "they follow it"
    assert await world.evict() == 1
    assert world.evicted == {NOTED, BODIES}


def test_snapshots_of_an_evicted_stream_are_read_without_it() -> None:
    async def story(world: World) -> None:
        await noted(world)
        assert await bodies(world) == {1: b"at one", 2: b"at two"}
        await world.snapshot()
        world.kill()
        assert await bodies(world) == {1: b"at one", 2: b"at two"}
        assert world.evicted == {NOTED, BODIES}, "no read brings a stream back"

    play(story)


@pytest.mark.parametrize("change", ["append", "publish", "drop", "delete"])
def test_what_a_client_changes_brings_the_stream_and_its_bodies_back(change: str) -> None:
    async def story(world: World) -> None:
        await noted(world)
        if change == "append":
            assert (await world.append(NOTED, b"three;")).record == 3
            assert await bodies(world) == {1: b"at one", 2: b"at two"}
        elif change == "publish":
            await world.append(NAMES[1])  # none there
            assert await publish(world, 2, b"other") == Code.SNAPSHOT_CONFLICT
            assert await publish(world, 2, b"at two") == Code.OK
            assert (await world.append(NOTED, b"three;")).record == 3
            assert await publish(world, 3, b"at three") == Code.CREATED
            assert await bodies(world) == {1: b"at one", 2: b"at two", 3: b"at three"}
            assert await world.evict() == 0, "one is superseded"
            world.clock.ms += SNAPSHOT_GRACE_MS
            assert await sweep_snapshots(world.service) == 1
            assert await bodies(world) == {2: b"at two", 3: b"at three"}
            assert [await world.evict() for _ in range(2)] == [1, 1]
            assert await bodies(world) == {2: b"at two", 3: b"at three"}
        elif change == "drop":
            assert (await drop(world.service, await facts(world), 2)).code == Code.OK
            assert await bodies(world) == {1: b"at one"}
        else:
            assert (await world.delete(NOTED)).code == Code.OK
            assert not world.evicted
            assert all(not each.directory.count for each in world.local.machines.values())
            world.clock.ms += SNAPSHOT_GRACE_MS
            assert {key for key in await collected(world) if "/packs/" in key} == set()
            return
        assert world.evicted == (set() if change != "publish" else {NOTED, BODIES})

    play(story)


def test_a_fork_of_an_evicted_stream_has_its_snapshot() -> None:
    async def story(world: World) -> None:
        await noted(world)
        made = await world.fork(NAMES[1], NOTED, (1, 4))
        assert made.code == Code.CREATED
        inherit = inherit_snapshots(world.service, NOTED, NAMES[1], made, diskless=False)
        assert (await inherit).code == Code.CREATED
        info = await facts(world, NAMES[1])
        (mark,) = info.marks or ()
        assert (mark.record, mark.byte) == (1, 4)
        assert await body_of(world.service, info, mark) == b"at one"
        assert await bodies(world) == {1: b"at one", 2: b"at two"}
        await world.evict()
        await world.snapshot()
        world.kill()
        info = await facts(world, NAMES[1])
        assert info.marks == [mark]
        assert await body_of(world.service, info, mark) == b"at one"

    play(story)


def test_a_body_that_is_staged_for_an_evicted_stream_is_swept_when_nothing_names_it() -> None:
    async def story(world: World) -> None:
        await noted(world)
        await stage(world.service, await facts(world), b"never named", diskless=False)
        assert world.evicted == {NOTED}
        await world.evict()
        assert await publish(world, 2, b"at two") == Code.OK
        assert (await drop(world.service, await facts(world), 1)).code == Code.OK
        assert (await drop(world.service, await facts(world), 2)).code == Code.OK
        world.clock.ms += 2 * SNAPSHOT_GRACE_MS
        await sweep_snapshots(world.service)
        own = await facts(world, BODIES)
        assert own.first_record == own.record

    play(story)


async def meet_eviction(world: World, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Let something happen between the copy of the idle streams and their eviction, which it
    prevents."""
    await world.flusher.flush_now()
    world.clock.ms += IDLE_MS
    steps = world.evictor._steps
    write = steps.write

    async def slow(*arguments: Any) -> Any:
        written = await write(*arguments)
        await meanwhile()
        return written

    steps.write = slow  # type: ignore[method-assign]
    assert await world.evictor.evict_due() == 0
    assert not world.evicted


def test_a_publish_between_the_copy_and_the_eviction_keeps_the_stream() -> None:
    async def story(world: World) -> None:
        await world.create(NOTED)
        await world.append(NOTED, b"one;")
        assert await publish(world, 0, b"at none") == Code.CREATED

        async def published() -> None:
            assert await publish(world, 1, b"at one") == Code.CREATED

        await meet_eviction(world, published)
        assert await bodies(world) == {0: b"at none", 1: b"at one"}

    play(story)
