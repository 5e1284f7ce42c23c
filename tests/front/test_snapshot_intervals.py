"""Publishes each second, each ten seconds and each five minutes for half an hour of virtual time."""

from __future__ import annotations

import json

import pytest
from front_world import World, play
from reducer_world import bind, mount, work
from test_reducers_over_http import as_json, snapshots
from test_snapshots_over_http import JSON, NAME, URL, parts_of, run

from polynya.base.limits import SNAPSHOT_GRACE_MS, SNAPSHOTS_KEPT_MIN
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.reducers.routes import PATH

SECONDS = 1800
GRACE = SNAPSHOT_GRACE_MS // 1000


async def first_kept(world: World, name: str = NAME) -> int:
    return int((await world.head(name)).headers["stream-retained-offset"][:16])


@pytest.mark.parametrize("every", [1, 10, 300])
def test_half_an_hour_of_publishes_trims_and_loses_nothing(every: int) -> None:
    """A publish each second is refused for a while, with how long; the records stay meanwhile."""

    async def story(world: World) -> None:
        await world.put(NAME)
        assert (await world.ask("PUT", f"{URL}/retention", b'{"snapshot":"any"}')).status == 200
        published = refused = until = 0
        for number in range(1, SECONDS // every + 1):
            world.service.clock += every * 1000
            offset = (await world.post(NAME, b"%d" % number)).headers["stream-next-offset"]
            answer = await world.ask(
                "PUT", f"{URL}/snapshot/{offset}", b"%d" % number, content_type=JSON
            )
            if answer.status == 201:
                assert number * every >= until, "it was to wait for so long"
                published += 1
            else:
                assert (answer.status, answer.error) == (429, "SNAPSHOT_TOO_SOON")
                until = number * every + int(answer.headers["retry-after"])
                refused += 1
            if number % 30 == 0 or every > 1:
                (_, body), (_, tail) = parts_of(await world.ask("GET", f"{URL}/bootstrap"))
                assert [*range(int(body) + 1, number + 1)] == json.loads(tail)
                retained = await first_kept(world)
                assert number - retained <= GRACE // every + SNAPSHOTS_KEPT_MIN + GRACE
        assert bool(refused) == (every == 1)
        assert published + refused == SECONDS // every
        assert await first_kept(world) > 0

    run(story)


@pytest.mark.parametrize("seed", range(3))
def test_publishers_of_one_stream_neither_lose_a_snapshot_nor_stop(seed: int) -> None:
    """A client beside two reducers whose patterns meet."""

    async def story(world: World) -> None:
        mount(world)
        await bind(world, "left", pattern="docs/*", builtin="count", retain=True)
        await bind(world, "right", pattern="*/a", builtin="count", retain=True)
        await world.put(NAME)
        assert (await world.ask("PUT", f"{URL}/retention", b'{"snapshot":"any"}')).status == 200
        newest: dict[str, str] = {}
        for number in range(24):
            world.service.clock += 60_000
            offset = (await world.post(NAME, b"%d" % number)).headers["stream-next-offset"]
            whose = ("", "left", "right")[(number * (seed + 1) + number // 3) % 3]
            if whose:
                (done,) = await work(world, whose)
                assert done.outcome.published == offset, done
            else:
                made = await world.ask("PUT", f"{URL}/snapshot/{offset}", b"{}", content_type=JSON)
                assert made.status == 201, made
            newest[whose] = offset
            marks = {
                (each["origin"].partition("@")[0], each["offset"])
                for each in await snapshots(world, URL)
            }
            assert set(newest.items()) <= marks
        assert await first_kept(world) > 0
        assert int(min(newest.values())[:16]) >= await first_kept(world)
        for each in as_json(await world.ask("GET", PATH))["reducers"]:
            assert "stopped" not in each and each["faults"] == []

    play(story, settings=HttpSettings(long_poll_seconds=30.0, object_store=False))


def test_slow_readers_find_what_they_began_with_for_the_grace() -> None:
    """Each reader begins at the newest snapshot, takes up to the grace for it, and reads on."""

    async def story(world: World) -> None:
        await world.put(NAME)
        assert (await world.ask("PUT", f"{URL}/retention", b'{"snapshot":"any"}')).status == 200
        begun: list[tuple[int, str, int]] = []  # seconds, offset, number
        late = 0
        for now in range(0, SECONDS, 10):
            number = now // 10
            world.service.clock += 10_000
            offset = (await world.post(NAME, b"%d" % number)).headers["stream-next-offset"]
            made = await world.ask("PUT", f"{URL}/snapshot/{offset}", b"%d" % number)
            assert made.status == 201, made
            begun.append((now, offset, number))
            for ago in (0, 300, GRACE - 10, GRACE, GRACE + 20):
                if now < ago:
                    continue
                _, asked, was = begun[(now - ago) // 10]
                body = await world.ask("GET", f"{URL}/snapshot/{asked}")
                tail = await world.get(NAME, f"?offset={asked}")
                if ago <= GRACE:
                    assert (body.status, body.body) == (200, b"%d" % was)
                    assert (tail.status, json.loads(tail.body)) == (
                        200,
                        [*range(was + 1, number + 1)],
                    )
                    continue
                late += body.status == 410
                for gone in (body, tail):
                    if gone.status == 410:
                        newer = gone.headers["stream-snapshot-offset"]
                        there = await world.ask("GET", f"{URL}/snapshot/{newer}")
                        assert there.status == 200
                        assert (await world.get(NAME, f"?offset={newer}")).status == 200
        assert late > 0

    run(story)
