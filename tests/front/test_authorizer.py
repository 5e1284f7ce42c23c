"""The authorizer: permissions over HTTP, on the fast path and the general one, and the effect of
limits."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from front_world import Answer, Wire, World, play, request

from polynya.access import Access, KeysUnknown, Limits, Principal
from polynya.access.jwt_issuer import Expected, Issuer
from polynya.access.token_file import TokenFile, Wanted
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.protocol.cors import Cors
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.extension import Request, Response

JSON = {"content_type": "application/json"}


class Gate:
    """Tokens by name, the access that knows them, and the recorded calls."""

    def __init__(self, folder: Path) -> None:
        self.tokens = TokenFile(folder)
        self.wall = time.time()
        self.notes: list[tuple[str, ...]] = []
        self._texts: dict[str, str] = {}
        self.access: Access
        self.issuer: Issuer | None = None

    def token(self, name: str, *scopes: str, seconds: float | None = None, **limits: float) -> str:
        wanted = Wanted(
            name=name, scopes=list(scopes), expires_in_seconds=seconds, limits=Limits(**limits)
        )
        self._texts[name] = self.tokens.add(wanted, int(self.wall * 1000))[1]
        return self._texts[name]

    def bearer(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._texts[name]}"}

    def revoke(self, name: str) -> None:
        self.tokens.revoke(name, int(self.wall * 1000))
        self.access.tick()


def guarded(
    folder: Path,
    story: Callable[[World, Gate], object],
    *,
    origins: tuple[str, ...] = ("*",),
    setup: Callable[[Gate], None],
) -> None:
    gate = Gate(folder)
    setup(gate)

    async def guarded_story(world: World) -> None:
        gate.access.on_deaths.append(world.front.let_go)
        await story(world, gate)  # type: ignore[misc]

    async def handler(request: Request) -> Response:
        return Response(
            200,
            b'{"who": "%b"}' % (request.principal.name if request.principal else "nobody").encode(),
        )

    gate.access = Access(gate.tokens, wall=lambda: gate.wall, issuer=gate.issuer)
    authorizer = Authorizer(gate.access, audit=lambda *note: gate.notes.append(note))
    paths = ("/livez", "/v1/node", "/metrics", "/v1/secret", "/v1/cluster/health", "/v1/topics")
    mounts = ("/v1/topics/", "/v1/groups", "/v1/transactions", "/v1/buckets/")
    play(
        guarded_story,
        handlers=dict.fromkeys(paths, handler),
        mounts=dict.fromkeys(mounts, handler),
        protection=Protection(authorizer=authorizer, cors=Cors(origins)),
    )


def both(gate: Gate) -> None:
    gate.token("writer", "create,append:orders/")
    gate.token("reader", "read:orders/")
    gate.token("root", "admin")


async def keep(
    wire: Wire, gate: Gate, name: str, body: bytes = b"1", target: str = "/v1/stream/orders/a"
) -> Answer:
    """One append on a kept connection, always of the same shape."""
    wire.send(request("POST", target, body, content_type="application/json", **gate.bearer(name)))
    return await wire.answer()


def test_without_a_token_nothing_but_health_is_answered(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        for method, target in (
            ("GET", "/v1/streams"),
            ("PUT", "/v1/stream/x"),
            ("POST", "/v1/stream/x"),
            ("DELETE", "/v1/stream/x"),
            ("GET", "/v1/node"),
        ):
            answer = await world.ask(method, target, b"1" if method == "POST" else None)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), target
            assert answer.error == "UNAUTHORIZED"
        for bad in (
            "Bearer",
            "Bearer ",
            "Basic dTpw",
            "bearer polynya_x_y",
            "Token x",
            "Bearer " + "x" * 9000,
        ):
            assert (await world.ask("GET", "/v1/streams", authorization=bad)).status == 401
        assert (await world.ask("GET", "/livez")).status == 200
        assert (
            await world.ask("OPTIONS", "/v1/stream/x", origin="https://a.example")
        ).status == 204
        assert gate.access.counters.denied == 11

    guarded(tmp_path, story, setup=both)


def test_the_health_of_the_cluster_is_open_and_knows_who_asks(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        target = "/v1/cluster/health"

        async def who(**headers: str) -> str:
            answer = await world.ask("GET", target, **headers)
            assert answer.status == 200
            return json.loads(answer.body)["who"]

        assert await who(**gate.bearer("reader")) == "reader"
        gate.revoke("reader")
        for headers in (
            {},
            gate.bearer("reader"),
            {"authorization": "Bearer polynya_x_y"},
            {"authorization": "Basic dTpw"},
        ):
            assert await who(**headers) == "nobody"

    guarded(tmp_path, story, setup=both)


def test_the_health_of_the_cluster_waits_for_the_keys_of_the_issuer(tmp_path: Path) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps(
            {"keys": [json.loads(jwt.get_algorithm_by_name("EdDSA").to_jwk(private.public_key()))]}
        )
    )

    def setup(gate: Gate) -> None:
        gate.issuer = Issuer(Expected("https://i.example", "streams"), str(keys))
        claims = {
            "iss": "https://i.example",
            "aud": "streams",
            "sub": "alice",
            "exp": int(gate.wall) + 60,
        }
        gate._texts["alice"] = jwt.encode(claims, private, algorithm="EdDSA")

    async def story(world: World, gate: Gate) -> None:
        assert json.loads(
            (await world.ask("GET", "/v1/cluster/health", **gate.bearer("alice"))).body
        ) == {"who": "alice"}

    guarded(tmp_path, story, setup=setup)


def test_each_verb_on_each_name(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        writer, reader, root = (gate.bearer(name) for name in ("writer", "reader", "root"))
        assert (await world.put("orders/a", **reader)).error == "FORBIDDEN"
        assert (await world.put("jobs", **writer)).error == "FORBIDDEN"
        assert (await world.put("orders/a", **writer)).status == 201
        assert (await world.post("orders/a", b"1", **reader)).status == 403
        assert (await world.post("orders/a", b"1", **writer)).status == 204
        assert (await world.get("orders/a", **writer)).status == 403
        assert (await world.get("orders/a", "?offset=-1", **reader)).body == b"[1]"
        assert (await world.ask("GET", "/orders/a?offset=-1", **reader)).status == 200, (
            "on Ursula's spelling it is the same name"
        )
        assert (
            await world.ask("GET", "/v1/stream/default/orders/a?offset=-1", **reader)
        ).status == 403, "this is another one"
        for target in (
            "/v1/stream/orders%2fa",
            "/v1/stream/orders/../jobs",
            "/v1/stream//orders/a",
            "/v1/stream/orders/./a",
        ):
            assert (await world.ask("GET", target, **reader)).status == 400, target
        assert (await world.ask("DELETE", "/v1/stream/orders/a", **writer)).status == 403
        assert (await world.ask("PUT", "/orders", **writer)).status == 201
        assert (await world.ask("PUT", "/jobs", **writer)).status == 403
        assert (await world.ask("GET", "/v1/secret", **writer)).status == 403, (
            "a route without a rule is for admins"
        )
        assert (await world.ask("GET", "/v1/secret", **root)).body == b'{"who": "root"}'
        assert (await world.ask("GET", "/metrics", **reader)).status == 403
        assert (await world.ask("GET", "/v1/node", **reader)).body == b'{"who": "reader"}'
        assert (await world.ask("DELETE", "/v1/stream/orders/a", **root)).status == 204
        [(act, target, who, remote, outcome, request_id)] = gate.notes
        assert (act, target, who.split()[1], remote, outcome) == (
            "stream.delete",
            "orders/a",
            "root",
            "127.0.0.1",
            "204",
        )
        assert request_id

    guarded(tmp_path, story, setup=both)


def test_a_consumer_group_needs_subscribe_on_its_name(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("joiner", "subscribe:kafka/mine/")
        gate.token("reader", "read,delete,append:kafka/")

    async def story(world: World, gate: Gate) -> None:
        async def asked(method: str, target: str) -> list[int]:
            body = b"{}" if method == "POST" else None
            return [
                (await world.ask(method, target, body, **gate.bearer(name))).status
                for name in ("joiner", "reader")
            ]

        assert await asked("GET", "/v1/groups") == [200, 403], "the route lists what may be"
        for group, expected in (("mine", [200, 403]), ("mine2", [403, 403])):
            assert await asked("GET", f"/v1/groups/{group}") == expected
            assert await asked("POST", f"/v1/groups/{group}/offsets") == expected
            assert await asked("DELETE", f"/v1/groups/{group}") == expected

    guarded(tmp_path, story, setup=setup)


def test_a_topics_verbs_are_those_of_its_streams(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("maker", "create:kafka/orders/")
        gate.token("keeper", "delete,read:kafka/orders/")
        gate.token("stranger", "read,create,delete:kafka/other/")

    async def story(world: World, gate: Gate) -> None:
        async def asked(method: str, target: str) -> list[int]:
            body = None if method in ("GET", "DELETE") else b"{}"
            return [
                (await world.ask(method, target, body, **gate.bearer(name))).status
                for name in ("maker", "keeper", "stranger")
            ]

        assert await asked("PUT", "/v1/topics/orders") == [200, 403, 403]
        assert await asked("PATCH", "/v1/topics/orders") == [403, 200, 403]
        assert await asked("DELETE", "/v1/topics/orders") == [403, 200, 403]
        assert await asked("GET", "/v1/topics/orders") == [403, 200, 403]
        assert await asked("GET", "/v1/topics/other") == [403, 403, 200]
        assert await asked("GET", "/v1/topics") == [403, 200, 200], "the route shows what may be"

    guarded(tmp_path, story, setup=setup)


def test_the_profile_of_a_bucket_needs_create_and_its_retention_delete(tmp_path: Path) -> None:
    scopes = {"maker": "create:logs/", "keeper": "delete,read:logs/"}

    async def story(world: World, gate: Gate) -> None:
        allowed = {"profile": "maker", "retention": "keeper"}
        for name, method, part in product(scopes, ("PUT", "DELETE"), allowed):
            asked = await world.ask(method, f"/v1/buckets/logs/{part}", **gate.bearer(name))
            assert asked.status == (200 if name == allowed[part] else 403)

    guarded(tmp_path, story, setup=lambda gate: [gate.token(*each) for each in scopes.items()])


def test_the_list_shows_what_may_be_read(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("root", "admin")
        gate.token("some", "read:orders/", "read:jobs", "append")

    async def story(world: World, gate: Gate) -> None:
        for name in ("orders/a", "orders/b", "orders-eu/a", "jobs", "jobs-2", "other", "abc/x"):
            assert (await world.put(name, **gate.bearer("root"))).status == 201

        async def listed(query: str, who: str = "some") -> list[str]:
            answer = await world.ask("GET", f"/v1/streams{query}", **gate.bearer(who))
            return [row["name"] for row in json.loads(answer.body)["streams"]]

        assert len(await listed("", "root")) == 7
        assert await listed("") == ["jobs", "jobs-2", "orders/a", "orders/b"]
        assert await listed("?prefix=orders") == ["orders/a", "orders/b"]
        assert await listed("?prefix=orders/b") == ["orders/b"]
        assert await listed("?prefix=jobs-") == ["jobs-2"]
        assert await listed("?prefix=other") == []
        assert await listed("?prefix=default/") == ["jobs", "jobs-2"]

    guarded(tmp_path, story, setup=setup)


def test_a_fork_needs_its_source_to_be_readable(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("root", "admin")
        gate.token("forker", "create:copies/", "read:orders/")

    async def story(world: World, gate: Gate) -> None:
        for name in ("orders/a", "secret/a"):
            await world.put(name, **gate.bearer("root"))
        forker = gate.bearer("forker")
        refused = await world.put("copies/a", stream_forked_from="/v1/stream/secret/a", **forker)
        assert refused.error == "FORBIDDEN"
        assert (
            await world.put("copies/b", stream_forked_from="/v1/stream/orders/a", **forker)
        ).status == 201

    guarded(tmp_path, story, setup=setup)


def test_a_repeated_append_goes_the_short_way_until_its_token_is_revoked(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        await world.put("orders/a", **gate.bearer("writer"))
        wire = await world.wire()
        for _ in range(4):
            assert (await keep(wire, gate, "writer")).status == 204
        [connection] = [
            each
            for each in world.front.connections
            if each.peer.principal is not None and each.peer.template is not None
        ]
        gate.revoke("writer")
        assert connection.peer.template is None
        for _ in range(3):
            assert (await keep(wire, gate, "writer")).error == "TOKEN_REFUSED"
        assert connection.peer.template is None, "what is refused is no shape to repeat"

    guarded(tmp_path, story, setup=both)


def test_a_repeated_append_ends_with_the_life_of_its_token(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        gate.token("brief", "create,append", seconds=60)
        gate.access.tick()
        await world.put("orders/a", **gate.bearer("brief"))
        wire = await world.wire()
        for _ in range(4):
            assert (await keep(wire, gate, "brief")).status == 204
        gate.wall += 61
        gate.access.tick()
        assert (await keep(wire, gate, "brief")).status == 401

    guarded(tmp_path, story, setup=both)


@pytest.mark.parametrize("refused", ["reader", "nobody"])
def test_what_was_refused_is_never_learned(refused: str, tmp_path: Path) -> None:
    """The same bytes again and again must not become a shape that is let in unseen."""

    async def story(world: World, gate: Gate) -> None:
        await world.put("orders/a", **gate.bearer("writer"))
        gate._texts["nobody"] = "polynya_0123_x"
        wire = await world.wire()
        for _ in range(6):
            assert (await keep(wire, gate, refused)).status in (401, 403)
        assert (await keep(wire, gate, "writer")).status == 204
        for _ in range(6):
            assert (await keep(wire, gate, refused)).status in (401, 403)
        assert (await world.get("orders/a", "?offset=-1", **gate.bearer("reader"))).body == b"[1]"

    guarded(tmp_path, story, setup=both)


def test_two_principals_on_one_connection_do_not_become_one(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("a", "create,append:orders/")
        gate.token("b", "create,append:orders/")

    async def story(world: World, gate: Gate) -> None:
        await world.put("orders/a", **gate.bearer("a"))
        wire = await world.wire()
        for _ in range(3):
            assert (await keep(wire, gate, "a")).status == 204
        assert (await keep(wire, gate, "b")).status == 204
        gate.revoke("a")
        assert (await keep(wire, gate, "a")).status == 401
        assert (await keep(wire, gate, "b")).status == 204

    guarded(tmp_path, story, setup=setup)


def test_a_live_reader_is_cut_when_its_token_is_revoked(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        writer = gate.bearer("writer")
        await world.put("orders/a", **writer)
        sse = await world.sse("orders/a", **gate.bearer("reader"))
        assert b"upToDate" in await sse.chunk()
        gate.revoke("reader")
        await world.post("orders/a", b"1", **writer)
        assert await sse.chunk() == b"", "nothing that came after the revocation"
        assert await sse.ended()

    guarded(tmp_path, story, setup=both)


def test_a_token_in_the_url_is_for_event_streams_and_short_lives(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        both(gate)
        gate.token("browser", "read:orders/", seconds=600)
        gate.token("too-long", "read:orders/", seconds=7200)

    async def story(world: World, gate: Gate) -> None:
        await world.put("orders/a", **gate.bearer("writer"))
        text = gate._texts["browser"]
        sse = await world.sse("orders/a", f"?live=sse&offset=-1&access_token={text}")
        assert b"upToDate" in await sse.chunk()
        for query in (
            f"?live=sse&offset=-1&access_token={gate._texts['too-long']}",
            f"?live=sse&offset=-1&access_token={gate._texts['reader']}",
            f"?offset=-1&access_token={text}",
            f"?live=long-poll&offset=-1&access_token={text}",
        ):
            assert (await world.get("orders/a", query)).error == "TOKEN_IN_URL", query
        assert (
            await world.ask("DELETE", f"/v1/stream/orders/a?live=sse&access_token={text}")
        ).error == "TOKEN_IN_URL"
        assert (
            await world.get("orders/a", "?live=sse&offset=-1&access_token=polynya_x_y")
        ).error == "TOKEN_REFUSED"

    guarded(tmp_path, story, setup=setup)


def test_a_large_body_of_a_stranger_is_not_read(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        for extra in (
            b"Content-Length: 20000000\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Length: 9\r\nExpect: 100-continue\r\n",
        ):
            wire = await world.wire()
            wire.send(b"POST /v1/stream/orders/a HTTP/1.1\r\nHost: x\r\n" + extra + b"\r\n")
            answer = await wire.answer()
            assert (answer.status, answer.error, answer.headers["www-authenticate"]) == (
                401,
                "UNAUTHORIZED",
                "Bearer",
            )
            assert world.front.context.bodies.bytes == 0
        wire = await world.wire()
        wire.send(
            b"POST /v1/stream/__ds/subscriptions/x/ack HTTP/1.1\r\nHost: x\r\nAuthorization: "
            b"Bearer w\r\nContent-Length: 2\r\n\r\n"
        )
        wire.send(b"{}")
        assert (await wire.answer()).status != 401, "the token of a wake is for the route to check"

    guarded(tmp_path, story, setup=both)


def test_requests_over_the_limit_are_told_when_to_come_back(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("slow", "all", requests_per_second=20)
        gate.token("other", "all")

    async def story(world: World, gate: Gate) -> None:
        now = [0.0]
        world.front.context.now = lambda: now[0]  # type: ignore[assignment, method-assign]
        gate.access.now = lambda: now[0]  # type: ignore[assignment, method-assign]
        await world.put("orders/a", **gate.bearer("other"))
        wire = await world.wire()
        answers = [await keep(wire, gate, "slow") for _ in range(30)]
        statuses = [answer.status for answer in answers]
        assert statuses == [204] * 20 + [429] * 10, "also on the short way"
        assert answers[-1].error == "RATE_LIMIT" and answers[-1].headers["retry-after"] == "1"
        assert (await keep(wire, gate, "other")).status == 204
        now[0] += 0.5
        statuses = [(await keep(wire, gate, "slow")).status for _ in range(12)]
        assert statuses == [204] * 10 + [429] * 2
        assert gate.access.counters.limited == 12

    guarded(tmp_path, story, setup=setup)


async def paced_world(world: World, gate: Gate, now: list[float]) -> Wire:
    """A live reader of 100 kB a second that was just sent 120 kB, uncounted as yet."""
    gate.access.now = world.front.context.now = lambda: now[0]  # type: ignore[assignment, method-assign]
    gate.access.on_settle.append(world.front.readers.charge)
    await world.put("a", **gate.bearer("writer"))
    live = await world.sse("a", **gate.bearer("slow"))
    assert b"upToDate" in await live.chunk()
    for letter in "ab":
        await world.post("a", b'"' + letter.encode() * 59_997 + b'"', **gate.bearer("writer"))
        assert letter.encode() * 59_997 in await live.chunk()
    return live


def slow_reader(gate: Gate) -> None:
    gate.token("writer", "create,append")
    gate.token("slow", "read", bytes_per_second=100_000)


def test_a_live_reader_over_its_bytes_is_slowed_down_and_misses_nothing(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        now = [0.0]
        live = await paced_world(world, gate, now)
        assert (await world.get("a", "?offset=now", **gate.bearer("slow"))).status == 200
        [subscriber] = world.front.readers.metered
        gate.access.settle()
        assert gate.access.report().popitem()[1][:2] == (2, 120_000 + 2), (
            "each byte once, and the two of an empty page"
        )
        gate.access.settle()
        assert gate.access.report().popitem()[1][:2] == (0, 0)
        assert (await world.get("a", "?offset=now", **gate.bearer("slow"))).error == "RATE_LIMIT"
        assert (
            await world.ask("GET", "/v1/streams?live=sse", **gate.bearer("slow"))
        ).error == "RATE_LIMIT", "for streams alone"
        gate.access.report()  # the two answers have bodies, too
        for letter in "cde":
            await world.post("a", b'"' + letter.encode() * 9_997 + b'"', **gate.bearer("writer"))
        assert subscriber._record == 2, "nothing is sent while it owes"
        now[0] += 0.21
        piece = await live.chunk()
        assert piece.count(b"event: data") == 1 and all(
            letter * 9_997 in piece for letter in (b"c", b"d", b"e")
        )
        await world.until(lambda: subscriber._live)
        now[0] += 10
        await world.post("a", b"7", **gate.bearer("writer"))
        assert b"data:[7]" in await live.chunk()
        live.close()
        await world.until(lambda: not world.front.readers.metered)
        assert gate.access.report().popitem()[1][1] == 30_000 + 2, (
            "with what was sent after the last look"
        )

    guarded(tmp_path, story, setup=slow_reader)


def test_another_connection_does_not_get_around_what_is_owed(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        now = [0.0]
        await paced_world(world, gate, now)
        gate.access.settle()
        second = await world.sse("a", **gate.bearer("slow"))
        [_, subscriber] = world.front.readers.metered
        piece = world.meanwhile(second.chunk())
        await asyncio.sleep(0)
        assert subscriber._record == 0
        now[0] += 0.21
        assert b"a" * 59_997 in await piece

    guarded(tmp_path, story, setup=slow_reader)


def test_bytes_are_counted_both_ways(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("slow", "all", bytes_per_second=10_000)

    async def story(world: World, gate: Gate) -> None:
        now = [0.0]
        gate.access.now = lambda: now[0]  # type: ignore[assignment, method-assign]
        world.front.context.now = gate.access.now
        slow = gate.bearer("slow")
        await world.put("orders/a", **slow)
        assert (await world.post("orders/a", b'"' + b"x" * 9_000 + b'"', **slow)).status == 204
        assert (await world.get("orders/a", "?offset=-1", **slow)).status == 200
        refused = await world.get("orders/a", "?offset=-1", **slow)
        assert refused.status == 429
        now[0] += 1.0
        assert (await world.get("orders/a", "?offset=-1", **slow)).status == 200

    guarded(tmp_path, story, setup=setup)


def test_connections_over_the_limit_are_closed_with_a_reason(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("few", "all", connections=2)

    async def story(world: World, gate: Gate) -> None:
        few = gate.bearer("few")
        wires = [await world.wire() for _ in range(3)]
        for wire in wires[:2]:
            wire.send(request("GET", "/v1/streams", **few))
            assert (await wire.answer()).status == 200
        wires[2].send(request("GET", "/v1/streams", **few))
        refused = await wires[2].answer()
        assert (refused.status, refused.error, refused.headers["retry-after"]) == (
            429,
            "CONNECTION_QUOTA",
            "5",
        )
        assert await wires[2].ended()
        wires[0].send(request("GET", "/v1/streams", **few))
        assert (await wires[0].answer()).status == 200, "those that are open go on"
        wires[0].close()
        await world.until(lambda: gate.access.identify(gate._texts["few"]).meter.connections == 1)  # type: ignore[union-attr]
        wire = await world.wire()
        wire.send(request("GET", "/v1/streams", **few))
        assert (await wire.answer()).status == 200

    guarded(tmp_path, story, setup=setup)


def test_streams_over_the_limit_are_not_created(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("few", "create,delete:orders/", streams=5)
        gate.token("root", "admin")

    async def story(world: World, gate: Gate) -> None:
        few = gate.bearer("few")
        statuses = [(await world.put(f"orders/{number}", **few)).status for number in range(8)]
        assert statuses == [201] * 5 + [429] * 3
        refused = await world.put("orders/9", **few)
        assert (refused.error, refused.headers["retry-after"]) == ("STREAM_QUOTA", "60")
        assert (await world.put("orders/0", **few)).status == 200, (
            "one that exists may be asked for again"
        )
        assert (await world.put("jobs/0", **gate.bearer("root"))).status == 201
        assert (await world.ask("DELETE", "/v1/stream/orders/0", **few)).status == 204
        assert (await world.put("orders/9", **few)).status == 201
        assert (await world.put("orders/10", **few)).status == 429

    guarded(tmp_path, story, setup=setup)


@pytest.mark.parametrize("origins", [("https://a.example", "https://b.example"), ()])
def test_only_pages_of_known_origins_may_read_answers(
    origins: tuple[str, ...], tmp_path: Path
) -> None:
    async def story(world: World, gate: Gate) -> None:
        known = await world.get("orders/a", origin="https://a.example", **gate.bearer("root"))
        stranger = await world.get("orders/a", origin="https://evil.example", **gate.bearer("root"))
        plain = await world.get("orders/a", **gate.bearer("root"))
        preflight = await world.ask("OPTIONS", "/v1/stream/orders/a", origin="https://evil.example")
        denied = await world.get("orders/a", origin="https://a.example")
        assert denied.status == 401
        if origins:
            assert (
                known.headers["access-control-allow-origin"]
                == denied.headers["access-control-allow-origin"]
                == "https://a.example"
            )
            assert "retry-after" in known.headers["access-control-expose-headers"]
            assert {known.headers["vary"], stranger.headers["vary"], plain.headers["vary"]} == {
                "Origin"
            }
        for answer in (stranger, plain, preflight, *(() if origins else (known,))):
            assert "access-control-allow-origin" not in answer.headers

    guarded(tmp_path, story, origins=origins, setup=both)


def test_by_default_all_origins_may(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        answer = await world.get("orders/a", origin="https://evil.example", **gate.bearer("root"))
        assert answer.headers["access-control-allow-origin"] == "*" and "vary" not in answer.headers

    guarded(tmp_path, story, setup=both)


def test_pipelined_appends_are_each_looked_at(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        await world.put("orders/a", **gate.bearer("writer"))
        wire = await world.wire()
        gate._texts["nobody"] = "polynya_0123_x"
        one = request(
            "POST",
            "/v1/stream/orders/a",
            b"1",
            content_type="application/json",
            **gate.bearer("writer"),
        )
        bad = request(
            "POST",
            "/v1/stream/orders/a",
            b"2",
            content_type="application/json",
            **gate.bearer("nobody"),
        )
        wire.send(one + bad + one + one + bad)
        assert [(await wire.answer()).status for _ in range(5)] == [204, 401, 204, 204, 401]
        await asyncio.sleep(0)
        assert (
            await world.get("orders/a", "?offset=-1", **gate.bearer("reader"))
        ).body == b"[1,1,1]"

    guarded(tmp_path, story, setup=both)


def test_a_request_waits_for_the_keys_of_the_issuer_once(tmp_path: Path) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps(
            {
                "keys": [
                    {
                        **json.loads(
                            jwt.get_algorithm_by_name("EdDSA").to_jwk(private.public_key())
                        ),
                        "kid": "1",
                    }
                ]
            }
        )
    )

    def setup(gate: Gate) -> None:
        gate.issuer = Issuer(Expected("https://i.example", "streams"), str(keys))
        claims = {
            "iss": "https://i.example",
            "aud": "streams",
            "sub": "alice",
            "exp": int(gate.wall) + 60,
            "scope": "create,append:orders/",
        }
        gate._texts["alice"] = jwt.encode(claims, private, algorithm="EdDSA", headers={"kid": "1"})
        gate._texts["forged"] = jwt.encode(
            claims, ed25519.Ed25519PrivateKey.generate(), algorithm="EdDSA", headers={"kid": "1"}
        )
        gate._texts["stranger"] = jwt.encode(
            claims, private, algorithm="EdDSA", headers={"kid": "2"}
        )

    async def story(world: World, gate: Gate) -> None:
        answers = await asyncio.gather(
            *(world.put("orders/a", **gate.bearer("alice")) for _ in range(5))
        )
        assert sorted(answer.status for answer in answers) == [200] * 4 + [201]
        wire = await world.wire()
        assert [(await keep(wire, gate, "alice")).status for _ in range(4)] == [204] * 4
        for other in ("forged", "stranger"):
            assert [(await keep(wire, gate, other)).error for _ in range(3)] == [
                "TOKEN_REFUSED"
            ] * 3
        assert (await world.put("jobs/a", **gate.bearer("alice"))).status == 403

    guarded(tmp_path, story, setup=setup)


def test_what_needs_a_token_is_kept_by_no_shared_cache(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        root = gate.bearer("root")
        await world.put("orders/a", **root)
        await world.post("orders/a", b"1", stream_closed="true", **root)
        for query in ("?offset=-1", "?live=long-poll&offset=-1"):
            answer = await world.get("orders/a", query, **root)
            assert answer.headers["cache-control"].startswith("private"), query
            assert answer.headers["vary"] == "Authorization"
        denied = await world.get("orders/a", "?offset=-1")
        assert denied.headers["cache-control"] == "no-store"

    guarded(tmp_path, story, setup=both)


def test_who_went_away_while_the_keys_were_read_is_counted_and_answered_no_more(
    tmp_path: Path,
) -> None:
    async def story(world: World, gate: Gate) -> None:
        assert (await world.put("orders/a", **gate.bearer("few"))).status == 201
        identify, refresh = gate.access.identify, gate.access.refresh
        asked, read = asyncio.Event(), asyncio.Event()

        def unknown(credential: str, *, short: bool) -> Principal:
            if read.is_set():
                return identify(credential)
            raise KeysUnknown("no key yet")

        async def slowly() -> bool:
            asked.set()
            await read.wait()
            return await refresh()

        gate.access.identify, gate.access.refresh = unknown, slowly  # type: ignore[method-assign]
        wire = await world.wire()
        wire.send(request("GET", "/v1/stream/orders/a?offset=-1&live=sse", **gate.bearer("few")))
        await asked.wait()
        reset = struct.pack("ii", 1, 0)
        wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        wire.close()
        await world.until(lambda: not world.front.connections)
        read.set()
        await world.until(lambda: not world.front.connections._tasks)
        assert identify(gate._texts["few"]).meter.connections == 0, (
            "they would count against its limit for ever"
        )  # type: ignore[union-attr]
        assert not world.front.readers.live, "nobody reads"

    guarded(tmp_path, story, setup=lambda gate: gate.token("few", "all", connections=2))
