"""The id of an event is accepted as an offset: a page that was reloaded can send no header."""

from __future__ import annotations

from front_world import World, play


def test_a_reloaded_page_goes_on_behind_its_last_event() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[1,2]")
        wire = await world.sse("s")
        last = (await wire.chunk()).split(b"\n")[0].removeprefix(b"id:").decode()
        assert "~" in last
        await world.post("s", b"[3]")
        again = await world.sse("s", f"?live=sse&offset={last}")
        assert b"data:[3]" in await again.chunk()
        page = await world.get("s", f"?offset={last}")
        assert page.body == b"[3]"
        polled = await world.get("s", f"?live=long-poll&offset={last}")
        assert polled.body == b"[3]"

    play(story)


def test_the_id_of_another_incarnation_is_told_from_an_offset() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[1,2]")
        wire = await world.sse("s")
        last = (await wire.chunk()).split(b"\n")[0].removeprefix(b"id:").decode()
        await world.ask("DELETE", "/v1/stream/s")
        await world.put("s")
        await world.post("s", b"[7,8,9]")
        again = await world.ask("GET", f"/v1/stream/s?live=sse&offset={last}")
        assert b"STREAM_RECREATED" in again.body or again.status >= 400

    play(story)


def test_what_only_looks_like_an_id_is_refused() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for offset in ("~", "now~1.1", "1_1~", "x~1.1", "1_1~zz"):
            answer = await world.get("s", f"?live=sse&offset={offset}")
            assert answer.error == "INVALID_OFFSET", offset
            assert (await world.get("s", f"?offset={offset}")).error == "INVALID_OFFSET", offset

    play(story)
