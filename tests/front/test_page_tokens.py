"""Tokens of pages: minted, in a URL, in a cookie; and the attacks of other pages."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from front_world import Answer, World, play, request

from polynya.access import Access
from polynya.access.token_file import TokenFile, Wanted
from polynya.front.http.api.short_tokens import PATH, ShortTokenRoute
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.auth.cookies import TokenCookie
from polynya.front.http.protocol.cors import Cors
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.extension import Request, Response
from polynya.front.http.protocol.hosts import Hosts

APP = "https://app.example"
JSON = {"content_type": "application/json"}


class Gate:
    """The tokens of a node: `server` may everything under runs/, `root` administers."""

    def __init__(self, folder: Path) -> None:
        self.tokens = TokenFile(folder)
        now_ms = int(time.time() * 1000)
        self.texts = {
            name: self.tokens.add(
                Wanted(name=name, scopes=scopes, expires_in_seconds=seconds), now_ms
            )[1]
            for name, scopes, seconds in (
                ("server", ["read,append,create:runs/"], None),
                ("root", ["all,admin"], None),
                ("metrics", ["metrics"], None),
            )
        }
        self.access = Access(self.tokens)

    def bearer(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.texts[name]}"}


Story = Callable[[World, Gate], Awaitable[None]]


def guarded(
    folder: Path,
    story: Story,
    *,
    origins: tuple[str, ...] = (APP, "local"),
    cookie: str = "__Host-polynya",
) -> None:
    gate = Gate(folder)
    cors = Cors(origins, Hosts(()), credentials=bool(cookie))
    authorizer = Authorizer(
        gate.access,
        audit=lambda *note: None,
        cookie=TokenCookie(cookie, cors) if cookie else None,
    )

    async def guarded_story(world: World) -> None:
        for name in ("runs/7", "runs/70"):
            made = await world.ask("PUT", f"/v1/stream/{name}", **JSON, **gate.bearer("server"))
            assert made.status == 201
        await story(world, gate)

    async def secret(asked: Request) -> Response:
        return Response(200, b"{}")

    play(
        guarded_story,
        handlers={PATH: ShortTokenRoute(gate.access.counters).handle, "/v1/node": secret},
        protection=Protection(authorizer=authorizer, cors=cors),
    )


async def mint(world: World, headers: dict[str, str], **body: object) -> Answer:
    return await world.ask("POST", PATH, json.dumps(body).encode(), **JSON, **headers)


async def short(world: World, gate: Gate, **body: object) -> str:
    answer = await mint(world, gate.bearer("server"), **body)
    assert answer.status == 201, answer
    return str(json.loads(answer.body)["token"])


def test_a_server_mints_a_token_and_a_page_reads_with_it(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        answer = await mint(world, gate.bearer("server"), stream="runs/7")
        assert answer.status == 201
        assert answer.headers["cache-control"] == "no-store"
        assert gate.access.counters.minted == 1
        token = json.loads(answer.body)["token"]
        page = {"authorization": f"Bearer {token}"}
        assert (await world.get("runs/7", "?offset=-1", **page)).status == 200
        assert (await world.get("runs/70", "?offset=-1", **page)).error == "FORBIDDEN"
        assert (await world.post("runs/7", b"1", **page)).error == "FORBIDDEN"
        events = await world.sse("runs/7", f"?live=sse&offset=-1&access_token={token}")
        assert b"upToDate" in await events.chunk()
        live = f"/v1/live?stream=runs/7&access_token={token}"
        wire = await world.wire()
        wire.send(request("GET", live))
        assert (await wire.answer()).status == 200
        denied = await world.ask("GET", f"/v1/live?stream=runs/70&access_token={token}")
        assert denied.error == "FORBIDDEN"
        listed = await world.ask("GET", "/v1/streams", **page)
        assert json.loads(listed.body)["streams"] == []

    guarded(tmp_path, story)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"stream": "other/1"}, "FORBIDDEN"),
        ({"prefix": "run"}, "FORBIDDEN"),
        ({"stream": "runs/7", "verbs": ["delete"]}, "INVALID_REQUEST"),
        ({"stream": "runs/7", "verbs": ["admin"]}, "INVALID_REQUEST"),
        ({"stream": "runs/7", "expires_in_seconds": 86_400}, "INVALID_REQUEST"),
        ({"stream": "runs/7", "scopes": ["all"]}, "INVALID_REQUEST"),
        ({}, "INVALID_REQUEST"),
    ],
    ids=["other-stream", "wider-prefix", "delete", "admin", "a-day", "unknown-field", "nothing"],
)
def test_a_server_mints_nothing_that_it_has_not(
    tmp_path: Path, body: dict[str, object], error: str
) -> None:
    async def story(world: World, gate: Gate) -> None:
        assert (await mint(world, gate.bearer("server"), **body)).error == error

    guarded(tmp_path, story)


def test_a_token_without_streams_mints_nothing(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        assert (await mint(world, gate.bearer("metrics"), stream="runs/7")).error == "FORBIDDEN"
        assert (await mint(world, {}, stream="runs/7")).error == "UNAUTHORIZED"

    guarded(tmp_path, story)


def test_a_short_token_mints_no_other_and_a_cookie_mints_none(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/")
        page = {"authorization": f"Bearer {token}"}
        assert (await mint(world, page, stream="runs/7")).error == "FORBIDDEN"
        cookie = {"cookie": f"__Host-polynya={gate.texts['server']}", "origin": APP}
        assert (await mint(world, cookie, stream="runs/7")).error == "FORBIDDEN"

    guarded(tmp_path, story)


def test_a_page_of_an_allowed_origin_reads_and_writes_by_a_cookie(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/", verbs=["read", "append"])
        page = {"cookie": f"a=b; __Host-polynya={token}; c=d", "origin": APP}
        for _ in range(3):  # the third would be a learned append
            assert (await world.post("runs/7", b"1", **page)).status == 204
        read = await world.get("runs/7", "?offset=-1", **page)
        assert read.body == b"[1,1,1]"
        assert read.headers["access-control-allow-origin"] == APP
        assert read.headers["access-control-allow-credentials"] == "true"
        assert "public" not in read.headers["cache-control"]
        preflight = await world.ask("OPTIONS", "/v1/stream/runs/7", origin=APP)
        assert preflight.headers["access-control-allow-credentials"] == "true"
        own = {"cookie": page["cookie"], "origin": "http://test"}
        assert (await world.post("runs/7", b"1", **own)).status == 204
        direct = {"cookie": page["cookie"], "sec_fetch_site": "same-origin"}
        assert (await world.get("runs/7", "?offset=-1", **direct)).status == 200

    guarded(tmp_path, story)


@pytest.mark.parametrize(
    "page",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://app.example"},
        {"origin": "https://app.example.evil.example"},
        {"origin": "http://localhost:8000"},
        {"origin": "https://test"},
        {"origin": "http://test:81"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=[
        "foreign-page",
        "sandboxed-frame",
        "the-same-host-without-tls",
        "a-longer-host",
        "another-server-on-this-machine",
        "the-node-by-another-scheme",
        "the-node-on-another-port",
        "script-or-image-of-a-foreign-page",
        "script-or-image-of-a-sibling-domain",
    ],
)
def test_a_cookie_of_another_page_reads_and_writes_nothing(
    tmp_path: Path, page: dict[str, str]
) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/", verbs=["read", "append"])
        found = {"cookie": f"__Host-polynya={token}", **page}
        for target in ("/v1/stream/runs/7?offset=-1", "/v1/stream/runs/7?live=sse&offset=-1"):
            answer = await world.ask("GET", target, **found)
            assert answer.error == "ORIGIN_NOT_ALLOWED"
            assert "access-control-allow-credentials" not in answer.headers
        assert (await world.post("runs/7", b"1", **found)).error == "ORIGIN_NOT_ALLOWED"

    guarded(tmp_path, story)


def test_a_write_by_a_cookie_without_an_origin_is_refused(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/", verbs=["read", "append", "create"])
        bare = {"cookie": f"__Host-polynya={token}"}
        assert (await world.post("runs/7", b"1", **bare)).error == "ORIGIN_NOT_ALLOWED"
        assert (await world.put("runs/9", **bare)).error == "ORIGIN_NOT_ALLOWED"

    guarded(tmp_path, story)


def test_a_learned_append_does_not_outlive_its_origin(tmp_path: Path) -> None:
    """The fast path of repeated appends passes over no check of the page."""

    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/", verbs=["append"])
        wire = await world.wire()
        for origin, status in ((APP, 204), (APP, 204), (APP, 204), ("https://evil.example", 403)):
            headers = {"cookie": f"__Host-polynya={token}", "origin": origin, **JSON}
            wire.send(request("POST", "/v1/stream/runs/7", b"1", **headers))
            assert (await wire.answer()).status == status

    guarded(tmp_path, story)


def test_no_cookie_administers(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        page = {"cookie": f"__Host-polynya={gate.texts['root']}", "origin": APP}
        assert (await world.get("runs/7", "?offset=-1", **page)).error == "FORBIDDEN"
        assert (await world.ask("GET", "/v1/node", **page)).error == "FORBIDDEN"

    guarded(tmp_path, story)


def test_a_second_cookie_of_a_sibling_domain_is_not_chosen(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/")
        page = {"cookie": f"__Host-polynya=theirs; __Host-polynya={token}", "origin": APP}
        assert (await world.get("runs/7", "?offset=-1", **page)).error == "TOKEN_REFUSED"
        large = request("POST", "/v1/stream/runs/7", None, content_length="900000", **page, **JSON)
        wire = await world.wire()
        wire.send(large)
        assert (await wire.answer()).status == 401

    guarded(tmp_path, story)


def test_a_header_wins_over_a_cookie_and_needs_no_page(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        both = {"cookie": "__Host-polynya=damaged", **gate.bearer("server")}
        assert (await world.get("runs/7", "?offset=-1", **both)).status == 200
        assert (await world.post("runs/7", b"1", **both)).status == 204

    guarded(tmp_path, story)


def test_without_the_setting_a_cookie_is_nothing(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/")
        page = {"cookie": f"__Host-polynya={token}; ={token}", "origin": APP}
        answer = await world.get("runs/7", "?offset=-1", **page)
        assert answer.error == "UNAUTHORIZED"
        assert answer.headers["access-control-allow-origin"] == APP
        assert "access-control-allow-credentials" not in answer.headers

    guarded(tmp_path, story, cookie="")


def test_any_origin_is_never_any_origin_with_cookies(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, prefix="runs/")
        page = {"cookie": f"__Host-polynya={token}", "origin": "https://evil.example"}
        answer = await world.get("runs/7", "?offset=-1", **page)
        assert answer.error == "ORIGIN_NOT_ALLOWED"
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers
        named = await world.get("runs/7", "?offset=-1", **(page | {"origin": APP}))
        assert named.headers["access-control-allow-credentials"] == "true"
        assert named.headers["access-control-allow-origin"] == APP

    guarded(tmp_path, story, origins=("*", APP))


def test_many_short_tokens_have_one_quota_of_streams(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        now_ms = int(time.time() * 1000)
        from polynya.access import Limits

        text = gate.tokens.add(
            Wanted(name="few", scopes=["create:few/"], limits=Limits(streams=4)), now_ms
        )[1]
        gate.access.reload()
        made = 0
        for number in range(8):
            answer = await mint(
                world,
                {"authorization": f"Bearer {text}"},
                prefix=f"few/{number}/",
                verbs=["create"],
            )
            page = {"authorization": f"Bearer {json.loads(answer.body)['token']}"}
            made += (await world.put(f"few/{number}/a", **page)).status == 201
        assert made == 4

    guarded(tmp_path, story)


def test_a_minted_token_is_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World, gate: Gate) -> None:
        token = await short(world, gate, stream="runs/7")
        wire = await world.wire()
        wire.send(request("GET", f"/v1/stream/runs/7?live=sse&offset=-1&access_token={token}"))
        assert (await wire.answer()).status == 200
        refused = await world.get("runs/7", f"?offset=-1&access_token={token}")
        assert refused.error == "TOKEN_IN_URL"
        assert token.encode() not in refused.body
        assert token not in caplog.text

    guarded(tmp_path, story)
