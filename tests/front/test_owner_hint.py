"""`Stream-Owner`: an answer about a stream that another node leads says which."""

from __future__ import annotations

from front_world import World, play, request

OWNER = "http://10.0.0.2:4437"


def test_every_answer_about_a_stream_of_another_node_names_it() -> None:
    async def story(world: World) -> None:
        world.service.hint = lambda name, zone: OWNER if name == "default/s" else ""
        for name, owner in (("s", OWNER), ("t", None)):
            answers = [
                await world.put(name),
                await world.post(name, b"1"),
                await world.get(name, "?offset=-1"),
                await world.head(name),
            ]
            answers += [
                await world.get(name, "?offset=nonsense"),
                await world.get(name, "/retention"),
            ]
            answers.append(await world.get(name, "?offset=now&live=long-poll&timeout_ms=10"))
            answers.append(await world.post(name, b"nonsense"))
            assert [answer.headers.get("stream-owner") for answer in answers] == [owner] * len(
                answers
            )
        assert "stream-owner" not in (await world.ask("GET", "/v1/streams")).headers
        assert "stream-owner" not in (await world.ask("GET", "/nowhere")).headers

    play(story)


def test_the_hint_is_for_the_zone_that_the_client_names() -> None:
    async def story(world: World) -> None:
        world.service.hint = lambda name, zone: OWNER if zone == "b" else ""
        await world.put("s")
        for zone, owner in (("b", OWNER), ("a", None), ("b", OWNER)):
            for answer in (
                await world.post("s", b"1", stream_zone=zone),
                await world.get("s", "?offset=-1", stream_zone=zone),
            ):
                assert answer.headers.get("stream-owner") == owner, answer

    play(story)


def test_appends_of_one_shape_on_one_connection_name_it_each_time() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        wire = await world.wire()
        for number, owner in enumerate(["", OWNER, OWNER, "", OWNER, OWNER]):
            world.service.hint = (lambda name, zone, owner=owner: owner) if owner else None  # type: ignore[misc]
            headers = {
                "content_type": "application/json",
                "producer_id": "p",
                "producer_epoch": "0",
                "producer_seq": str(number),
            }
            wire.send(request("POST", "/v1/stream/s", b"1", **headers))
            answer = await wire.answer(method="POST")
            assert answer.status == 200 and answer.headers.get("stream-owner", "") == owner
            assert answer.headers["producer-seq"] == str(number)
        wire.send(request("POST", "/v1/stream/s", b"1", **headers))
        again = await wire.answer(method="POST")
        assert again.status == 204 and again.headers["stream-owner"] == OWNER
        await world.ask("DELETE", "/v1/stream/s")
        wire.send(request("POST", "/v1/stream/s", b"1", **{**headers, "producer_seq": "6"}))
        gone = await wire.answer(method="POST")
        assert gone.error == "NOT_FOUND" and gone.headers["stream-owner"] == OWNER

    play(story)


def test_payload_of_clients_that_name_a_zone_is_counted() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for zone in ("b", "b", "a"):
            await world.post("s", b"[1,2]", stream_zone=zone)
        await world.post("s", b"[1,2]")
        clients = world.front.context.clients
        assert clients.came == {"b": 10, "a": 5}
        await world.get("s", "?offset=-1", stream_zone="b")
        assert clients.went == {"b": len(b"[1,2,1,2,1,2,1,2]")}

    play(story)
