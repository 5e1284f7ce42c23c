"""Custom headers and query parameters go with every request of a client, or of one call, and
replace nothing of the protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from polynya.client import AsyncClient, Client
from polynya.client.routing import NodeRouter

OFFSET = "0000000000000001_0000000000000002"
NODES = b'{"nodes": {"1": "http://10.0.0.1:4437"}}'


class Recorder(BaseHTTPRequestHandler):
    """Answers whatever the client asks, and notes it."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str]]]
    hint = ""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen.append((self.command, self.path, headers))
        bodies = {
            "/v1/streams": b'{"streams": []}',
            "/v1/node": NODES,
            "/v1/stream/s/retention": b'{"retained_offset": "-1"}',
        }
        body = bodies.get(self.path.partition("?")[0], b"[1]")
        self.send_response(200)
        facts = {
            "content-type": "application/json",
            "stream-next-offset": OFFSET,
            "stream-up-to-date": "true",
            "stream-closed": "true",
        }
        for name, value in {
            **facts,
            "content-length": str(len(body)),
            **({"stream-owner": self.hint} if self.hint else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


for verb in ("GET", "HEAD", "PUT", "POST", "DELETE"):
    setattr(Recorder, f"do_{verb}", Recorder._answer)


@pytest.fixture
def server() -> Iterator[Any]:
    handler = type("Handler", (Recorder,), {"seen": []})
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
    thread.start()
    handler.url = f"http://127.0.0.1:{listening.server_port}"
    yield handler
    listening.shutdown()
    thread.join()
    listening.server_close()


def act(client: Client) -> None:
    """Every kind of request, reads and writes."""
    stream = client.stream("s")
    stream.create()
    stream.append(1)
    assert list(stream.read())
    assert list(stream.tail("-1"))
    stream.head()
    stream.trim(keep_bytes=1)
    with stream.producer() as producer:
        producer.append(1)
    list(client.streams())
    stream.close()
    stream.delete()


async def act_async(client: AsyncClient) -> None:
    stream = client.stream("s")
    await stream.create()
    await stream.append(1)
    assert [record async for record in stream.read()]
    assert [record async for record in stream.tail("-1")]
    async with stream.producer() as producer:
        await producer.append(1)
    assert [facts async for facts in client.streams()] == []


def checked(seen: list[tuple[str, str, dict[str, str]]], least: int) -> None:
    assert len(seen) >= least and {method for method, _, _ in seen} >= {"GET", "PUT", "POST"}
    for method, path, headers in seen:
        assert headers["x-team"] == "blue" and "tenant=7+%26" in path, (method, path, headers)
        assert "offset=-1" in path or "offset" not in path


def test_those_of_a_client_go_with_every_request(server: Any) -> None:
    with Client(server.url, headers={"X-Team": "blue"}, params={"tenant": "7 &"}) as client:
        act(client)
    checked(server.seen, 10)


def test_those_of_an_asynchronous_client_do_too(server: Any) -> None:
    async def run() -> None:
        async with AsyncClient(
            server.url, headers={"X-Team": "blue"}, params={"tenant": "7 &"}
        ) as client:
            await act_async(client)

    asyncio.run(run())
    checked(server.seen, 6)


def test_those_of_one_call_go_with_it_alone(server: Any) -> None:
    with Client(server.url, headers={"X-Team": "red", "X-App": "a"}) as client:
        stream = client.stream("s", content_type="application/json")
        one = {"headers": {"x-team": "blue"}, "params": {"trace": "1"}}
        stream.with_options(**one).append(1)
        list(stream.with_options(**one).read())
        list(client.with_options(**one).streams())
        stream.append(2)
    sent = [
        ("?trace=1" in path or "&trace=1" in path, headers["x-team"], headers["x-app"])
        for _, path, headers in server.seen
    ]
    assert sent == [(True, "blue", "a")] * 3 + [(False, "red", "a")]


def test_closing_what_was_given_options_leaves_the_client_open(server: Any) -> None:
    with Client(server.url) as client:
        with client.with_options(headers={"x-a": "1"}) as other:
            list(other.streams())
        list(client.streams())

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            async with client.with_options(headers={"x-a": "1"}) as other:
                await other.stream("s").with_options(params={"b": "2"}).head()
            await client.stream("s").head()

    asyncio.run(run())
    assert [headers.get("x-a") for _, _, headers in server.seen] == ["1", None, "1", None]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"headers": {"Content-Type": "text/plain"}}, "is set by the client"),
        ({"headers": {"Producer-Seq": "1"}}, "is set by the client"),
        ({"headers": {"stream-closed": "true"}}, "is set by the client"),
        ({"headers": {"host": "a"}}, "is set by the client"),
        ({"headers": {"x y": "a"}}, "not a header name"),
        ({"headers": {"x": "a\r\nstream-closed: true"}}, "printable ASCII"),
        ({"headers": {"x": " a"}}, "printable ASCII"),
        ({"headers": {"x": 1}}, "printable ASCII"),
        ({"params": {"offset": "now"}}, "is set by the client"),
        ({"params": {"": "now"}}, "needs a name"),
        ({"params": {"a": 1}}, "needs a name"),
        ({"token": "t", "headers": {"Authorization": "Basic x"}}, "pass one of them"),
    ],
)
def test_what_the_client_sets_itself_cannot_be_given(
    kind: Any, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        kind("http://127.0.0.1:1", **given)


def test_a_custom_header_leaves_this_machine_no_more_than_a_token_does(server: Any) -> None:
    """Ignore the hint: over plain HTTP a possible secret must not leave the loopback for another
    node."""
    server.hint = "http://10.0.0.1:4437"
    with Client(server.url) as client:
        stream = client.stream("s").with_options(headers={"x-api-key": "secret"})
        stream.head()
        assert stream._wire.router.ways("/v1/stream/s", 0.0) == [server.url]
        assert client.with_options(params={"k": "v"})._wire.router is stream._wire.router, (
            "what it learned is kept from call to call"
        )
    assert not [path for _, path, _ in server.seen if path.startswith("/v1/node")]
    with Client(server.url, headers={"x-api-key": "secret"}) as client:
        client.stream("s").head()
        assert client._wire.router.ways("/v1/stream/s", 0.0) == [server.url]
    token = NodeRouter([server.url], with_token=True)
    assert token.guarded() is token
