"""Topics' retention: it holds for all partitions at once, and idle ones are evicted all the same."""

from __future__ import annotations

from stories.service import node_story, story
from worlds.service import Code, Node, World

from polynya.local.api import StreamInfo
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.features.topics.commands import TopicChange, TopicDrop, TopicPut, TopicReady
from polynya.stream.parts import Retention

ID = bytes(16)
DAY_MS = 24 * 3_600_000
BODY = b"x" * 1000
ROUNDS = 10  # passes of the job: some of them read the topics


async def topic(world: World, *configs: tuple[str, str], streams: tuple[str, ...] = ()) -> None:
    put = TopicPut("t", ID, 2, list(configs), world.clock.ms, list(streams))
    assert (await world.service.call(0, put)).code == Code.CREATED
    assert (await world.service.call(0, TopicReady("t", ID, 2))).code == Code.OK


async def configure(world: World, *configs: tuple[str, str]) -> None:
    (known,) = (await world.service.meta_group.topics(-1)).topics
    change = TopicChange("t", ID, known.revision, 2, list(configs))
    assert (await world.service.call(0, change)).code == Code.OK


async def fill(world: World, *names: str) -> None:
    for name in names:
        await world.create(name)
        for _ in range(4):
            await world.append(name, BODY)
            await world.service.flush(name)


async def kept(world: World, *names: str) -> list[int]:
    """Trim the due records, and return the first kept ones."""
    for _ in range(ROUNDS):
        await world.engine.retainer.run_once()
    found = []
    for name in names:
        info = await world.info(name)
        assert isinstance(info, StreamInfo)
        found.append(info.first_record)
    return found


@story
async def test_a_topics_configs_hold_for_its_partitions_alone(world: World) -> None:
    names = ("kafka/t/0", "kafka/t/1", "kafka/tt/0", "kafka/t.x/0", "test/t")
    await fill(world, *names)
    await topic(world, ("retention.bytes", "2000"))
    assert await kept(world, *names) == [2, 2, 0, 0, 0]
    await configure(world, ("retention.bytes", "1000"))
    assert await kept(world, *names) == [3, 3, 0, 0, 0]
    await configure(world, ("cleanup.policy", "compact"), ("retention.bytes", "0"))
    assert await kept(world, *names) == [3, 3, 0, 0, 0], "a compacted topic loses nothing by size"
    await configure(world, ("retention.ms", "1000"))
    world.clock.ms += DAY_MS
    assert await kept(world, *names) == [4, 4, 0, 0, 0]


@story
async def test_a_streams_own_retention_wins_over_its_topics(world: World) -> None:
    await fill(world, "kafka/t/0", "kafka/t/1")
    await world.service.set_bucket("kafka", Retention(None, 0))
    await topic(world, ("retention.bytes", "2000"))
    own = SetRetention("kafka/t/1", Retention(None, 3000), world.clock.ms)
    assert (await world.send(own)).code == Code.OK
    assert await kept(world, "kafka/t/0", "kafka/t/1") == [2, 1]


@story
async def test_an_adopted_stream_has_the_retention_of_its_topic_until_that_is_dropped(
    world: World,
) -> None:
    names = ("test/adopted", "kafka/t/0", "kafka/t/1")
    await fill(world, *names)
    await topic(world, ("retention.bytes", "3000"), streams=("test/adopted",))
    assert await kept(world, *names) == [1, 1, 1]
    await configure(world, ("retention.bytes", "2000"))
    assert (await world.service.call(0, TopicDrop("t", ID))).code == Code.OK
    assert await kept(world, *names) == [1, 1, 1]


@story
async def test_an_idle_partition_is_evicted_and_still_grows_old(world: World) -> None:
    names = ("kafka/t/0", "kafka/t/1")
    await fill(world, *names)
    await topic(world, ("retention.ms", str(DAY_MS)))
    world.clock.ms += DAY_MS // 2
    assert await kept(world, *names) == [0, 0]
    assert await world.evict() == 2
    assert world.evicted == set(names)
    world.clock.ms += DAY_MS
    assert await kept(world, *names) == [4, 4]


@node_story
async def test_a_topic_holds_on_every_core(node: Node) -> None:
    names = ("kafka/t/0", "kafka/t/1")
    await fill(node.worlds[0], *names)
    await topic(node.worlds[1], ("retention.bytes", "0"))
    for world in node.worlds:
        await kept(world, *names)
    assert await kept(node.worlds[0], *names) == [4, 4]
