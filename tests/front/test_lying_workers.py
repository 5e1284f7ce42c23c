"""Workers that lie at times: the first state of some records stays, and another one stops the reducer."""

from __future__ import annotations

import hashlib
import json
import random

from front_world import World
from reducer_world import bind
from test_reducers_over_http import as_json, fill, run, snapshots

from polynya.front.http.reducers.routes import PATH

SEEDS = 60  # each is a reducer, of which a cluster has at most 64
STEPS = 14


async def _lives(world: World, seed: int) -> None:
    chance, name = random.Random(seed), f"r{seed}"
    stream = f"s{seed}/a"
    revision = (await bind(world, name, pattern=f"s{seed}/*", builtin="count", retain=True))[
        "revision"
    ]
    url, records, stopped = f"/v1/stream/{stream}", 0, False
    first: dict[str, bytes] = {}  # offset -> the state that was published first
    tail = ""
    for _ in range(STEPS):
        if not records or chance.random() < 0.4:
            tail = await fill(world, records, name=stream)
            records += 1
        lies = chance.random() < 0.15
        body = json.dumps({"records": records + lies}).encode()
        answer = await world.ask(
            "PUT",
            f"{url}/snapshot/{tail}",
            body,
            content_type="application/json",
            stream_snapshot_origin=f"{name}@{revision}",
        )
        if stopped:
            assert answer.error == "REDUCER_STOPPED"
        elif tail not in first:
            assert answer.status == 201
            first[tail] = body
        elif first[tail] == body:
            assert answer.status == 204
        else:
            assert answer.error == "SNAPSHOT_CONFLICT"
            stopped = True
    marks = await snapshots(world, url)
    assert {mark["offset"]: mark["digest"] for mark in marks} == {
        offset: f"sha-256={hashlib.sha256(body).hexdigest()}" for offset, body in first.items()
    }
    shown = as_json(await world.ask("GET", f"{PATH}/{name}"))
    assert ("stopped" in shown) == stopped
    retained = (await world.head(stream)).headers["stream-retained-offset"]
    assert retained == min(first), "the oldest state can still be read on from"


def test_the_first_state_stays_and_a_lie_stops_its_reducer() -> None:
    async def story(world: World) -> None:
        for seed in range(SEEDS):
            await _lives(world, seed)

    run(story)
