"""Attributes of streams as clients see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from front_world import Answer, World, play
from test_authorizer import Gate, guarded

from polynya.base import levels
from polynya.base.limits import ATTRS_LISTED_MAX
from polynya.stream.features.attributes import held
from polynya.stream.features.attributes.commands import SetAttributes

NAME = "docs/a"
URL = f"/v1/stream/{NAME}/attrs"


def message(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["message"])


async def put(world: World, body: bytes, url: str = URL, **headers: str) -> str:
    """Set attributes, and return their ETag."""
    answer = await world.ask("PUT", url, body, **headers)
    assert (answer.status, answer.body) == (204, b""), answer
    return answer.headers["etag"]


async def shown(world: World, url: str = URL) -> bytes:
    answer = await world.ask("GET", url)
    assert answer.status == 200, answer
    return answer.body


@pytest.mark.parametrize("url", [URL, f"/v1/streams/{NAME}/attrs", f"/{NAME}/attrs"])
def test_they_are_set_read_merged_and_deleted(url: str) -> None:
    async def story(world: World) -> None:
        uid = (await world.put(NAME)).headers["stream-incarnation"]
        none = await world.ask("GET", url)
        assert (none.status, none.body) == (200, b"{}")
        assert none.headers["content-type"] == "application/json"
        assert none.headers["etag"] == f'"{int(uid):x}.1-0"'
        tag = await put(world, b'{"owner": "x", "b": 1.50}', url)
        found = await world.ask("GET", url)
        assert found.body == b'{"b":1.50,"owner":"x"}'
        assert (found.headers["etag"], found.headers["stream-incarnation"]) == (tag, uid)
        assert found.headers["cache-control"] == "no-store"
        head = await world.ask("HEAD", url)
        assert (head.status, head.headers["etag"]) == (200, tag)
        assert (await world.ask("GET", url, if_none_match=tag)).status == 304
        merged = await world.ask("PATCH", url, b'{"owner":null,"c":{"d":1}}')
        assert (merged.status, merged.body) == (200, b'{"b":1.50,"c":{"d":1}}')
        assert merged.body == await shown(world, url)
        gone = await world.ask("DELETE", url)
        assert (gone.status, gone.headers["etag"]) == (204, none.headers["etag"])
        assert await shown(world, url) == b"{}"
        assert (await world.head(NAME)).headers["stream-next-offset"].startswith("0000000000000000")

    play(story)


def test_if_match_is_judged_where_they_are_changed() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        none = (await world.ask("GET", URL)).headers["etag"]
        first = await put(world, b'{"a":1}', if_match=none)
        second = await put(world, b'{"a":2}', if_match=first)
        for method, body in (("PUT", b'{"a":3}'), ("PATCH", b'{"a":3}'), ("DELETE", None)):
            for stale in (none, first):
                refused = await world.ask(method, URL, body, if_match=stale)
                assert (refused.status, refused.error) == (412, "PRECONDITION")
                assert refused.headers["etag"] == second
                assert "attributes are not those" in message(refused)
        assert await shown(world) == b'{"a":2}'
        third = await world.ask("PATCH", URL, b'{"b":1}', if_match=second)
        assert third.body == b'{"a":2,"b":1}'
        assert (await world.ask("DELETE", URL, if_match=third.headers["etag"])).status == 204

    play(story)


def test_if_none_match_sets_the_first_ones() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        tag = await put(world, b'{"a":1}', if_none_match="*")
        refused = await world.ask("PUT", URL, b'{"a":2}', if_none_match="*")
        assert (refused.status, refused.error, refused.headers["etag"]) == (
            412,
            "PRECONDITION",
            tag,
        )

    play(story)


def test_a_recreated_stream_is_another_one() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        none = (await world.ask("GET", URL)).headers["etag"]
        tag = await put(world, b'{"a":1}')
        assert (await world.ask("DELETE", f"/v1/stream/{NAME}")).status == 204
        await world.put(NAME)
        assert await shown(world) == b"{}"
        for method, body in (("PUT", b'{"a":3}'), ("PATCH", b'{"a":3}'), ("DELETE", None)):
            for stale in (none, tag):
                refused = await world.ask(method, URL, body, if_match=stale)
                assert refused.status == 412, refused
        refused = await world.ask("PUT", URL, b'{"a":3}', if_match=none)
        assert refused.error == "INCARNATION_MISMATCH" and "created again" in message(refused)

    play(story)


def test_a_creation_gives_the_first_ones() -> None:
    async def story(world: World) -> None:
        created = await world.put(NAME, stream_attrs='{"b":1, "a":"\\u00e9"}')
        assert created.status == 201, created
        assert await shown(world) == '{"a":"é","b":1}'.encode()
        for same in ('{"a":"\\u00e9","b":1}', '{"b":1,"a":"\\u00E9"}'):
            assert (await world.put(NAME, stream_attrs=same)).status == 200
        assert (await world.put(NAME)).status == 200, "they are compared only if there are any"
        other = await world.put(NAME, stream_attrs='{"a":1}')
        assert (other.status, other.error) == (409, "EXISTS_DIFFERENT")
        assert "its attributes are others than those of Stream-Attrs" in message(other)
        assert (await world.put("docs/b", stream_attrs="{}")).status == 201
        fork = await world.put(
            "docs/f", stream_forked_from=f"/v1/stream/{NAME}", stream_attrs='{"f":1}'
        )
        assert fork.status == 201
        assert await shown(world, "/v1/stream/docs/f/attrs") == b'{"f":1}'
        assert (await world.put("docs/g", stream_forked_from=f"/v1/stream/{NAME}")).status == 201
        assert await shown(world, "/v1/stream/docs/g/attrs") == b"{}"

    play(story)


@pytest.mark.parametrize(
    ("method", "body", "headers", "status", "code", "shows"),
    [
        ("PUT", b"", {}, 400, "INVALID_REQUEST", "one JSON object"),
        ("PUT", b"[1]", {}, 400, "INVALID_REQUEST", "one JSON object"),
        ("PATCH", b"1", {}, 400, "INVALID_REQUEST", "one JSON object"),
        ("PATCH", b'{"a":' * 3000, {}, 400, "INVALID_REQUEST", "attributes"),
        ("PUT", b'{"a":"%b"}' % (b"x" * 16384), {}, 413, "BODY_TOO_LARGE", "16,384"),
        ("PUT", b"{}", {"if_match": "*"}, 400, "INVALID_HEADER", "If-Match must be the ETag"),
        ("PUT", b"{}", {"if_none_match": '"a"'}, 400, "INVALID_HEADER", "must be *"),
        ("PUT", b"{}", {"stream_incarnation": "x"}, 400, "INVALID_HEADER", "Stream-Incarnation"),
        ("PUT", b"{}", {"stream_incarnation": "7"}, 412, "INCARNATION_MISMATCH", ""),
        ("PUT", b"{}", {"stream_attrs": "{}"}, 400, "NOT_SUPPORTED", "Stream-Attrs"),
        ("PUT", b"{}", {"stream_record_match": "1"}, 400, "NOT_SUPPORTED", "Stream-Record-Match"),
        ("PATCH", b"{}", {"if_none_match": "*"}, 400, "NOT_SUPPORTED", "If-None-Match"),
        ("DELETE", None, {"if_none_match": "*"}, 400, "NOT_SUPPORTED", "If-None-Match"),
        ("GET", None, {"if_match": '"1"'}, 400, "NOT_SUPPORTED", "If-Match"),
        ("POST", b"{}", {}, 405, "METHOD_NOT_ALLOWED", "PATCH"),
    ],
)
def test_what_is_wrong_is_said(
    method: str, body: bytes | None, headers: dict[str, str], status: int, code: str, shows: str
) -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        tag = await put(world, b'{"a":1}')
        answer = await world.ask(method, URL, body, **headers)
        assert (answer.status, answer.error) == (status, code), answer
        assert shows in message(answer)
        assert (await world.ask("GET", URL)).headers["etag"] == tag

    play(story)


@pytest.mark.parametrize("text", ["1", "{", "[]", '{"\xe9":1}', '{"a":"%s"}' % ("x" * 16384)])
def test_a_creation_with_a_bad_header_creates_nothing(text: str) -> None:
    async def story(world: World) -> None:
        answer = await world.put(NAME, stream_attrs=text)
        assert (answer.status, answer.error) == (400, "INVALID_HEADER")
        assert "Stream-Attrs" in message(answer)
        assert (await world.head(NAME)).status == 404

    play(story)


def test_a_stream_that_is_not_there_has_none() -> None:
    async def story(world: World) -> None:
        for method, body in (
            ("GET", None),
            ("PUT", b"{}"),
            ("PUT", b'{"a":1}'),
            ("PATCH", b'{"a":1}'),
            ("DELETE", None),
        ):
            answer = await world.ask(method, URL, body)
            assert (answer.status, answer.error) == (404, "NOT_FOUND"), method
        for path in ("/docs/attrs", "/v1/stream/docs/attrs/b", "/v1/stream/docs/a/attrs/b"):
            assert (await world.ask("GET", path)).error == "INVALID_NAME", path
        assert (await world.put("attrs")).status == 201, "a stream of the default bucket"

    play(story)


def test_a_full_group_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "ATTRS_GROUP_BYTES", 10)

    async def story(world: World) -> None:
        await world.put(NAME)
        for answer in (
            await world.ask("PUT", URL, b'{"a":"xxxxxxx"}'),
            await world.ask("PATCH", URL, b'{"a":"xxxxxxx"}'),
            await world.put("docs/b", stream_attrs='{"a":"xxxxxxx"}'),
        ):
            assert (answer.status, answer.error) == (507, "ATTRS_FULL")
        assert (await world.head("docs/b")).status == 404

    play(story)


def test_a_merge_begins_again_when_they_change_meanwhile() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        service, handed = world.service, 0
        propose = service.proposals.propose_to

        def between(group: int, command: object, done: object) -> None:
            nonlocal handed
            if isinstance(command, SetAttributes) and handed < 3:
                handed += 1
                other = SetAttributes(NAME, b'{"n":%d}' % handed, service.now_ms())
                propose(group, other, lambda reply: None)
            propose(group, command, done)  # type: ignore[arg-type]

        service.proposals.propose_to = between  # type: ignore[method-assign, assignment]
        answer = await world.ask("PATCH", URL, b'{"a":1}')
        assert (answer.status, answer.body, handed) == (200, b'{"a":1,"n":3}', 3)
        handed = -100
        answer = await world.ask("PATCH", URL, b'{"a":2}')
        assert (answer.status, answer.error) == (503, "UNAVAILABLE")
        assert "16 merges" in message(answer)

    play(story)


def test_the_list_shows_them_when_asked() -> None:
    async def story(world: World) -> None:
        await world.put(NAME, stream_attrs='{"a":1}')
        await world.put("docs/b")
        plain = json.loads((await world.ask("GET", "/v1/streams")).body)["streams"]
        assert all("attrs" not in each and "attrs_etag" not in each for each in plain)
        found = json.loads((await world.ask("GET", "/v1/streams?attrs=1")).body)["streams"]
        assert [each["attrs"] for each in found] == [{"a": 1}, {}]
        for each in found:
            tag = (await world.ask("GET", f"/v1/stream/{each['name']}/attrs")).headers["etag"]
            assert each["attrs_etag"] == tag
        bad = await world.ask("GET", "/v1/streams?attrs=true")
        assert (bad.status, bad.error) == (400, "INVALID_PARAMETER")
        for number in range(ATTRS_LISTED_MAX):
            await world.put(f"more/{number}")
        page = json.loads((await world.ask("GET", "/v1/streams?attrs=1&limit=1000")).body)
        assert len(page["streams"]) == ATTRS_LISTED_MAX and page["next"] is not None

    play(story)


def test_the_list_can_be_of_those_with_an_attribute() -> None:
    async def story(world: World) -> None:
        for name, attrs in (
            ("a", '{"owner":"shop","n":3,"on":true}'),
            ("b", '{"owner":"\\u00e9","n":30}'),
            ("c", "{}"),
            ("d", '{"owner":{"owner":"shop"},"n":"3"}'),
        ):
            await world.put(f"docs/{name}", stream_attrs=attrs)

        async def names(query: str) -> list[str]:
            page = json.loads((await world.ask("GET", f"/v1/streams?{query}")).body)
            return [each["name"][-1] for each in page["streams"]]

        assert await names("attr.owner=shop") == ["a"]
        assert await names("attr.owner=%C3%A9") == ["b"]
        assert await names("attr.n=3") == ["a", "d"]
        assert await names("attr.n=3&attr.on=true") == ["a"]
        assert await names('attr.owner={"owner":"shop"}') == ["d"]
        assert await names("attr.missing=x") == []
        page = json.loads((await world.ask("GET", "/v1/streams?attr.n=30&limit=1")).body)
        assert (page["streams"], page["next"]) == ([], "docs/a"), "a page without any goes on"
        many = "&".join(f"attr.n{number}=1" for number in range(9))
        for bad, code in (("attr.=x", "UNKNOWN_PARAMETER"), (many, "INVALID_PARAMETER")):
            answer = await world.ask("GET", f"/v1/streams?{bad}")
            assert (answer.status, answer.error) == (400, code)

    play(story)


def test_an_older_node_in_the_cluster_makes_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        monkeypatch.setattr(type(world.service), "level", levels.ATTRIBUTES_LEVEL - 1)
        for answer in (
            await world.ask("PUT", URL, b'{"a":1}'),
            await world.ask("PATCH", URL, b'{"a":1}'),
            await world.ask("DELETE", URL),
            await world.put("docs/b", stream_attrs='{"a":1}'),
        ):
            assert (answer.status, answer.error) == (503, "UPGRADE_PENDING")
        assert await shown(world) == b"{}"

    play(story)


def test_reading_needs_read_and_changing_needs_append(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        url = "/v1/stream/orders/a/attrs"
        writer, reader = gate.bearer("writer"), gate.bearer("reader")
        created = await world.ask(
            "PUT", "/v1/stream/orders/a", b"", stream_attrs='{"a":1}', **writer
        )
        assert created.status == 201
        for method, body in (("PUT", b'{"a":2}'), ("PATCH", b'{"a":2}'), ("DELETE", None)):
            assert (await world.ask(method, url, body, **reader)).status == 403
            assert (await world.ask(method, url, body, **writer)).status in (200, 204)
        for method in ("GET", "HEAD"):
            assert (await world.ask(method, url, **reader)).status == 200
            assert (await world.ask(method, url, **writer)).status == 403
        assert (await world.ask("GET", url)).status == 401

    def setup(gate: Gate) -> None:
        gate.token("writer", "create,append:orders/")
        gate.token("reader", "read:orders/")

    guarded(tmp_path, story, setup=setup)
