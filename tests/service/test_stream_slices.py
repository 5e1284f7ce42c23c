"""The slices of a stream, as readers that fetch packs themselves get them."""

from __future__ import annotations

from stories.service import story
from worlds.service import World

from polynya.service.stream_slices import SliceFinder
from polynya.stream.state.model import KafkaState, OpenTransaction

NAME = "default/sliced"


@story
async def test_slices_end_before_an_open_transaction(world: World) -> None:
    await world.create(NAME)
    for number in range(6):
        await world.append(NAME, b"%d" % number)
        if number % 2:
            await world.flusher.flush_now()
    finder = SliceFinder(world.service)

    async def found(first: int, end: int) -> tuple[int, list[int], int]:
        answer = await finder.find(NAME, first, end)
        assert answer is not None
        return answer.next_record, [each.record for each in answer.slices], answer.end

    assert await found(0, -1) == (6, [0, 2, 4], 6)
    assert await found(3, 4) == (6, [2], 4)
    stream = world.local.machines[world.service.group_of(NAME)].directory.streams[NAME]
    stream.kafka = KafkaState(open={7: OpenTransaction(4, 4, 0, 1)})
    assert await found(0, -1) == (4, [0, 2], 4)
    assert await found(0, 6) == (4, [0, 2], 4)


@story
async def test_an_answer_says_how_far_it_goes(world: World) -> None:
    await world.create(NAME)
    for number in range(4):
        await world.append(NAME, b"%d" % number)
    await world.flusher.flush_now()
    await world.append(NAME, b"hot")
    finder = SliceFinder(world.service)
    stream = world.local.machines[world.service.group_of(NAME)].directory.streams[NAME]
    assert stream.hot
    stream.hot[0].record += 10  # a gap
    stream.next_record += 10

    async def end(first: int) -> int:
        answer = await finder.find(NAME, first, -1)
        assert answer is not None
        return answer.end

    assert [await end(first) for first in (0, 4, 9, 14)] == [14] * 4, "the gap is passed"
    stream.hot = None
    assert await end(4) == 15, "and one behind all records"
