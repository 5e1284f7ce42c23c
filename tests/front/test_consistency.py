"""`consistency=local`: what this node has, without a leader; and `Stream-Up-To-Date` only where it
is true."""

from __future__ import annotations

import json
import re

import pytest
from front_world import World, play, request

from polynya.base.errors import Unavailable

LOCAL = "consistency=local"


class Elsewhere:
    """The groups are led by another node, which answers unless it is away."""

    def __init__(self) -> None:
        self.away = False
        self.asked = 0

    def fit(self, group: int) -> bool:
        return True

    def readable(self, group: int) -> bool:
        return False

    async def linearize(self, group: int) -> None:
        self.asked += 1
        if self.away:
            raise Unavailable("no leader is heard")


async def followed(world: World) -> Elsewhere:
    """Stream `s` with two records on a node that does not lead."""
    await world.put("s")
    for number in (1, 2):
        await world.post("s", b"%d" % number)
    world.service.local.agreement = elsewhere = Elsewhere()
    return elsewhere


def controls(piece: bytes) -> list[dict[str, object]]:
    return [
        json.loads(found) for found in re.findall(rb"event: control\ndata:(\{[^{}]*\})\n\n", piece)
    ]


def test_a_replica_without_a_leader_answers_local_reads_and_no_others() -> None:
    async def story(world: World) -> None:
        elsewhere = await followed(world)
        elsewhere.away = True
        page = await world.get("s", f"?offset=-1&{LOCAL}")
        assert (page.status, page.body) == (
            200,
            b"[1,2]",
        ) and "stream-up-to-date" not in page.headers
        head = await world.ask("HEAD", f"/v1/stream/s?{LOCAL}")
        assert (
            head.status == 200
            and head.headers["stream-next-offset"] == page.headers["stream-next-offset"]
        )
        listed = await world.ask("GET", f"/v1/streams?{LOCAL}")
        assert [entry["name"] for entry in json.loads(listed.body)["streams"]] == ["s"]
        late = await world.get("s", f"?live=long-poll&offset=now&timeout_ms=20&{LOCAL}")
        assert late.status == 204 and "stream-up-to-date" not in late.headers
        reader = await world.sse("s", f"?live=sse&offset=-1&{LOCAL}")
        (control,) = controls(await reader.chunk())
        assert "upToDate" not in control
        assert elsewhere.asked == 0, "a local read asks nobody"
        for target in (
            "?offset=-1",
            "?offset=-1&consistency=leader",
            "?live=long-poll&offset=now&timeout_ms=20",
            "?live=sse&offset=-1",
        ):
            refused = await world.get("s", target)
            assert refused.status == 503 and refused.headers["stream-outcome"] == "refused", target
        assert (await world.head("s")).status == 503 and (
            await world.ask("GET", "/v1/streams")
        ).status == 503

    play(story)


def test_what_the_leader_vouches_for_says_that_it_is_all() -> None:
    async def story(world: World) -> None:
        await followed(world)
        page = await world.get("s", "?offset=-1")
        assert page.headers["stream-up-to-date"] == "true" and page.headers["etag"].endswith(':t"')
        late = await world.get("s", "?live=long-poll&offset=now&timeout_ms=20")
        assert late.status == 204 and late.headers["stream-up-to-date"] == "true"

    play(story)


def test_a_node_that_knows_says_so_for_a_local_read_too() -> None:
    async def story(world: World) -> None:
        await followed(world)
        world.service.local.agreement = None
        page = await world.get("s", f"?offset=-1&{LOCAL}")
        assert page.headers["stream-up-to-date"] == "true" and page.headers["etag"].endswith(':t"')

    play(story)


def test_a_local_page_is_asked_for_again_and_its_tag_does_not_say_that_it_is_all() -> None:
    async def story(world: World) -> None:
        await followed(world)
        page = await world.get("s", f"?offset=-1&{LOCAL}")
        assert page.headers["cache-control"] == "no-cache"
        assert not page.headers["etag"].endswith(':t"'), (
            "a cache that renews it by a node that knows would go on without the header"
        )
        again = await world.get("s", f"?offset=-1&{LOCAL}", if_none_match=page.headers["etag"])
        assert again.status == 304 and "stream-up-to-date" not in again.headers
        world.service.local.agreement = None  # it leads now
        knows = await world.get("s", f"?offset=-1&{LOCAL}", if_none_match=page.headers["etag"])
        assert knows.status == 200 and knows.headers["stream-up-to-date"] == "true"

    play(story)


def test_a_closed_stream_is_all_there_is_anywhere() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1", stream_closed="true")
        world.service.local.agreement = elsewhere = Elsewhere()
        elsewhere.away = True
        page = await world.get("s", f"?offset=-1&{LOCAL}")
        assert page.headers["stream-up-to-date"] == page.headers[
            "stream-closed"
        ] == "true" and page.headers["etag"].endswith(':c"')

    play(story)


@pytest.mark.parametrize(
    "target", ["s?offset=-1", "s?live=long-poll&offset=now", "s?live=sse&offset=-1"]
)
def test_another_consistency_is_refused(target: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for wrong in ("strong", "", "LOCAL"):
            assert (await world.get(f"{target}&consistency={wrong}")).error == "INVALID_PARAMETER"
        assert (await world.ask("HEAD", "/v1/stream/s?consistency=strong")).status == 400
        assert (
            await world.ask("GET", "/v1/streams?consistency=strong")
        ).error == "INVALID_PARAMETER"

    play(story)


def test_a_live_event_on_a_replica_is_vouched_for_a_moment_later_and_once() -> None:
    async def story(world: World) -> None:
        elsewhere = await followed(world)
        readers = [await world.sse("s") for _ in range(2)]
        for reader in readers:
            (control,) = controls(await reader.chunk())
            assert control["upToDate"] is True, "the opening was asked of the leader"
        before = elsewhere.asked
        await world.post("s", b"3")
        for reader in readers:
            piece = await reader.chunk()
            (control,) = controls(piece)
            assert b"data:[3]" in piece and "upToDate" not in control
            later = await reader.chunk()
            (vouched,) = controls(later)
            assert b"event: data" not in later and vouched["upToDate"] is True
            assert vouched["streamNextOffset"] == control["streamNextOffset"]
        assert elsewhere.asked == before + 1

    play(story)


def test_without_a_leader_a_live_reader_is_not_told_that_it_has_all_until_there_is_one() -> None:
    async def story(world: World) -> None:
        elsewhere = await followed(world)
        reader = await world.sse("s")
        await reader.chunk()
        elsewhere.away = True
        await world.post("s", b"3")
        assert "upToDate" not in controls(await reader.chunk())[0]
        before = elsewhere.asked
        await world.until(lambda: elsewhere.asked > before)
        elsewhere.away = False
        assert controls(await reader.chunk())[0]["upToDate"] is True

    play(story)


def test_a_local_live_reader_is_told_what_comes_and_asks_nobody() -> None:
    async def story(world: World) -> None:
        elsewhere = await followed(world)
        reader = await world.sse("s", f"?live=sse&offset=now&{LOCAL}")
        await reader.chunk()
        await world.post("s", b"3")
        assert b"data:[3]" in await reader.chunk()
        wire = await world.wire()
        wire.send(request("GET", f"/v1/stream/s?live=long-poll&offset=now&{LOCAL}&timeout_ms=5000"))
        await world.until(lambda: world.front.readers.waiters)
        await world.post("s", b"4")
        page = await wire.answer()
        assert page.body == b"[4]" and "stream-up-to-date" not in page.headers
        assert elsewhere.asked == 0 and not world.front.readers.tail_confirmation._unconfirmed

    play(story)
