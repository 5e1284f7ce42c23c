"""Conditions on appends: one that is not supported is refused by its name, and nothing is applied."""

from __future__ import annotations

import json

import pytest
from front_world import World, play

from polynya.front.http.routes.conditions import HEADERS, PARAMETERS
from polynya.wire.http.conditions import CONDITIONS

STALE = f'"{0:016d}_{0:016d}"'
APPENDS: dict[str, tuple[bytes, str, dict[str, str]]] = {
    "plain": (b"1", "application/json", {}),
    "batch": (b"[1,2]", "application/json", {}),
    "closing": (b"1", "application/json", {"stream_closed": "true"}),
    "only closing": (b"", "application/json", {"stream_closed": "true"}),
    "keyed": (b"1", "application/json", {"record_key": "a"}),
    "records": (b'[{"value":1}]', "application/vnd.polynya.records+json", {}),
    "of a producer": (
        b"1",
        "application/json",
        {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"},
    ),
}


@pytest.mark.parametrize("kind", APPENDS)
@pytest.mark.parametrize("header", sorted({*HEADERS, "if-none-match"} - CONDITIONS))
def test_an_append_with_a_condition_that_is_not_judged_appends_nothing(
    kind: str, header: str
) -> None:
    body, content_type, options = APPENDS[kind]

    async def story(world: World) -> None:
        await world.put("docs/a")
        assert (await world.post("docs/a", b"0")).status == 204
        field = {header.replace("-", "_"): STALE}
        refused = await world.post("docs/a", body, content_type, **options, **field)
        assert (refused.status, refused.error) == (400, "NOT_SUPPORTED")
        message = json.loads(refused.body)["error"]["message"].lower()
        assert header in message and "post" in message
        assert (await world.get("docs/a")).body == b"[0]"
        assert "stream-closed" not in (await world.head("docs/a")).headers
        done = await world.post("docs/a", body, content_type, **options)
        assert done.status in (200, 204), "without the condition it is applied"

    play(story)


@pytest.mark.parametrize("header", ["if-unmodified-since", "if-none-match"])
def test_a_refused_condition_names_those_that_appends_judge(header: str) -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        refused = await world.post("docs/a", b"1", **{header.replace("-", "_"): "*"})
        message = json.loads(refused.body)["error"]["message"].lower()
        assert all(judged in message for judged in CONDITIONS)

    play(story)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
@pytest.mark.parametrize("header", HEADERS)
def test_no_other_method_passes_a_condition_over(method: str, header: str) -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        for target in ("/v1/stream/docs/a", "/docs/a"):
            refused = await world.ask(method, target, **{header.replace("-", "_"): "1"})
            assert refused.status == 400
            is_judged = (method, header) == ("PUT", "stream-attrs")  # and "1" is no object
            code = "INVALID_HEADER" if is_judged else "NOT_SUPPORTED"
            assert method == "HEAD" or refused.error == code
        assert (await world.head("docs/a")).status == 200

    play(story)


@pytest.mark.parametrize("header", [*HEADERS, "if-none-match"])
def test_no_trim_and_no_change_of_a_retention_passes_a_condition_over(header: str) -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        await world.post("docs/a", b"[1,2,3]")
        field = {header.replace("-", "_"): '"x"'}
        for method, body in (
            ("POST", b'{"keep_bytes": 1}'),
            ("PUT", b'{"bytes": 1}'),
            ("DELETE", None),
        ):
            refused = await world.ask(method, "/v1/stream/docs/a/retention", body, **field)
            assert (refused.status, refused.error) == (400, "NOT_SUPPORTED")
            assert header in json.loads(refused.body)["error"]["message"].lower()
        assert (await world.get("docs/a")).body == b"[1,2,3]"

    play(story)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_a_parameter_that_is_not_supported_is_refused_by_its_name(parameter: str) -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        for live in ("", "&live=long-poll", "&live=sse"):
            refused = await world.get("docs/a", f"?offset=-1&{parameter}=1{live}")
            assert (refused.status, refused.error) == (400, "NOT_SUPPORTED")
            assert f"'{parameter}'" in json.loads(refused.body)["error"]["message"]

    play(story)


def test_a_creation_can_demand_that_the_stream_does_not_exist() -> None:
    async def story(world: World) -> None:
        assert (await world.put("docs/a", if_none_match="*")).status == 201
        for content_type in ("application/json", "text/plain"):
            again = await world.put("docs/a", content_type, if_none_match="*")
            assert (again.status, again.error) == (412, "PRECONDITION")
        assert (await world.put("docs/a")).status == 200
        bad = await world.put("docs/a", if_none_match='"x"')
        assert (bad.status, bad.error) == (400, "INVALID_HEADER")
        producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        for more in (producer, {"stream_forked_from": "/v1/stream/docs/a"}):
            refused = await world.put("docs/b", if_none_match="*", **more)
            assert (refused.status, refused.error) == (400, "NOT_SUPPORTED")

    play(story)
