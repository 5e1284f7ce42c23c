"""Create, append, read, close, delete, expire on one whole core, with concurrent requests."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from types import FrameType

import msgspec
import pytest
from stories.service import story
from worlds.service import Code, Listener, Producer, World, name_in

from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.local.api import ReadQuery, Refusal, StreamInfo
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Delete
from polynya.stream.parts import Batch

A, B = "test/a", "test/b"


@story
async def test_a_stream_lives_and_its_reads_see_what_was_acknowledged(world: World) -> None:
    assert (await world.create(A)).code == Code.CREATED
    assert (await world.create(A)).code == Code.EXISTS
    for number in range(5):
        reply = await world.append(A, b"%d" % number)
        assert (reply.record, reply.byte) == (number + 1, number + 1)
    assert await world.read(A) == b"01234"
    assert (await world.append(A, close=True)).closed
    assert (await world.append(A, b"x")).code == Code.CLOSED
    page = await world.page(A)
    assert page.closed and page.up_to_date
    assert (await world.delete(A)).code == Code.OK
    assert await world.code_of(A) == Code.NOT_FOUND
    assert (await world.append(A, b"x")).code == Code.NOT_FOUND


@story
async def test_a_refusal_waits_while_the_create_before_it_is_in_flight(world: World) -> None:
    create, append = world.send(world.create_of(A)), world.send(world.append_of(A, b"x"))
    assert world.service.open(A).info_nowait() is None
    assert not append.done(), "nothing may be refused at once now"
    assert (await create).code == Code.CREATED
    assert (await append).code == Code.OK
    assert isinstance(world.service.open(A).info_nowait(), StreamInfo)


@story
async def test_a_refusal_is_given_at_once_when_nothing_is_in_flight(world: World) -> None:
    append, delete = world.send(world.append_of(A, b"x")), world.send(Delete(A, world.clock.ms))
    assert append.result().code == delete.result().code == Code.NOT_FOUND
    assert world.engine.core.inflight_bytes == 0


@story
async def test_an_append_behind_a_delete_in_flight_is_refused_and_one_before_it_is_not(
    world: World,
) -> None:
    await world.create(A)
    before, delete, after = (
        world.send(world.append_of(A, b"1")),
        world.send(Delete(A, world.clock.ms)),
        world.send(world.append_of(A, b"2")),
    )
    again = world.send(world.create_of(A))
    assert [(await each).code for each in (before, delete, after, again)] == [
        Code.OK,
        Code.OK,
        Code.NOT_FOUND,
        Code.CREATED,
    ]
    assert await world.read(A) == b""


@story
async def test_a_repeat_of_an_append_in_flight_waits_for_the_original(world: World) -> None:
    await world.create(A)
    first = world.send(world.append_of(A, b"x", producer=Producer("p", 0, 0)))
    repeat = world.send(world.append_of(A, b"x", producer=Producer("p", 0, 0)))
    assert ((await first).code, (await repeat).code) == (Code.OK, Code.DUPLICATE)
    assert await world.read(A) == b"x"


@story
async def test_a_command_that_cannot_be_encoded_harms_nobody(world: World) -> None:
    await world.create(A)
    good = world.send(world.append_of(A, b"x"))
    for bad in (world.append_of(A, b"y", stream_seq="\ud800"), world.create_of("test/\ud800")):
        with pytest.raises(UnicodeEncodeError):
            world.send(bad)
    assert (await good).code == Code.OK
    assert world.local.lifecycle.settled("test/\ud800")


@story
async def test_a_broken_answer_costs_the_others_nothing(world: World) -> None:
    await world.create(A)
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: faults.append(context["exception"])
    )

    def broken(reply: object) -> None:
        raise ZeroDivisionError

    class BrokenReader(Listener):
        def live(self, event: object) -> None:
            raise ZeroDivisionError

    listener = Listener()
    await world.service.open(A).attach(BrokenReader())
    await world.service.open(A).attach(listener)
    world.service.propose(A, world.append_of(A, b"1"), broken)
    assert (await world.append(A, b"2")).code == Code.OK
    assert listener.payload == b"12" and len(world.local.feeds) == 1
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


@story
async def test_expires_at_ends_a_stream_for_readers_writers_and_watchers(world: World) -> None:
    end = world.clock.ms + 5000
    await world.create(A, expires_at_ms=end)
    listener = Listener()
    await world.service.open(A).attach(listener)
    world.clock.ms = end - 1
    assert (await world.append(A, b"x")).code == Code.OK
    world.clock.ms = end
    assert await world.code_of(A) == Code.NOT_FOUND
    assert (await world.append(A, b"x")).code == Code.NOT_FOUND
    assert [event.gone for event in listener.events] == [False, True]
    assert len(world.local.feeds) == 0


@story
async def test_a_create_over_an_expired_stream_tells_the_watchers_of_the_old_one(
    world: World,
) -> None:
    old = await world.create(A, expires_at_ms=world.clock.ms + 1000)
    listener = Listener()
    await world.service.open(A).attach(listener)
    in_flight = world.send(world.append_of(B, b"x"))
    world.clock.ms += 1000
    first, second = world.send(world.create_of(A)), world.send(world.create_of(A))
    assert (await first).code == Code.CREATED and (await second).code == Code.EXISTS
    assert (await first).uid != old.uid
    assert [event.gone for event in listener.events] == [True]
    assert (await in_flight).code == Code.NOT_FOUND


@story
async def test_reads_extend_a_ttl(world: World) -> None:
    await world.create(A, ttl_seconds=8)
    for _ in range(5):
        world.clock.ms += 7000
        assert await world.read(A) == b""
    world.clock.ms += 7000
    assert (await world.append(A, b"x")).code == Code.OK
    world.clock.ms += 8000
    assert await world.code_of(A) == Code.NOT_FOUND
    await world.settle()
    assert not world.local.machines[world.service.group_of(A)].directory.streams
    assert len(world.local.lifetimes) == 0


@story
async def test_a_look_at_the_facts_extends_no_ttl(world: World) -> None:
    await world.create(A, ttl_seconds=8)
    world.clock.ms += 7000
    assert await world.code_of(A) == 0
    await world.service.read(ReadQuery(A, touch=False))
    world.clock.ms += 1000
    assert await world.code_of(A) == Code.NOT_FOUND


@story
async def test_a_node_whose_clock_is_behind_the_log_shows_no_stream_that_is_over(
    world: World,
) -> None:
    await world.create(A, ttl_seconds=8)
    world.local.machines[world.service.group_of(A)].counters.log_ms += 10_000  # as by a snapshot
    assert await world.code_of(A) == Code.NOT_FOUND


@story
async def test_a_read_outlives_a_restart(world: World) -> None:
    await world.create(A, ttl_seconds=80)
    world.clock.ms += 9_000  # less than an eighth: only this process knows of the read
    await world.read(A)
    world.kill()
    world.clock.ms += 79_000
    assert await world.code_of(A) == 0, "the process before knew of a read"
    await world.read(A)
    await world.engine.core.drain()
    world.kill()
    world.clock.ms += 79_000
    assert await world.code_of(A) == 0
    world.clock.ms += 11_000
    assert await world.code_of(A) == Code.NOT_FOUND


@story
async def test_an_attached_reader_keeps_a_stream_and_its_writer_can_append(world: World) -> None:
    await world.create(A, ttl_seconds=8)
    listener = Listener()
    info = await world.service.open(A).attach(listener)
    assert isinstance(info, StreamInfo)
    world.clock.ms += 60_000
    assert (await world.append(A, b"x")).code == Code.OK
    assert listener.payload == b"x"
    for _ in range(20):
        world.clock.ms += 1000
        world.local.sweep()
        await world.engine.core.drain()
    stream = world.local.machines[info.uid >> 48].directory.by_uid[info.uid]
    assert world.clock.ms - stream.activity_ms <= 1000, "what is attached is logged"
    world.service.detach(info.uid, listener)
    world.clock.ms += 7_999
    assert await world.code_of(A) == 0
    world.clock.ms += 1
    assert await world.code_of(A) == Code.NOT_FOUND


@story
async def test_touches_are_few_and_are_not_kept(world: World) -> None:
    await world.create(A, ttl_seconds=8)
    before = world.engine.core.counters.entries
    world.clock.ms += 2000
    for _ in range(100):
        await world.service.read(ReadQuery(A))
    await world.engine.core.drain()
    assert world.engine.core.counters.entries == before + 1
    assert len(world.local.lifetimes) == 0
    world.clock.ms += 500
    await world.read(A)
    await world.append(A, b"x")
    world.local.sweep()
    assert len(world.local.lifetimes) == 1
    world.clock.ms += 1000
    world.local.sweep()
    await world.engine.core.drain()
    assert len(world.local.lifetimes) == 0


@story
async def test_streams_that_nobody_asks_for_expire_too(world: World) -> None:
    for number in range(40):
        await world.create(f"test/{number}", ttl_seconds=8)
    world.clock.ms += 8000
    for _ in world.local.machines:
        world.local.sweep()
    await world.engine.core.drain()
    assert not any(machine.directory.streams for machine in world.local.machines.values())


@story
async def test_hot_bytes_are_bounded_by_group_and_by_core(world: World) -> None:
    world.local.memory.group_bytes_max = 10
    await world.create(A)
    assert (await world.append(A, b"1234567890")).code == Code.OK
    refused = world.send(world.append_of(A, b"x"))
    assert refused.result().code == Code.MEMORY_PRESSURE
    assert (await world.append(A, close=True)).code == Code.OK, "what holds no payload goes on"
    other = name_in(2 if world.service.group_of(A) != 2 else 3)
    await world.create(other)
    world.local.memory.bytes_max = 15
    assert (await world.append(other, b"12345")).code == Code.OK
    assert world.send(world.append_of(other, b"x")).result().code == Code.MEMORY_PRESSURE
    assert (
        world.send(world.create_of(B, batch=Batch(0, 1, b"1", 0))).result().code
        == Code.MEMORY_PRESSURE
    )
    assert world.local.memory.refused == 3
    await world.service.flush("")
    assert (await world.append(other, b"x")).code == Code.OK
    assert await world.read(A) == b"1234567890"


@story
async def test_what_can_never_fit_is_refused_for_good(world: World) -> None:
    world.local.memory.group_bytes_max = 10
    await world.create(A)
    for refused in (
        world.send(world.append_of(A, b"x" * 11)),
        world.send(world.create_of(B, batch=Batch(0, 1, b"x" * 11, 0))),
        world.send(world.append_of(A, b"x" * 11, producer=Producer("p", 0, 0))),
    ):
        assert (refused.result().code, refused.result().byte) == (
            Code.APPEND_EXCEEDS_MEMORY_LIMIT,
            10,
        )
    assert world.local.memory.refused == 0
    assert (await world.append(A, b"1234567890", producer=Producer("p", 0, 0))).code == Code.OK
    # a restart with another setting: what was taken before is still a repeat
    world.local.memory.group_bytes_max = 5
    assert (
        await world.append(A, b"1234567890", producer=Producer("p", 0, 0))
    ).code == Code.DUPLICATE
    await world.service.flush("")
    assert (await world.append(A, b"12345")).code == Code.OK
    assert (await world.append(A, b"123456")).code == Code.APPEND_EXCEEDS_MEMORY_LIMIT


@story
async def test_streams_are_listed_page_by_page(world: World) -> None:
    names = sorted(f"test/{number:03d}" for number in range(50))
    for name in names:
        await world.create(name, ttl_seconds=8 if name.endswith("7") else None)
    await world.create("other/x")
    world.clock.ms += 8000
    alive = [name for name in names if not name.endswith("7")]
    found: list[str] = []
    while page := await world.service.list_streams("test/", found[-1] if found else "", 7):
        found += [info.name for info in page]
    assert found == alive


@story
async def test_the_bound_of_what_is_in_flight_refuses_with_a_certain_outcome(world: World) -> None:
    world.local.memory.group_bytes_max = world.local.memory.bytes_max = 1 << 30
    await world.create(A)
    big = b"x" * (HOT_BYTES_PER_GROUP // 4)
    sent = [
        world.send(Append(A, world.clock.ms, "text/plain", Batch(0, 1, big, 0))) for _ in range(12)
    ]
    results = await asyncio.gather(*sent, return_exceptions=True)
    applied = [
        result
        for result in results
        if not isinstance(result, BaseException) and result.code == Code.OK
    ]
    refused = [result for result in results if isinstance(result, BaseException)]
    assert refused and applied
    info = await world.info(A)
    assert isinstance(info, StreamInfo) and info.record == len(applied)
    assert not isinstance(await world.info(A), Refusal)


@story
async def test_the_setting_alone_bounds_hot_bytes(world: World) -> None:
    world.local.memory.group_bytes_max = HOT_BYTES_PER_GROUP + 10
    await world.create(A)
    for _ in range(2):
        assert (await world.append(A, b"x" * (HOT_BYTES_PER_GROUP // 2))).code == Code.OK
    assert (await world.append(A, b"1234567890")).code == Code.OK, (
        "more than the default is what was asked for"
    )
    assert (await world.append(A, b"x")).code == Code.MEMORY_PRESSURE


@story
async def test_what_is_on_its_way_counts_against_the_bound_of_its_group(world: World) -> None:
    size = 1000
    world.local.memory.group_bytes_max = 5 * size
    other = name_in(2 if world.service.group_of(A) != 2 else 3)
    await world.create(A)
    await world.create(other)
    sent = [
        world.send(world.append_of(name, b"x" * size)) for _ in range(20) for name in (A, other)
    ]
    replies = await asyncio.gather(*sent)
    for name in (A, other):
        machine = world.local.machines[world.service.group_of(name)]
        assert 3 * size <= machine.directory.hot_bytes <= 5 * size
    assert [reply.code for reply in replies].count(Code.OK) * size == world.local.memory.bytes


@story
async def test_a_repeat_is_answered_as_one_at_the_bound(world: World) -> None:
    world.local.memory.group_bytes_max = 4
    await world.create(A)
    assert (await world.append(A, b"1234", producer=Producer("p", 0, 0))).code == Code.OK
    assert (await world.append(A, b"1234", producer=Producer("p", 0, 0))).code == Code.DUPLICATE
    assert (
        await world.append(A, b"5678", producer=Producer("p", 0, 1))
    ).code == Code.MEMORY_PRESSURE
    assert (await world.append(A, close=True)).code == Code.OK
    assert (await world.append(A, b"5678")).code == Code.CLOSED
    assert await world.read(A) == b"1234"


@story
async def test_log_time_is_the_owners(world: World) -> None:
    """A command that was stamped on another core, or that has waited, does not take the group's
    time back."""
    await world.send(msgspec.structs.replace(world.create_of(A), now_ms=world.clock.ms - 5000))
    await world.send(msgspec.structs.replace(world.create_of(B), now_ms=world.clock.ms + 5000))
    for name in (A, B):
        info = await world.info(name)
        assert isinstance(info, StreamInfo) and info.created_ms == world.clock.ms


@story
async def test_an_append_costs_no_more_beside_many_streams(world: World) -> None:
    """Calls of functions, and memory that is taken meanwhile: nothing on its way looks at, or
    copies, what other streams have."""

    async def cost() -> tuple[int, int]:
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event.endswith("call")

        tracemalloc.start()
        sys.setprofile(count)
        try:
            append = world.send(world.append_of(A, b"x"))
        finally:
            sys.setprofile(None)
        await append
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return calls, peak

    await world.create(A)
    for _ in range(3):
        await world.append(A, b"x")
    few = await cost()
    assert few[0] > 10, "they are counted"
    group = world.service.group_of(A)
    names = [
        name
        for number in range(4000)
        if world.service.group_of(name := f"test/many{number}") == group
    ]
    assert len(names) > 500
    await asyncio.gather(*(world.send(world.create_of(name)) for name in names))
    await asyncio.gather(*(world.send(world.append_of(name, b"y" * 100)) for name in names))
    many = min([await cost() for _ in range(3)])
    assert many[0] <= few[0] + 20
    assert many[1] <= few[1] + 20_000
