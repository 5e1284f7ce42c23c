"""Snapshots that forks inherit, as clients see them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from front_world import Answer, World
from reducer_world import bind, mount, work
from test_authorizer import Gate, guarded
from test_snapshots_over_http import (
    JSON,
    NAME,
    URL,
    commit,
    filled,
    first_kept,
    listed,
    message,
    publish,
    published,
    run,
    stage,
)

from polynya.base.errors import CorruptData, PolynyaError, Unavailable
from polynya.base.limits import SNAPSHOT_GRACE_MS
from polynya.local.api import Refusal, StreamInfo
from polynya.service import fork_snapshots, snapshots
from polynya.stream.replies import Code, Reply

FORK = "docs/fork"
FORK_URL = f"/v1/stream/{FORK}"


async def fork(
    world: World, offset: str = "", name: str = FORK, source: str = URL, **headers: str
) -> Answer:
    if offset:
        headers["stream_fork_offset"] = offset
    return await world.ask("PUT", f"/v1/stream/{name}", stream_forked_from=source, **headers)


async def document(world: World, url: str) -> dict[str, Any]:
    answer = await world.ask("GET", f"{url}/bootstrap", accept=JSON)
    assert answer.status == 200, answer
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


async def trimmed(world: World, records: int = 9) -> list[str]:
    """A stream that its retention has trimmed to record 5. It keeps its snapshots 7, 9 and 10."""
    offsets = await filled(world, records)
    rule = b'{"snapshot":"any","snapshots_kept":3}'
    assert (await world.ask("PUT", f"{URL}/retention", rule)).status == 200
    for number in (1, 5, 7):
        await published(world, offsets[number], b"%d" % number)
    world.service.clock += SNAPSHOT_GRACE_MS
    await published(world, offsets[9], b"9")
    world.service.clock += SNAPSHOT_GRACE_MS
    offsets.append((await world.post(NAME, b"9")).headers["stream-next-offset"])
    await published(world, offsets[10], b"10")
    assert await first_kept(world) == offsets[5]
    return offsets


def test_bootstrap_of_a_fork_is_that_of_its_source_at_the_fork_point() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world, 0)
        found = [await document(world, URL)]
        for number in range(1, 9):
            answer = await world.post(NAME, b"%d" % number)
            offsets.append(answer.headers["stream-next-offset"])
            if number % 3 == 0:
                await published(world, offsets[-1], b'{"n":%d}' % number)
            found.append(await document(world, URL))
        assert found[7]["snapshot"] == {"n": 6}
        for number, offset in enumerate(offsets):
            name = f"{FORK}/{number}"
            assert (await fork(world, offset, name)).status == 201
            assert await document(world, f"/v1/stream/{name}") == found[number]
        await fork(world)
        assert await document(world, FORK_URL) == found[-1]
        (entry,) = await listed(world, FORK_URL)
        assert entry["content_type"] == JSON and not entry["superseded"]
        assert (await world.ask("DELETE", URL)).status == 204
        await fork(world, offsets[7], f"{FORK}/of", f"{FORK_URL}/7")
        assert await document(world, f"{FORK_URL}/of") == found[7], "a fork of a fork"

    run(story)


def test_a_stream_that_is_trimmed_to_its_snapshots_can_be_forked() -> None:
    async def story(world: World) -> None:
        offsets = await trimmed(world)
        whole = await document(world, URL)
        assert (await fork(world)).status == 201
        assert await document(world, FORK_URL) == whole
        assert (await fork(world, offsets[8], f"{FORK}/8")).status == 201
        shown = await document(world, f"{FORK_URL}/8")
        assert (shown["snapshot"], shown["records"]) == (7, [7])
        assert (await fork(world, "-1", f"{FORK}/0")).status == 201
        assert (await document(world, f"{FORK_URL}/0"))["records"] == [], "it inherits nothing"
        for number in (1, 4, 5, 6):
            refused = await fork(world, offsets[number], f"{FORK}/{number}")
            assert (refused.status, refused.error) == (409, "SNAPSHOT_NEEDED")
            assert f"the oldest one is at {offsets[7]}: fork there" in message(refused)
        assert (await fork(world, offsets[8], f"{FORK}/of", f"{FORK_URL}/8")).status == 201
        assert await document(world, f"{FORK_URL}/of") == shown

    run(story)


@pytest.mark.parametrize("step", ["part_of", "stage", "publish"])
@pytest.mark.parametrize("fault", [Unavailable("it left"), CorruptData("damaged")])
def test_a_repeat_completes_what_has_died(
    step: str, fault: PolynyaError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        await trimmed(world)
        whole = await document(world, URL)

        async def die(*arguments: Any, **named: Any) -> None:
            raise fault

        with monkeypatch.context() as patch:
            patch.setattr(fork_snapshots, step, die)
            for _ in range(2):
                died = await fork(world)
                assert (died.status, died.error) == (503, "OUTCOME_UNKNOWN")
                assert "repeat the request within ten minutes" in message(died)
                assert str(fault) in message(died)
                half = await world.ask("GET", f"{FORK_URL}/bootstrap")
                assert (half.status, half.error) == (410, "TRIMMED")
                assert (await world.get(FORK, "?offset=snapshot")).error == "TRIMMED"
        await world.post(NAME, b"10")
        assert (await fork(world)).status == 200
        assert await document(world, FORK_URL) == whole
        assert (await fork(world)).status == 200
        assert len(await listed(world, FORK_URL)) == 1

    run(story)


@pytest.mark.parametrize("refused", [Refusal(Code.TRIMMED), b"X", b"XX"])
def test_a_body_that_has_changed_is_not_published(
    refused: Refusal | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        await trimmed(world)

        async def other(*arguments: Any) -> Refusal | bytes:
            return refused

        with monkeypatch.context() as patch:
            patch.setattr(fork_snapshots, "part_of", other)
            assert (await fork(world)).error == "OUTCOME_UNKNOWN"
        assert await listed(world, FORK_URL) == []
        assert (await fork(world)).status == 200
        assert len(await listed(world, FORK_URL)) == 1

    run(story)


@pytest.mark.parametrize("step", ["stage", "publish"])
def test_a_copy_that_is_refused_says_so(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await trimmed(world)

        async def full(*arguments: Any, **named: Any) -> Reply:
            return Reply(Code.DISK_FULL)

        monkeypatch.setattr(fork_snapshots, step, full)
        assert "refused: DISK_FULL" in message(await fork(world))

    run(story)


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_a_source_that_goes_before_its_snapshot_is_copied(
    is_trimmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        if is_trimmed:
            await trimmed(world)
        else:
            await published(world, (await filled(world))[2])
        create = world.service.fork

        async def and_delete(*arguments: Any) -> Reply:
            reply = await create(*arguments)
            assert (await world.ask("DELETE", URL)).status == 204
            return reply

        monkeypatch.setattr(world.service, "fork", and_delete)
        made = await fork(world)
        if is_trimmed:
            assert (made.status, made.error) == (409, "SNAPSHOT_NEEDED")
            assert "delete it, and fork at a later offset" in message(made)
            assert (await world.ask("GET", f"{FORK_URL}/bootstrap")).status == 410
        else:
            assert made.status == 201
            assert (await document(world, FORK_URL))["records"] == [0, 1, 2, 3, 4]

    run(story)


def test_a_body_in_parts_and_each_origin_are_copied() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        bodies = [b"a" * 100_000, b"b" * 7]
        parts = [await stage(world, offsets[3], body) for body in bodies]
        assert (await commit(world, offsets[3], parts)).status == 201
        info = await world.service.info(NAME)
        assert isinstance(info, StreamInfo)
        for number, origin in ((2, "sum@1"), (4, "sum@2"), (1, "max@1")):
            staged = await snapshots.stage(world.service, info, b"%d" % number, diskless=False)
            assert isinstance(staged, snapshots.Staged)
            body = snapshots.Body(sha256(b"%d" % number).digest(), JSON, origin)
            at = await snapshots.boundary_of(world.service, info, number, snapshots.ANY_BYTE)
            assert isinstance(at, tuple)
            reply = await snapshots.publish(world.service, info, at, body, [staged])
            assert reply.code == Code.CREATED
        assert (await fork(world, offsets[4])).status == 201
        copied = await listed(world, FORK_URL)
        assert [(each["offset"], each["origin"]) for each in copied] == [
            (offsets[1], "max@1"),
            (offsets[3], ""),
            (offsets[4], "sum@2"),
        ]
        digests = {each["digest"] for each in await listed(world)}
        assert {each["digest"] for each in copied} <= digests
        found = await world.ask("GET", f"{FORK_URL}/snapshot/{offsets[3]}")
        assert found.body == b"".join(bodies)
        assert (await publish(world, offsets[5])).status == 201
        assert (await fork(world, offsets[4])).status == 200
        assert len(await listed(world, FORK_URL)) == 3

    run(story)


def test_parts_of_dead_attempts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        parts = [await stage(world, offsets[3], body) for body in (b"abcd", b"efgh")]
        assert (await commit(world, offsets[3], parts)).status == 201
        monkeypatch.setattr(fork_snapshots, "APPEND_BYTES_MAX", 15)

        async def die(*arguments: Any) -> None:
            raise Unavailable("it left")

        with monkeypatch.context() as patch:
            patch.setattr(fork_snapshots, "publish", die)
            assert "it left" in message(await fork(world))
        assert "parts of earlier attempts" in message(await fork(world))

    run(story)


def test_a_reducer_goes_on_in_a_fork_of_a_stream_that_it_has_trimmed() -> None:
    async def story(world: World) -> None:
        mount(world)
        await bind(world, builtin="count", pattern="docs/*", retain=True)
        await world.put(NAME)
        for number in range(5):
            await world.post(NAME, b"%d" % number)
            world.service.clock += SNAPSHOT_GRACE_MS
            await work(world)
        assert await first_kept(world) != "0" * 16 + "_" + "0" * 16
        await world.post(NAME, b"5")
        assert (await fork(world)).status == 201
        states = [
            json.loads((await world.ask("GET", f"{url}/state")).body) for url in (URL, FORK_URL)
        ]
        assert states[0] == states[1] and states[1]["records"] == 6
        await world.post(FORK, b"6")
        await work(world)
        assert json.loads((await world.ask("GET", f"{FORK_URL}/state")).body)["records"] == 7
        newest, tail = (await listed(world, FORK_URL))[-1], await world.head(FORK)
        assert newest["offset"] == tail.headers["stream-next-offset"]

    run(story)


def test_a_fork_needs_no_other_rights_for_its_snapshots(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        root, forker = gate.bearer("root"), gate.bearer("forker")
        made = await world.ask("PUT", URL, content_type=JSON, **root)
        target = f"{URL}/snapshot/{made.headers['stream-next-offset']}"
        assert (await world.ask("PUT", target, b"", **root)).status == 201
        assert (await fork(world, name="mine/a", **forker)).status == 201
        shown = await world.ask("GET", "/v1/stream/mine/a/snapshots", **root)
        assert [each["bytes"] for each in json.loads(shown.body)["snapshots"]] == [0]
        assert (await fork(world, name="mine/b", **gate.bearer("other"))).status == 403

    def setup(gate: Gate) -> None:
        gate.token("root", "admin")
        gate.token("forker", "create:mine/", "read:docs/")
        gate.token("other", "create:mine/")

    guarded(tmp_path, story, setup=setup)
