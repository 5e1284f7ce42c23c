"""The five recovery defects that a peer's crash simulation found, each as a story of a whole
core."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from stories.service import story_of
from worlds.fake_disk import FakeDisk
from worlds.service import Code, Listener, World, name_in

from polynya.base.errors import OutcomeUnknown
from polynya.local.api import StreamInfo

QUIET, BUSY = name_in(1), name_in(2)


def unlucky() -> World:
    """A world whose disk draws the losses of a crash, with small segments."""
    world = World(FakeDisk(Random(7)))
    world.segment_bytes = 2048
    return world


story = story_of(unlucky)


@story
async def test_no_start_makes_a_segment_over_one_that_was_sealed_or_released(world: World) -> None:
    """(1) A boot re-created the first log segment over a sealed or recycled one, and everything
    after it was dropped."""
    await world.create(QUIET)
    written: set[int] = set()
    for life in range(8):
        for number in range(6):
            await world.append(QUIET, b"%d%d" % (life, number) * 200)
        numbers = [number for number, _ in world.engine.core.journal.segments.sizes()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert max(numbers) >= max(written, default=0)
        written.update(numbers)
        if life % 2:
            await world.service.flush("")
            await world.snapshot()
            await world.snapshot()
        world.power_cut(life / 8)
        assert await world.read(QUIET) == b"".join(
            b"%d%d" % (was, n) * 200 for was in range(life + 1) for n in range(6)
        )


def test_a_torn_append_of_a_quiet_stream_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """(2) A torn, never acknowledged append of a stream that was otherwise quiet became visible
    after recovery."""
    # a spontaneous mark would be the write that fails
    monkeypatch.setattr("polynya.engine.standalone.MARK_SECONDS", 3600.0)

    async def run(seed: int) -> None:
        world = World(FakeDisk(Random(seed))).start()
        await world.create(QUIET)
        await world.append(QUIET, b"kept")
        world.disk.fail_at = world.disk.calls + 1 + seed % 2  # the write, or its sync
        with pytest.raises(OutcomeUnknown):
            await world.append(QUIET, b"torn" * 500)
        assert await world.read(QUIET) == b"kept"
        world.power_cut(0.7)
        content = await world.read(QUIET)
        assert content in (b"kept", b"kept" + b"torn" * 500), "whole or not at all"
        world.power_cut()
        assert await world.read(QUIET) == content, "what was shown once stays"
        await world.append(QUIET, b"!")
        world.power_cut()
        assert await world.read(QUIET) == content + b"!"
        await world.stop()

    for seed in range(30):
        asyncio.run(run(seed))


@story
async def test_acknowledged_creates_deletes_and_closes_stay(world: World) -> None:
    """(3) An acknowledged DELETE (and create, and close) was undone by a crash."""
    for round_ in range(6):
        assert (await world.create(QUIET)).code == Code.CREATED
        world.power_cut()
        assert await world.code_of(QUIET) == 0
        await world.append(QUIET, b"x", close=True)
        world.power_cut()
        assert (await world.append(QUIET, b"y")).code == Code.CLOSED
        assert (await world.delete(QUIET)).code == Code.OK
        if round_ % 2:
            await world.snapshot()
        world.power_cut()
        assert await world.code_of(QUIET) == Code.NOT_FOUND


@story
async def test_nothing_is_visible_before_it_is_durable(world: World) -> None:
    """(4) Bytes were visible before they were durable."""
    await world.create(QUIET)
    listener = Listener()
    await world.service.open(QUIET).attach(listener)
    disk = world.disk
    sync, seen = disk.sync, []

    def sync_and_look(fd: int) -> None:
        stream = next(iter(world.local.machines[1].directory.streams.values()))
        seen.append((stream.next_byte, len(listener.payload)))
        sync(fd)

    disk.sync = sync_and_look  # type: ignore[method-assign]
    append = world.send(world.append_of(QUIET, b"abc"))
    while not seen:
        assert await world.read(QUIET) == b"" and not append.done()
        await asyncio.sleep(0)
    await append
    assert seen[0] == (0, 0)
    assert listener.payload == await world.read(QUIET) == b"abc"


@story
async def test_the_tail_is_where_the_stored_bytes_end_though_the_client_hung_up(
    world: World,
) -> None:
    """(5) An append whose client hung up left the readers' tail behind the stored bytes."""
    await world.create(QUIET)
    task = asyncio.create_task(world.append(QUIET, b"abc"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    reply = await world.append(QUIET, b"def")
    info = await world.info(QUIET)
    assert isinstance(info, StreamInfo)
    assert (reply.byte, info.byte, await world.read(QUIET)) == (6, 6, b"abcdef")
    world.power_cut()
    assert await world.read(QUIET) == b"abcdef"
