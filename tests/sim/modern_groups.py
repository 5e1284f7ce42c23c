"""A group of the consumer protocol (KIP-848) in a simulated cluster: members join, commit, stop
without a word and come back, while coordinators die and answers are lost. No partition is read by
two members at once, and an acknowledged commit is never lost and never goes back (rule J)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from sim.chaos import Episode
from sim.groups import GroupClient
from sim.knobs import Knobs

from polynya.base import levels
from polynya.base.errors import PolynyaError
from polynya.service.consumer_groups.configs import HEARTBEAT, SESSION, GroupConfigs
from polynya.stream.features.consumer_groups.calls import (
    Commit,
    ConsumerHeartbeat,
    FetchOffsets,
    HeartbeatAnswer,
    Offsets,
    Outcomes,
)
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.stream.features.topics.commands import TopicPut, TopicReady

GROUP, NAME = "g", "t"
TOPIC = b"\1" * 16
PARTITIONS, MEMBERS = 4, 3
SESSION_MS, REBALANCE_MS = 2000, 3000


class ModernClient(GroupClient):
    """A member that reads the partitions that it was given from their committed offsets on."""

    episode: ModernEpisode  # type: ignore[assignment]

    def __init__(self, episode: ModernEpisode, number: int, life: int = 0) -> None:
        super().__init__(episode, number)  # type: ignore[arg-type]
        self.id = f"m{number}-{life}"
        self.number, self.life = number, life
        self.epoch = 0
        self.owned: set[int] = set()
        self.says_all = True
        self.valid_until = 0.0  # it reads no more when it was not heard for a session

    async def run(self) -> None:
        await self.episode.ready.wait()
        while not self.episode.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.08))
            act = self.random.random()
            if act < 0.01:
                self.begin_again()  # as a new process: the group learns it by the session's end
            elif act < 0.02:
                await self.beat(-1)
                self.begin_again()
            elif act < 0.6:
                await self.beat()
            else:
                await self.commit()

    def begin_again(self) -> None:
        self.give_up(self.owned)
        self.life += 1
        self.id, self.epoch, self.says_all = f"m{self.number}-{self.life}", 0, True

    def give_up(self, partitions: set[int]) -> None:
        """Read these partitions no more."""
        for partition in partitions:
            if self.episode.owners.get(partition) is self:
                del self.episode.owners[partition]
            self.next.pop(partition, None)
        self.owned = self.owned - partitions

    @property
    def is_valid(self) -> bool:
        return asyncio.get_running_loop().time() < self.valid_until

    async def beat(self, epoch: int | None = None) -> None:
        """Send a heartbeat and take over its answer."""
        claim = [(TOPIC, sorted(self.owned))] if self.owned else []
        sent_at = asyncio.get_running_loop().time()
        answer = await self.ask(
            ConsumerHeartbeat(
                GROUP,
                self.id,
                self.epoch if epoch is None else epoch,
                None,
                "c",
                "/h",
                None,
                REBALANCE_MS,
                [NAME],
                None,
                None,
                None,
                claim,
            )
        )
        if not isinstance(answer, HeartbeatAnswer) or epoch is not None:
            return
        if answer.error in (25, 69, 110):
            self.give_up(self.owned)
            self.epoch = 0
            return
        if answer.error:
            return
        self.epoch = answer.epoch
        self.valid_until = sent_at + SESSION_MS / 1000
        if answer.assignment is not None:
            await self.take({n for _, numbers in answer.assignment for n in numbers})

    async def take(self, assigned: set[int]) -> None:
        """Give up what is not assigned, sometimes late, then read what is new."""
        if self.owned - assigned and self.random.random() < 0.5:
            await asyncio.sleep(self.random.uniform(0, 0.3))
        self.give_up(self.owned - assigned)
        new = assigned - self.owned
        for partition in new:
            other = self.episode.owners.get(partition)
            assert other in (None, self) or not other.is_valid, (
                f"partition {partition} is of {other.id} and of {self.id}"
            )
            self.episode.owners[partition] = self
        self.owned = self.owned | new
        if new:
            await self.position(new)

    async def position(self, new: set[int]) -> None:
        """Find the committed offsets of new partitions: none that was acknowledged is lost."""
        known = dict(self.episode.acknowledged)
        answer = await self.ask(FetchOffsets(GROUP, self.id, self.epoch))
        if not isinstance(answer, Offsets):
            self.give_up(new)  # it claims them no more, and gets them again
            return
        found = {each.partition: each.offset for each in answer.entries}
        for partition in new:
            offset = found.get(partition, 0)
            assert offset >= known.get(partition, 0), (
                f"partition {partition}: {known.get(partition)} was acknowledged, {offset} is there"
            )
            self.next[partition] = offset + 1

    async def commit(self) -> None:
        if not self.next or not self.is_valid:
            return
        sent = dict(self.next)
        entries = [
            OffsetEntry(TOPIC, partition, offset, -1, "") for partition, offset in sent.items()
        ]
        answer = await self.ask(Commit(GROUP, self.epoch, self.id, None, entries))
        if not isinstance(answer, Outcomes):
            return
        errors = answer.errors if len(answer.errors) == len(entries) else answer.errors * len(sent)
        for (partition, offset), error in zip(sent.items(), errors, strict=True):
            if not error:
                self.episode.acknowledge(partition, offset)
                if self.next.get(partition) == offset:
                    self.next[partition] = offset + 1


class ModernEpisode(Episode):
    """The plain world, with a group of the consumer protocol beside a few clients."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.world.release = levels.LEVEL
        self.world.runs_groups = True
        self.acknowledged: dict[int, int] = {}
        self.owners: dict[int, ModernClient] = {}
        self.ready = asyncio.Event()

    def acknowledge(self, partition: int, offset: int) -> None:
        self.note(f"commit {partition} {offset}")
        known = self.acknowledged.get(partition, 0)
        assert offset >= known, f"partition {partition}: {offset} commits behind {known}"
        self.acknowledged[partition] = offset

    def acknowledged_count(self) -> int:
        return super().acknowledged_count() + sum(self.acknowledged.values())

    def summary(self) -> str:
        return f"{super().summary()}, offsets {sorted(self.acknowledged.items())}"

    def clients(self) -> list[asyncio.Future[None]]:
        self.members = [ModernClient(self, number) for number in range(MEMBERS)]
        work: list[Any] = [self._append(0), self.prepare(), *(each.run() for each in self.members)]
        return [asyncio.ensure_future(each) for each in work]

    async def prepare(self) -> None:
        """Create the topic, and make sessions short."""
        configs = {SESSION: str(SESSION_MS), HEARTBEAT: "500"}
        random = Random(f"members {self.seed}")
        while not self.over and not self.ready.is_set():
            await asyncio.sleep(0.1)
            alive = self.world.alive()
            if not alive:
                continue
            node = random.choice(alive)
            service = node.engine.service
            try:
                async with asyncio.timeout(5):
                    await node.process.drive(self._made(service, configs))
            except (PolynyaError, TimeoutError):
                continue
            self.ready.set()

    async def _made(self, service: Any, configs: dict[str, str]) -> None:
        await service.meta_group.call(TopicPut(NAME, TOPIC, PARTITIONS, [], 1))
        await service.meta_group.call(TopicReady(NAME, TOPIC))
        await GroupConfigs(service.meta_group).alter(GROUP, lambda before: configs)

    async def settle(self) -> None:
        """Let all members together read all partitions of the healthy group, and commit."""
        await self.prepare()
        self.over = False
        before = sum(self.acknowledged.values())
        for _ in range(200):
            for each in self.members:
                await each.beat()
            if sorted(self.owners) == list(range(PARTITIONS)) and all(
                each.owned and each.next.keys() == each.owned for each in self.members
            ):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the partitions are not shared though all is well")
        for each in self.members:
            await each.commit()
        assert sum(self.acknowledged.values()) > before, "no commit is taken though all is well"
        self.over = True


def run_members(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode. Raises AssertionError with the violated invariant."""
    return ModernEpisode(seed, mishaps, knobs).play()
