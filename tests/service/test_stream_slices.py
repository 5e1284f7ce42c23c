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

    async def found(first: int, end: int) -> tuple[int, list[int]]:
        answer = await finder.find(NAME, first, end)
        assert answer is not None
        return answer.next_record, [each.record for each in answer.slices]

    assert await found(0, -1) == (6, [0, 2, 4])
    assert await found(3, 4) == (6, [2])
    stream = world.local.machines[world.service.group_of(NAME)].streams[NAME]
    stream.kafka = KafkaState(open={7: OpenTransaction(4, 4, 0, 1)})
    assert await found(0, -1) == (4, [0, 2])
    assert await found(0, 6) == (4, [0, 2])
