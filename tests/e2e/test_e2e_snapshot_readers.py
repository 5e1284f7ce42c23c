"""Half an hour of publishes beside fifty readers that bootstrap slowly: none of them finds anything
gone within the grace, and neither memory nor disk grows with the publishes.

The time runs faster in CI: the grace of ten minutes, and all else, is divided by the same number."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
from pathlib import Path

import httpx
import psutil
import pytest
from e2e_world import World, file_sizes, resident
from product import SOURCE

from polynya.base.limits import (
    JOURNAL_SEGMENT_BYTES,
    MIB,
    SNAPSHOT_GRACE_MS,
    SNAPSHOTS_KEPT_MIN,
    SNAPSHOTS_SUPERSEDED_MAX,
)

pytestmark = pytest.mark.process
SHIM = Path(__file__).parents[1] / "grace_shim"
GRACE = SNAPSHOT_GRACE_MS / 1000
FLAGS = ("--cores", "1", "--cold-flush-max-age-ms", "1s", "--cold-delete-grace-ms", "1s")
JSON = {"content-type": "application/json"}
OCTETS = {"content-type": "application/octet-stream"}
EVERY = {"docs/often": 10.0, "docs/seldom": 300.0}  # seconds between two publishes
SECONDS = 1800.0
READERS = 50
RECORDS = 20  # before each publish
BODY_BYTES = 512 * 1024
PART_BYTES = BODY_BYTES // 4  # that a slow reader reads at a time
DIGITS = 10  # of the number of records, with which a body begins


class Play:
    """A node, its publishers and its readers. Times are divided by `scale`."""

    def __init__(self, world: World, web: httpx.AsyncClient, scale: float) -> None:
        self.world, self.web, self.scale = world, web, scale
        self.bodies: dict[tuple[str, str], bytes] = {}  # by stream and offset
        self.first: dict[str, list[int]] = {name: [] for name in EVERY}
        self.read = self.late = 0
        self.disk: list[int] = []
        self.objects: list[int] = []
        self.memory: list[int] = []

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.scale)

    async def publish(self, name: str) -> None:
        url, number, chance = f"/v1/stream/{name}", 0, random.Random(name)
        made = await self.web.put(url, headers=JSON)
        assert made.status_code == 201
        rule = {"snapshot": "any"}
        assert (await self.web.put(f"{url}/retention", json=rule)).status_code == 200
        for _ in range(int(SECONDS / EVERY[name])):
            values = [{"n": number + at} for at in range(RECORDS)]
            number += RECORDS
            added = await self.web.post(url, json=values)
            offset = added.headers["stream-next-offset"]
            body = b"%010d" % number + chance.randbytes(BODY_BYTES - DIGITS)
            put = await self.web.put(f"{url}/snapshot/{offset}", content=body, headers=OCTETS)
            assert put.status_code == 201, put.text
            self.bodies[name, offset] = body
            head = await self.web.head(url)
            self.first[name].append(int(head.headers["stream-retained-offset"][:16]))
            await self.rest(EVERY[name])

    async def bootstrap(self, number: int) -> None:
        """Begin at the newest snapshot, slowly, again and again."""
        chance = random.Random(number)
        name = chance.choice(list(EVERY))
        url = f"/v1/stream/{name}"
        while True:
            begun = await self.web.get(f"{url}?offset=snapshot")
            if "/snapshot/" not in begun.headers.get("location", ""):
                await self.rest(5)  # there is none yet
                continue
            location = begun.headers["location"]
            offset = location.rpartition("/")[2]
            pause = chance.uniform(0.4, 0.7) * GRACE / (BODY_BYTES // PART_BYTES + 1)
            found = b""
            for begin in range(0, BODY_BYTES, PART_BYTES):
                await self.rest(pause)
                span = f"bytes={begin}-{begin + PART_BYTES - 1}"
                piece = await self.web.get(location, headers={"range": span})
                assert piece.status_code == 206, (piece.status_code, piece.text[:300])
                found += piece.content
            assert found == self.bodies[name, offset]
            await self.rest(pause)
            tail = await self.web.get(f"{url}?offset={offset}")
            assert tail.status_code == 200, tail.text
            values = [each["n"] for each in tail.json()]
            assert values == [*range(int(found[:DIGITS]), int(found[:DIGITS]) + len(values))]
            self.read += 1
            if chance.random() < 0.3:
                await self.come_late(name, location)

    async def come_late(self, name: str, location: str) -> None:
        """Read a snapshot long after; one that is gone names another that can be read."""
        await self.rest(GRACE)
        body = await self.web.get(location)
        if body.status_code == 410:
            self.late += 1
            newer = body.headers["stream-snapshot-offset"]
            there = await self.web.get(f"/v1/stream/{name}/snapshot/{newer}")
            assert there.status_code == 200 and there.content == self.bodies[name, newer]
            tail = await self.web.get(f"/v1/stream/{name}?offset={newer}")
            assert tail.status_code == 200
        else:
            assert body.status_code == 200

    async def measure(self) -> None:
        while True:
            objects = file_sizes(self.world.data / "objects")
            self.disk.append(sum(each.st_blocks * 512 for each in file_sizes(self.world.data)))
            self.objects.append(sum(each.st_blocks * 512 for each in objects))
            self.memory.append(resident([psutil.Process(each.pid) for each in self.world.cores()]))
            await self.rest(30)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self.bootstrap(number)) for number in range(READERS)]
            beside.append(group.create_task(self.measure()))
            async with asyncio.TaskGroup() as publishers:
                for name in EVERY:
                    publishers.create_task(self.publish(name))
            for task in beside:
                task.cancel()


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(30.0, id="a-minute", marks=pytest.mark.timeout(300)),
        pytest.param(1.0, id="half-an-hour", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_half_an_hour_of_publishes_beside_slow_readers(world: World, scale: float) -> None:
    grace_ms = int(SNAPSHOT_GRACE_MS / scale)
    world.start(
        *FLAGS,
        PYTHONPATH=os.pathsep.join(map(str, (SHIM, SOURCE))),
        SNAPSHOT_GRACE_MS=str(grace_ms),
    )

    async def play() -> Play:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=world.url, timeout=60, limits=limits) as web:
            made = Play(world, web, scale)
            await made.run()
            return made

    seen = asyncio.run(play())
    print(f"{seen.read} bootstraps, {seen.late} late; {seen.first}")
    for what, found in (("disk", seen.disk), ("objects", seen.objects), ("memory", seen.memory)):
        print(f"{what} {[each // MIB for each in found]} MiB")
    assert seen.read >= READERS and seen.late
    for name, every in EVERY.items():
        firsts, readable = seen.first[name], int(GRACE / every) + SNAPSHOTS_KEPT_MIN + 2
        assert firsts == sorted(firsts)
        assert firsts[-1] >= RECORDS * max(1, len(firsts) - readable), "the first kept record moves"
    third = len(seen.disk) // 3
    bodies = (SNAPSHOTS_SUPERSEDED_MAX + SNAPSHOTS_KEPT_MIN) * BODY_BYTES
    assert len(seen.bodies) * BODY_BYTES > 2 * bodies
    for found, more in ((seen.objects, 0), (seen.disk, 2 * JOURNAL_SEGMENT_BYTES)):
        assert statistics.median(found[-third:]) < 1.5 * bodies + more
        assert max(found[-third:]) < 2 * bodies + more  # packs go a moment later, under load more
    assert max(seen.memory[-third:]) < max(seen.memory[third:-third]) + 64 * MIB
