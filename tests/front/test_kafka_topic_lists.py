"""Lists of all topics: they have what any core answered for before, and requests share a read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from stories.service import node_story
from worlds.kafka import OneBroker, read_answer
from worlds.service import Node, World

from polynya.base.errors import NotLeader
from polynya.front.kafka.auth.caller import EVERYBODY
from polynya.front.kafka.metadata import metadata
from polynya.front.kafka.server import KafkaFront
from polynya.front.kafka.topics import catalog as module
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.stream.features.topics.state import TopicNews
from polynya.wire.kafka.generated.metadata import MetadataRequest
from polynya.wire.kafka.messages import APIS, Header

VERSION = 8


def front_of(world: World) -> KafkaFront:
    engine = world.engine
    return KafkaFront(
        world.service,
        OneBroker(),
        engine.group_coordinator,
        engine.kafka_transactions,
        new_id=lambda: b"i" * 16,
    )


async def listed(front: KafkaFront) -> list[str]:
    """Return the topics in Metadata of all of them."""
    header = Header(3, VERSION, 7, "test", 0)
    call: Any = SimpleNamespace(
        context=front.context,
        caller=EVERYBODY,
        version=VERSION,
        api=APIS[header.key],
        header=header,
    )
    pieces: Any = await metadata(call, MetadataRequest(topics=None))
    _, message = read_answer("Metadata", VERSION, b"".join(pieces)[4:])
    return [topic.name for topic in message.topics]


@node_story
async def test_either_core_lists_what_the_other_one_has_just_created_or_dropped(
    node: Node,
) -> None:
    here, there = map(front_of, node.worlds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LIST_SECONDS", 60.0)  # each list comes in time
        for first, second in ((here, there), (there, here)):
            names = []
            for name in ("a", "b"):  # the second one within the time that a local list may be old
                await first.context.topics.create(name, 1, [])
                names.append(name)
                assert await listed(second) == names
            for name in ("a", "b"):
                await first.context.topics.drop(first.context.topics.names[name])
                names.remove(name)
                assert await listed(second) == names


class Replicas:
    """The meta group, with a leader that answers on command."""

    def __init__(self) -> None:
        self.asked: list[bool] = []  # each question: whether a local answer would do
        self.answers: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.revision = 0

    async def topics(self, since: int, *, local: bool) -> TopicNews:
        self.asked.append(local)
        if not local and (fault := await self.answers.get()) is not None:
            raise fault
        return TopicNews(self.revision, False, [])


def catalog(meta_group: Replicas) -> TopicCatalog:
    service: Any = SimpleNamespace(meta_group=meta_group)
    return TopicCatalog(service, lambda: b"i" * 16)


def test_requests_during_a_read_share_the_next_one() -> None:
    async def story() -> None:
        service = Replicas()
        known = catalog(service)
        first = asyncio.create_task(known.read_all())
        await asyncio.sleep(0)
        assert service.asked == [False]
        others = [asyncio.create_task(known.read_all()) for _ in range(5)]
        await asyncio.sleep(0)
        service.answers.put_nowait(None)
        await first
        assert not any(each.done() for each in others), "that read began before they asked"
        service.revision = 7
        service.answers.put_nowait(None)
        await asyncio.gather(*others)
        assert service.asked == [False, False]
        assert known.version == 7

    asyncio.run(story())


def test_without_a_leader_a_list_is_what_this_node_knows() -> None:
    async def story() -> None:
        service = Replicas()
        known = catalog(service)
        service.revision = 3
        service.answers.put_nowait(NotLeader(0))
        await known.read_all()
        assert (service.asked, known.version) == ([False, True], 3)

    asyncio.run(story())


def test_a_leader_that_is_silent_holds_a_list_for_a_short_time(monkeypatch: Any) -> None:
    async def story() -> None:
        monkeypatch.setattr(module, "_LIST_SECONDS", 0.01)
        service = Replicas()
        known = catalog(service)
        service.revision = 3
        await known.read_all()
        assert (service.asked, known.version) == ([False, True], 3)

    asyncio.run(story())


def test_who_stops_waiting_leaves_the_others_their_list() -> None:
    async def story() -> None:
        service = Replicas()
        known = catalog(service)
        gone, kept = (asyncio.create_task(known.read_all()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        service.revision = 5
        service.answers.put_nowait(None)
        await kept
        assert known.version == 5
        assert gone.cancelled()

    asyncio.run(story())
