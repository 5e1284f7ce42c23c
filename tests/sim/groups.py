"""A consumer group in a simulated cluster: members join, commit, stop without a word and come back,
while coordinators die. An acknowledged commit is never lost, and none of an earlier owner
counts."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from sim.calls import answer_of
from sim.chaos import Episode
from sim.echoes import Echoes
from sim.knobs import Knobs

from polynya.base import levels
from polynya.stream.features.consumer_groups.calls import (
    Answer,
    Call,
    Commit,
    FetchOffsets,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Offsets,
    Outcomes,
    Sync,
    Synced,
)
from polynya.stream.features.consumer_groups.commands import OffsetEntry

TOPIC = bytes(16)
PARTITIONS, MEMBERS = 3, 3
SESSION_MS, REBALANCE_MS = 2000, 3000
CALL_SECONDS = 8.0


class GroupClient:
    """A member that reads its assigned partitions from the committed offset on, and commits."""

    def __init__(self, episode: GroupEpisode, number: int) -> None:
        self.episode = episode
        self.random = Random(f"group {episode.seed} {number}")
        self.id, self.generation = "", -1
        self.next: dict[int, int] = {}  # partition -> offset that it commits next

    async def run(self) -> None:
        while not self.episode.over:
            if await self.join():
                await self.work()
            else:
                await asyncio.sleep(self.random.uniform(0.05, 0.3))

    async def ask(self, call: Call) -> Answer | None:
        """Ask any node; None: the answer is unknown, or did not come."""
        alive = self.episode.world.alive()
        if not alive:
            return None
        node = self.random.choice(alive)
        return await answer_of(node, node.engine.group_coordinator.call(call), CALL_SECONDS)

    async def join(self) -> bool:
        """Join and sync; the member that leads shares the partitions out."""
        self.next = {}
        join = Join(
            "g", self.id, None, "c", "/h", "sim", [("p", b"")], SESSION_MS, REBALANCE_MS, True
        )
        joined = await self.ask(join)
        if isinstance(joined, Joined) and joined.error == 79:
            self.id = joined.member
            return False
        if not isinstance(joined, Joined) or joined.error:
            self.id = ""
            return False
        self.id, self.generation = joined.member, joined.generation
        ids = [id_ for id_, *_ in joined.members]
        plan = [(id_, bytes(range(index, PARTITIONS, len(ids)))) for index, id_ in enumerate(ids)]
        synced = await self.ask(Sync("g", self.generation, self.id, None, None, None, plan))
        if not isinstance(synced, Synced) or synced.error:
            return False
        known = dict(self.episode.acknowledged)
        offsets = await self.ask(FetchOffsets("g"))
        if not isinstance(offsets, Offsets):
            return False
        found = {each.partition: each.offset for each in offsets.entries}
        for partition, offset in known.items():
            assert found.get(partition, 0) >= offset, (
                f"partition {partition}: {offset} was acknowledged, {found.get(partition)} is there"
            )
        self.next = {partition: found.get(partition, 0) + 1 for partition in synced.assignment}
        return True

    async def work(self) -> None:
        """Commit until the group rebalances, or the member stops without a word."""
        while not self.episode.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.03))
            act = self.random.random()
            if act < 0.01:
                self.id = ""
                return
            if act < 0.02:
                await self.ask(Leave("g", [(self.id, None)]))
                self.id = ""
                return
            beat = await self.ask(Heartbeat("g", self.generation, self.id, None))
            if isinstance(beat, Outcomes) and beat.errors[0] not in (0, 15, 16):
                self.id = "" if beat.errors[0] == 25 else self.id
                if self.random.random() < 0.5:
                    await self.commit()  # it has not noticed
                return
            await self.commit()

    async def commit(self) -> None:
        if not self.next:
            return
        sent = dict(self.next)
        entries = [OffsetEntry(TOPIC, part, offset, -1, "") for part, offset in sent.items()]
        answer = await self.ask(Commit("g", self.generation, self.id, None, entries))
        if isinstance(answer, Outcomes) and answer.errors == [0]:
            self.episode.note(f"commit {sorted(sent.items())}")
            for partition, offset in sent.items():
                known = self.episode.acknowledged.get(partition, 0)
                assert offset >= known, f"partition {partition}: {offset} commits behind {known}"
                self.episode.acknowledged[partition] = offset
                self.next[partition] = offset + 1


class GroupEpisode(Episode):
    """The plain world, with a consumer group beside a few clients."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.world.release = levels.LEVEL
        self.world.runs_groups = True
        self.acknowledged: dict[int, int] = {}
        self.echoes = Echoes(self)
        self.world.heard = self.echoes.hear

    def acknowledged_count(self) -> int:
        return super().acknowledged_count() + sum(self.acknowledged.values())

    def summary(self) -> str:
        return f"{super().summary()}, offsets {sorted(self.acknowledged.items())}"

    def clients(self) -> list[asyncio.Future[None]]:
        members = [GroupClient(self, number) for number in range(MEMBERS)]
        work: list[Any] = [self._append(0), self.echoes.run(), *(each.run() for each in members)]
        return [asyncio.ensure_future(each) for each in work]

    async def settle(self) -> None:
        """Join the healthy group, find all acknowledged records, and commit."""
        last = GroupClient(self, MEMBERS)
        self.over = False
        for _ in range(100):
            if await last.join():
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the group takes no member though all is well")
        before = sum(self.acknowledged.values())
        await last.commit()
        assert sum(self.acknowledged.values()) > before, "no commit is taken though all is well"
        self.over = True


def run_groups(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode. Raises AssertionError with the violated invariant."""
    return GroupEpisode(seed, mishaps, knobs).play()
