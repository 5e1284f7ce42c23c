"""Defences against web pages: the Host check where no token is needed, and the Origin check of all
changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from front_world import Answer, Wire, World, play

from polynya.front.http.protocol.cors import Cors
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.extension import Request, Response
from polynya.front.http.protocol.hosts import Hosts

Story = Callable[[World], Awaitable[None]]
NODES = {"node-2", "10.9.8.7"}
JSON = "Content-Type: application/json"


async def health(request: Request) -> Response:
    return Response(200, b"{}")


def protected(
    story: Story,
    *,
    origins: tuple[str, ...] = ("local",),
    allowed: tuple[str, ...] = ("Polynya.internal.",),
) -> None:
    hosts = Hosts(allowed, lambda: NODES)
    protection = Protection(hosts=hosts, cors=Cors(origins, hosts))
    play(
        story,
        handlers=dict.fromkeys(("/livez", "/readyz", "/health"), health),
        protection=protection,
    )


def lines(
    method: str, target: str, *headers: str, version: str = "HTTP/1.1", body: bytes = b""
) -> bytes:
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {target} {version}", *headers, *length, "", ""]).encode() + body


async def said(wire: Wire, request: bytes, method: str = "GET") -> Answer:
    wire.send(request)
    return await wire.answer(method=method)


async def once(
    world: World,
    method: str,
    target: str,
    *headers: str,
    version: str = "HTTP/1.1",
    body: bytes = b"",
) -> Answer:
    wire = await world.wire()
    answer = await said(wire, lines(method, target, *headers, version=version, body=body), method)
    wire.close()
    return answer


# --- Host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.:4437", "a.b.localhost", "127.0.0.1", "192.168.1.7:4437", "8.8.8.8", "[::1]:4437", "[2001:db8::1]",
     "node-2:4437", "NODE-2", "polynya.internal", "polynya.internal.:80"],
)  # fmt: skip
def test_hosts_that_are_the_node_s_own_are_answered(host: str) -> None:
    async def story(world: World) -> None:
        assert (await once(world, "PUT", "/v1/stream/a", f"Host: {host}", JSON)).status == 201

    protected(story)


@pytest.mark.parametrize(
    "host",
    ["evil.com", "evil.com:4437", "EVIL.com.", "localhost.evil.com", "127.0.0.1.evil.com", "node-22", "xn--bcher-kva.example", "2130706433",
     "127.1", "0x7f.0.0.1", "[localhost]", "localhost:80:80", "polynya", ""],
)  # fmt: skip
def test_other_hosts_are_misdirected(host: str) -> None:
    async def story(world: World) -> None:
        for method, target in (
            ("GET", "/v1/stream/a?offset=-1"),
            ("PUT", "/v1/stream/a"),
            ("POST", "/v1/nowhere"),
            ("OPTIONS", "/v1/stream/a"),
        ):
            answer = await once(world, method, target, f"Host: {host}", JSON)
            assert (answer.status, answer.error, answer.headers["connection"]) == (
                421,
                "HOST_NOT_ALLOWED",
                "close",
            ), method
            assert b"allowed_hosts" in answer.body
        assert (await once(world, "HEAD", "/v1/stream/a", f"Host: {host}")).status == 421
        assert (await once(world, "GET", "/v1/stream/a", "Host: localhost")).status == 404, (
            "nothing was made"
        )

    protected(story)


def test_any_host_may_be_allowed() -> None:
    async def story(world: World) -> None:
        assert (
            await once(
                world, "PUT", "/v1/stream/a", "Host: evil.com", JSON, "Origin: http://evil.com"
            )
        ).status == 201

    protected(story, allowed=("*",))


def test_old_clients_need_no_host_and_what_they_send_counts() -> None:
    async def story(world: World) -> None:
        assert (await once(world, "GET", "/v1/streams", version="HTTP/1.0")).status == 200
        assert (
            await once(world, "GET", "/v1/streams", "Host: evil.com", version="HTTP/1.0")
        ).status == 421
        assert (await once(world, "GET", "/v1/streams")).error == "HOST_MISSING"
        assert (
            await once(world, "GET", "/v1/streams", "Host: localhost", "Host: evil.com")
        ).error == "DUPLICATE_HEADER"

    protected(story)


def test_the_host_of_an_absolute_target_counts_instead_of_the_header() -> None:
    async def story(world: World) -> None:
        assert (
            await once(world, "GET", "http://evil.com/v1/streams", "Host: localhost")
        ).status == 421
        assert (await once(world, "GET", "http://evil.com/livez", "Host: localhost")).status == 421
        assert (
            await once(world, "GET", "HTTP://LocalHost:9/v1/streams", "Host: evil.com")
        ).status == 200
        assert (
            await once(world, "GET", "http://localhost@evil.com/v1/streams", "Host: localhost")
        ).error == "BAD_TARGET"
        wire = await world.wire()
        assert (await said(wire, lines("GET", "/v1/streams", "Host: localhost"))).status == 200
        assert (
            await said(wire, lines("GET", "http://evil.com/v1/streams", "Host: localhost"))
        ).status == 421

    protected(story)


def test_probes_are_answered_under_any_host_and_open_nothing_else() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        for target in ("/livez", "/readyz", "/readyz?verbose"):
            assert (await said(wire, lines("GET", target, "Host: evil.com"))).status == 200
        assert (await said(wire, lines("GET", "/health", "Host: evil.com"))).status == 421
        for target in ("/livez/", "/readyz/x", "/x?/livez", "/%6civez"):
            assert (await once(world, "GET", target, "Host: evil.com")).status == 421, target

    protected(story)


def test_a_refused_request_is_answered_before_its_body_and_nothing_follows_it() -> None:
    async def story(world: World) -> None:
        for refused in ("Host: evil.com", "Host: localhost\r\nOrigin: null"):
            wire = await world.wire()
            wire.send(
                lines(
                    "POST",
                    "/v1/stream/a",
                    refused,
                    JSON,
                    "Content-Length: 30000000",
                    "Expect: 100-continue",
                )
            )
            assert (await wire.answer()).status in (403, 421)
            assert await wire.ended()
            wire = await world.wire()
            wire.send(
                lines("POST", "/v1/stream/a", refused, JSON, "Transfer-Encoding: chunked")
                + lines("PUT", "/v1/stream/a", "Host: localhost", JSON)
            )
            assert (await wire.answer()).status in (403, 421)
            assert await wire.ended()
        assert (await once(world, "HEAD", "/v1/stream/a", "Host: localhost")).status == 404, (
            "what came as a body was no request"
        )

    protected(story)


def test_a_connection_that_repeats_appends_is_looked_at_again_when_its_host_or_origin_changes() -> (
    None
):
    async def story(world: World) -> None:
        assert (await once(world, "PUT", "/v1/stream/a", "Host: localhost", JSON)).status == 201
        for last in (("Host: evil.com",), ("Host: localhost", "Origin: http://evil.com")):
            wire = await world.wire()
            for _ in range(4):
                assert (
                    await said(
                        wire, lines("POST", "/v1/stream/a", "Host: localhost", JSON, body=b"1")
                    )
                ).status == 204
            assert (
                await said(wire, lines("POST", "/v1/stream/a", *last, JSON, body=b"1"))
            ).status in (403, 421)
        wire = await world.wire()
        wire.send(
            lines("POST", "/v1/stream/a", "Host: localhost", JSON, body=b"1")
            + lines("POST", "/v1/stream/a", "Host: evil.com", JSON, body=b"1")
        )
        assert [(await wire.answer()).status for _ in range(2)] == [204, 421]
        answer = await once(world, "GET", "/v1/stream/a?offset=-1", "Host: localhost")
        assert answer.body == b"[%b]" % b",".join([b"1"] * 9)

    protected(story)


# --- Origin ---------------------------------------------------------------------------------------

LOCAL = (
    "http://localhost:5173", "https://localhost", "http://app.localhost:1", "http://127.0.0.1:8000", "http://127.7.7.7", "http://[::1]:3000",
    "http://node-2:9000", "https://polynya.internal", "http://10.9.8.7:1",
)  # fmt: skip
FOREIGN = (
    "null", "", "http://evil.com", "https://evil.com:4437", "http://localhost.evil.com", "http://203.0.113.9", "http://8.8.8.8:4437",
    "http://[2001:db8::1]", "file://", "chrome-extension://localhost", "http://localhost@evil.com", "http://evil.com#localhost",
)  # fmt: skip


async def reads(world: World, origin: str, host: str = "localhost:4437") -> str | None:
    """Return the origin that may read a response to a page of `origin`."""
    answer = await once(world, "GET", "/v1/streams", f"Host: {host}", f"Origin: {origin}")
    assert answer.status == 200, "only what changes something is refused"
    return answer.headers.get("access-control-allow-origin")


async def writes(world: World, method: str, origin: str, host: str = "localhost:4437") -> Answer:
    return await once(
        world,
        method,
        "/v1/stream/a",
        f"Host: {host}",
        f"Origin: {origin}",
        JSON,
        body=b"1" if method == "POST" else b"",
    )


def test_pages_on_this_machine_and_of_the_cluster_read_and_write() -> None:
    async def story(world: World) -> None:
        for origin in LOCAL:
            assert await reads(world, origin) == origin
            answer = await writes(world, "PUT", origin)
            assert (
                answer.status in (200, 201)
                and answer.headers["access-control-allow-origin"] == origin
            )
            assert (
                answer.headers["vary"] == "Origin"
                and "stream-next-offset" in answer.headers["access-control-expose-headers"]
            )
            assert (await writes(world, "POST", origin)).status == 204

    protected(story)


def test_foreign_pages_neither_read_nor_write() -> None:
    async def story(world: World) -> None:
        assert (await once(world, "PUT", "/v1/stream/a", "Host: localhost", JSON)).status == 201
        for origin in FOREIGN:
            assert await reads(world, origin) is None
            for method in ("PUT", "POST", "DELETE", "PATCH", "BREW"):
                answer = await writes(world, method, origin)
                assert (answer.status, answer.error) == (403, "ORIGIN_NOT_ALLOWED"), (
                    method,
                    origin,
                )
                assert (
                    "access-control-allow-origin" not in answer.headers
                    and b"cors_origins" in answer.body
                )
        assert (await once(world, "GET", "/v1/stream/a?offset=-1", "Host: localhost")).body == b"[]"

    protected(story)


def test_a_page_at_the_address_that_it_asks_is_at_home_and_one_at_another_is_not() -> None:
    async def story(world: World) -> None:
        assert (
            await reads(world, "http://192.168.1.7:3000", "192.168.1.7:4437")
            == "http://192.168.1.7:3000"
        )
        assert (
            await writes(world, "PUT", "http://192.168.1.7:4437", "192.168.1.7:4437")
        ).status == 201
        assert (await writes(world, "PUT", "http://192.168.1.8", "192.168.1.7")).status == 403

    protected(story)


def test_preflights_are_always_answered_and_never_open_private_networks() -> None:
    async def story(world: World) -> None:
        for origin in ("http://localhost:5173", "http://evil.com", "null"):
            for target in ("/v1/stream/a", "/nowhere/", "/v1/streams"):
                more = (
                    "Access-Control-Request-Method: PUT",
                    "Access-Control-Request-Private-Network: true",
                )
                answer = await once(
                    world, "OPTIONS", target, "Host: localhost", f"Origin: {origin}", *more
                )
                assert (
                    answer.status == 204
                    and "content-type" in answer.headers["access-control-allow-headers"]
                )
                assert answer.headers.get("access-control-allow-origin") == (
                    origin if origin == "http://localhost:5173" else None
                )
                assert not [name for name in answer.headers if "private-network" in name]
        assert (await once(world, "OPTIONS", "/v1/stream/a", "Host: localhost")).status == 204

    protected(story)


def test_requests_without_an_origin_pass() -> None:
    async def story(world: World) -> None:
        answer = await once(world, "PUT", "/v1/stream/a", "Host: localhost", JSON)
        assert answer.status == 201 and "access-control-allow-origin" not in answer.headers
        assert (await once(world, "GET", "/v1/streams", "Host: localhost")).headers[
            "vary"
        ] == "Origin", "caches must not mix them"

    protected(story)


def test_listed_origins_alone() -> None:
    async def story(world: World) -> None:
        assert await reads(world, "https://app.example") == "https://app.example"
        assert (await writes(world, "PUT", "https://app.example")).status == 201
        assert (await writes(world, "POST", "http://localhost:5173")).status == 403
        assert (await writes(world, "POST", "http://localhost:4437")).status == 204, (
            "the node's own pages"
        )
        assert (await writes(world, "POST", "http://node-2", "node-2:4437")).status == 403, (
            "another port of it"
        )

    protected(story, origins=("https://app.example",))


def test_listed_origins_and_local_ones() -> None:
    async def story(world: World) -> None:
        assert (await writes(world, "PUT", "https://app.example")).status == 201
        assert (await writes(world, "POST", "http://localhost:5173")).status == 204
        assert (await writes(world, "POST", "https://app.example:444")).status == 403

    protected(story, origins=("https://app.example", "local"))


def test_no_origin_but_the_node_s_own() -> None:
    async def story(world: World) -> None:
        assert (await writes(world, "PUT", "http://localhost:4437")).status == 201
        assert (await writes(world, "POST", "http://localhost:5173")).status == 403
        assert await reads(world, "http://localhost:5173") is None

    protected(story, origins=())


def test_any_origin_when_that_is_asked_for() -> None:
    async def story(world: World) -> None:
        for number, origin in enumerate(("http://evil.com", "null")):
            assert await reads(world, origin) == "*"
            assert (await writes(world, "PUT", origin)).status == (200 if number else 201)

    protected(story, origins=("*",))
