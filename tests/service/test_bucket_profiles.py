"""The default profiles of buckets in the meta group: who reads them when, and changes at the same
time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sim.loop import run_simulated

from polynya.base.errors import Unavailable
from polynya.service.settings import bucket_profiles, fresh_reads
from polynya.service.settings.bucket_profiles import SCOPE, BucketProfiles, TooManyBuckets
from polynya.stream.command import Command
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply


class Meta:
    """The meta group, which takes time, and may have no leader."""

    def __init__(self) -> None:
        self.machine = Machine(0, 2)
        self.reads = 0
        self.is_led = True
        self.positions = 0

    async def entries(self, scope: str) -> dict[str, bytes]:
        self.reads += 1
        await asyncio.sleep(0.01)
        if not self.is_led:
            raise Unavailable("no leader")
        return {
            key: value for key, value in self.machine.meta.settings.items() if key.startswith(scope)
        }

    async def call(self, command: Command) -> Reply:
        assert isinstance(command, MetaChange) and command.scope == SCOPE
        await asyncio.sleep(0.01)
        self.positions += 1
        return self.machine.apply(command, self.positions)


def story(work: Callable[[Meta], Awaitable[None]]) -> None:
    async def run() -> None:
        await work(Meta())

    run_simulated(run())


def test_creations_of_one_second_read_the_profiles_once() -> None:
    async def work(meta: Meta) -> None:
        here, there = BucketProfiles(meta), BucketProfiles(meta)
        await here.set("logs", "diskless")
        before = meta.reads
        assert await asyncio.gather(*(there.current("logs") for _ in range(20))) == (
            ["diskless"] * 20
        )
        assert (meta.reads - before, there.is_fresh, there.known("other")) == (1, True, None)
        await here.set("logs", None)
        assert await there.current("logs") == "diskless", "of the last second"
        await asyncio.sleep(fresh_reads.FRESH_SECONDS)
        assert not there.is_fresh
        assert await there.current("logs") is None

    story(work)


def test_without_a_leader_the_last_profiles_stay_in_use() -> None:
    async def work(meta: Meta) -> None:
        profiles, new = BucketProfiles(meta), BucketProfiles(meta)
        await profiles.set("logs", "diskless")
        meta.is_led = False
        await asyncio.sleep(5)
        assert await profiles.current("logs") == "diskless"
        assert await new.current("logs") is None, "a creation does not fail for it"
        with pytest.raises(Unavailable):
            await profiles.set("logs", "replicated")
        with pytest.raises(Unavailable):
            await profiles.all()
        meta.is_led = True
        await asyncio.sleep(fresh_reads.FRESH_SECONDS)
        assert await new.current("logs") == "diskless"

    story(work)


def test_a_meta_group_that_does_not_answer_delays_a_creation_for_two_seconds() -> None:
    async def work(meta: Meta) -> None:
        async def never(scope: str) -> dict[str, bytes]:
            await asyncio.sleep(3600)
            return {}

        meta.entries = never  # type: ignore[method-assign]
        profiles = BucketProfiles(meta)
        began = asyncio.get_running_loop().time()
        assert await profiles.current("logs") is None
        assert asyncio.get_running_loop().time() - began == fresh_reads.READ_SECONDS

    story(work)


def test_changes_at_the_same_time_are_all_made() -> None:
    async def work(meta: Meta) -> None:
        cores = [BucketProfiles(meta) for _ in range(3)]
        await asyncio.gather(*(core.set(f"b{at}", "diskless") for at, core in enumerate(cores)))
        assert await cores[0].all() == {f"b{at}": "diskless" for at in range(3)}

    story(work)


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_profiles, "BUCKET_PROFILES_MAX", 2)

    async def work(meta: Meta) -> None:
        profiles = BucketProfiles(meta)
        for bucket in ("a", "b", "a"):
            await profiles.set(bucket, "diskless")
        with pytest.raises(TooManyBuckets, match="remove one"):
            await profiles.set("c", "diskless")
        await profiles.set("a", None)
        await profiles.set("c", "replicated")
        assert await profiles.all() == {"b": "diskless", "c": "replicated"}

    story(work)
