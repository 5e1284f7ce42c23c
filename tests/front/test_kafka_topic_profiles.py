"""Change of a topic's profile: the caller may crash at any step, and a partition may fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from worlds.kafka import KafkaWorld, batch, play, produce_fields

from polynya.base.errors import Unavailable
from polynya.base.names import partition_name
from polynya.front.kafka.topics import catalog as topics
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.front.kafka.topics.profile_change import ALIVE_MS, ALIVE_MS_EACH
from polynya.front.kafka.topics.steps import TopicRefused
from polynya.local.api import StreamInfo
from polynya.local.profile_changes import CHANGE_MS_MAX
from polynya.stream.command import Command
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.replies import Reply

PARTITIONS = 3


class Dying:
    """A service whose process dies before or after its N-th command."""

    def __init__(self, service: Any, dies_at: int, *, after: bool) -> None:
        self._service, self._dies_at, self._after = service, dies_at, after
        self.calls = 0
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def call(self, group: int, command: Command) -> Reply:
        self.calls += 1
        if self.calls >= self._dies_at:
            if self.calls == self._dies_at and self._after:
                await self._service.call(group, command)
            self.died.set()
            await asyncio.Event().wait()
        reply: Reply = await self._service.call(group, command)
        return reply


def to(profile: str) -> Any:
    def change(before: dict[str, str]) -> Mapping[str, str]:
        return {**before, "profile": profile}

    return change


def catalog(service: Any) -> TopicCatalog:
    ids = itertools.count(1000)
    return TopicCatalog(service, lambda: next(ids).to_bytes(16))


async def begun(world: KafkaWorld) -> None:
    """A topic; its first partition has a record, the others have none."""
    await world.topic("t", PARTITIONS)
    wire = await world.wire()
    await wire.ask("Produce", 9, **produce_fields("t", batch(b"a")))


async def profiles(world: KafkaWorld) -> set[int]:
    found = set()
    for number in range(PARTITIONS):
        info = await world.core.info(partition_name("t", number))
        assert isinstance(info, StreamInfo)
        found.add(info.profile)
    return found


async def abandon(world: KafkaWorld) -> None:
    """Let so much time pass, after what partitions had begun."""
    await world.core.flusher.flush_now()
    await world.core.engine.core.drain()
    world.core.clock.ms += ALIVE_MS + PARTITIONS * ALIVE_MS_EACH


async def settled(other: TopicCatalog) -> str:
    """Let another core finish the change. Return the topic's profile."""
    finishing = asyncio.ensure_future(other.finish_all())
    try:
        while True:
            await other.refresh()
            if other.names["t"].is_settled:
                return other.names["t"].settings.get("profile", "replicated")
            await asyncio.sleep(0)
    finally:
        finishing.cancel()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("wanted", ["diskless", "replicated"])
def test_another_core_ends_a_change_whose_beginner_died(
    monkeypatch: pytest.MonkeyPatch, wanted: str, after: bool
) -> None:
    monkeypatch.setattr(topics, "_FINISH_SECONDS", 0.01)
    monkeypatch.setattr(topics, "_FRESH_SECONDS", 0.0)
    ended: list[str] = []

    async def story(world: KafkaWorld) -> None:
        await begun(world)
        old = "replicated"
        if wanted == old:
            old = "diskless"
            await catalog(world.core.service).alter("t", to(old))
        service = Dying(world.core.service, len(ended) + 1, after=after)
        changing = asyncio.ensure_future(catalog(service).alter("t", to(wanted)))
        died = asyncio.ensure_future(service.died.wait())
        await asyncio.wait([changing, died], return_when=asyncio.FIRST_COMPLETED)
        if changing.done():
            ended.append("all")
            assert changing.result() == {"profile": wanted}
        other = catalog(world.core.service)
        await other.refresh()
        if other.names["t"].changing is not None:
            with pytest.raises(Unavailable, match="profile of topic 't' changes"):
                await other.alter("t", to(wanted))
            await abandon(world)
        found = await settled(other)
        changing.cancel()
        died.cancel()
        number = Profile.DISKLESS if found == "diskless" else Profile.REPLICATED
        assert await profiles(world) == {number}
        if ended[-1:] != ["all"]:
            ended.append(found)
            assert len(ended) > 1 or after or found == old, "nothing had begun"
        await other.alter("t", to(old))
        assert (await other.find("t")).settings["profile"] == old  # type: ignore[union-attr]

    while ended[-1:] != ["all"]:
        play(story)
    steps = PARTITIONS + 2  # a mark, a command for each partition, and the end
    assert ended[1:] == [wanted] * (steps - 1) + ["all"]


def test_all_partitions_keep_the_profile_if_one_cannot_be_flushed() -> None:
    async def story(world: KafkaWorld) -> None:
        await begun(world)
        world.core.local.profiles.flush_soon = lambda name: None
        changing = asyncio.ensure_future(catalog(world.core.service).alter("t", to("diskless")))
        while not world.core.local.profiles.changes:
            await asyncio.sleep(0)
        while Profile.DISKLESS not in await profiles(world):
            await asyncio.sleep(0)
        world.core.clock.ms += CHANGE_MS_MAX
        world.core.local.sweep()
        with pytest.raises(TopicRefused, match="so it stays"):
            await changing
        assert await profiles(world) == {Profile.REPLICATED}
        other = catalog(world.core.service)
        await other.refresh()
        assert other.names["t"].is_settled and other.names["t"].configs == []

    play(story)
