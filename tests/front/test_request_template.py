"""The short way for repeated appends: it reads what the parser would, or nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from front_world import Wire, World, play, request
from hypothesis import given
from hypothesis import strategies as st

from polynya.base.errors import Unavailable
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.router import Router
from polynya.front.http.routes.append import parse_append
from polynya.front.http.routes.append_request import RequestTemplate, compile_template
from polynya.stream.parts import Producer
from polynya.wire.http.http1 import BadRequest, HeadParser

HEAD = (
    b"POST /v1/stream/orders HTTP/1.1\r\ncontent-type: text/plain\r\nproducer-id: p-1\r\n"
    b"producer-epoch: 3\r\n"
    b"producer-seq: 17\r\naccept: */*\r\nhost: x:1\r\ncontent-length: 5"
)


def learned(block: bytes) -> RequestTemplate | None:
    router = Router({}, {})
    head = HeadParser().parse(block)
    context = SimpleNamespace(service=SimpleNamespace(level=1))
    peer = SimpleNamespace(responses=None)
    body = b"12345"[: head.length]
    exchange = Exchange(context, peer, 0, head, body)  # type: ignore[arg-type]
    exchange.route, exchange.query = router.resolve(head.target)
    exchange.stream = SimpleNamespace(name=exchange.route.name)  # type: ignore[assignment]
    return compile_template(parse_append(exchange), block)


LENGTH_FIRST = (
    b"POST /v1/stream/orders HTTP/1.1\r\nhost: x:1\r\ncontent-length: 5\r\n"
    b"content-type: text/plain\r\nproducer-id: p-1\r\nproducer-epoch: 3\r\nproducer-seq: 17"
)
NO_PRODUCER = (
    b"POST /v1/stream/orders HTTP/1.1\r\nhost: x:1\r\ncontent-type: text/plain\r\ncontent-length: 5"
)


@pytest.mark.parametrize("head", [HEAD, LENGTH_FIRST, NO_PRODUCER])
def test_a_request_with_the_lengths_of_the_last_one_is_compared_as_a_whole(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = learned(head)
    assert template is not None
    producer = None if head is NO_PRODUCER else Producer("p-1", 3, 17)
    assert template.read(head + b"\r\n\r\n12345") == (b"12345", producer)
    monkeypatch.setattr(RequestTemplate, "_read", lambda self, data: None)
    again = head.replace(b"seq: 17", b"seq: 18") + b"\r\n\r\nabcde"
    producer = None if head is NO_PRODUCER else Producer("p-1", 3, 18)
    assert template.read(again) == (b"abcde", producer)
    assert template.read(again + b"x") is None
    assert template.read(again.replace(b"length: 5", b"length: 4")) is None
    assert template.read(again.replace(b"orders", b"orderz")) is None
    assert template.read(again.replace(b"18", b"1x").replace(b"x:1", b"y:1")) is None


def test_a_known_head_gives_the_body_and_its_producer() -> None:
    repeat = learned(HEAD)
    assert repeat is not None
    assert (repeat.request.stream.name, repeat.producer_id, repeat.producer_epoch) == (
        "default/orders",
        "p-1",
        3,
    )
    data = (
        HEAD.replace(b"seq: 17", b"seq: 1234").replace(b"length: 5", b"length: 11")
        + b"\r\n\r\nhello world"
    )
    found = repeat.read(data)
    assert found is not None
    assert found == (b"hello world", Producer("p-1", 3, 1234))


@pytest.mark.parametrize(
    "change",
    [
        (b"seq: 17", b"seq: -7"),
        (b"seq: 17", b"seq: 1e3"),
        (b"seq: 17", b"seq: " + b"1" * 20),
        (b"seq: 17", b"seq: 17\r\nstream-closed: true"),
        (b"length: 5", b"length: +5"),
        (b"length: 5", b"length: 4"),
        (b"length: 5", b"length: 6"),
        (b"epoch: 3", b"epoch: 4"),
        (b"orders", b"Orders"),
        (b"host: x:1", b"host: x:1\r\norigin: http://evil"),
    ],
)
def test_whatever_differs_takes_the_general_way(change: tuple[bytes, bytes]) -> None:
    repeat = learned(HEAD)
    assert repeat is not None
    for _ in range(2):  # also compared with the request before
        assert repeat.read(HEAD.replace(*change) + b"\r\n\r\nhello") is None
        assert repeat.read(HEAD + b"\r\n\r\nhello") is not None


@pytest.mark.parametrize(
    "line",
    [
        b"stream-seq: a",
        b"stream-closed: true",
        b"origin: http://a",
        b"x-request-id: 7",
        b"connection: close",
    ],
)
def test_a_head_with_more_to_it_is_not_learned(line: bytes) -> None:
    assert learned(HEAD + b"\r\n" + line) is None


def test_without_a_producer_there_is_no_sequence() -> None:
    block = (
        b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2"
    )
    repeat = learned(block)
    assert repeat is not None
    assert repeat.read(block + b"\r\n\r\n{}") == (b"{}", None)
    assert repeat.read(block + b"0\r\n\r\n" + b"x" * 20) == (b"x" * 20, None)
    assert repeat.read(block + b"\r\n\r\n") is None


def test_the_length_may_come_before_the_sequence_and_both_before_other_headers() -> None:
    block = (
        b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: a/b\r\nContent-Length: 2\r\n"
        b"Producer-Seq: 8\r\nProducer-Id: p\r\nProducer-Epoch: 0"
    )
    repeat = learned(block)
    assert repeat is not None
    assert repeat.read(block.replace(b"Seq: 8", b"Seq: 912") + b"\r\n\r\n{}") == (
        b"{}",
        Producer("p", 0, 912),
    )
    assert repeat.read(block.replace(b"Epoch: 0", b"Epoch: 1") + b"\r\n\r\n{}") is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 1200)), min_size=1, max_size=20))
def test_requests_of_all_lengths_one_after_the_other(requests: list[tuple[int, int]]) -> None:
    repeat = learned(HEAD)
    assert repeat is not None
    for sequence, length in requests:
        data = (
            HEAD.replace(b"seq: 17", b"seq: %d" % sequence).replace(
                b"length: 5", b"length: %d" % length
            )
            + b"\r\n\r\n"
            + b"y" * length
        )
        assert repeat.read(data) == (b"y" * length, Producer("p-1", 3, sequence))
        assert repeat.read(data + b"z") is None
        assert repeat.read(data[:-1]) is None


@given(st.data())
def test_never_another_meaning_than_the_parser_s(data: st.DataObject) -> None:
    """Mutate the bytes at random: if the short way takes them, the parser gives the same head but
    for the two numbers."""
    block = data.draw(st.sampled_from([HEAD, LENGTH_FIRST, NO_PRODUCER]))
    repeat = learned(block)
    assert repeat is not None
    raw = bytearray(block + b"\r\n\r\nhello")
    if data.draw(st.booleans()):
        repeat.read(bytes(raw))  # and now it expects the same lengths
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(block) - 1))] = data.draw(
            st.sampled_from(b"0123456789 :\r\nabc\x00")
        )
    found = repeat.read(bytes(raw))
    if found is None:
        return
    try:
        head = HeadParser().parse(bytes(raw[: -len(found[0]) - 4]))
    except BadRequest:
        pytest.fail("the short way took what the parser refuses")
    assert head.length == len(found[0])
    number = head.headers.get("producer-seq")
    assert found[1] == (Producer("p-1", 3, int(number)) if number is not None else None)
    variable = {"content-length": ""} | ({"producer-seq": ""} if number is not None else {})
    assert head.headers | variable == repeat.request.exchange.head.headers | variable
    assert (head.method, head.target) == (
        repeat.request.exchange.head.method,
        repeat.request.exchange.head.target,
    )


def append_of(body: bytes, **more: str) -> bytes:
    return request("POST", "/v1/stream/s", body, content_type="text/plain", **more)


async def repeating(world: World) -> Wire:
    """A connection that has appended `x` to the stream `s` three times, so that its request is
    known."""
    await world.put("s", "text/plain")
    wire = await world.wire()
    for _ in range(3):
        wire.send(append_of(b"x"))
        await wire.answer()
    return wire


def test_two_requests_in_one_piece_are_two_every_time() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        wire = await world.wire()
        for _ in range(4):
            wire.send(append_of(b"ab") + append_of(b"cd"))
            assert [(await wire.answer()).status for _ in range(2)] == [204, 204]
        assert (await world.get("s")).body == b"abcd" * 4

    play(story)


def test_a_body_that_looks_like_the_known_request_is_a_body() -> None:
    async def story(world: World) -> None:
        wire = await repeating(world)
        inner = append_of(b"smuggled")
        head, _, _ = append_of(inner).partition(inner)
        wire.send(head)
        (connection,) = (
            one
            for one in world.front.connections
            if one._body is None and one.peer.template is not None
        )
        await world.until(lambda: connection._body is not None)
        wire.send(inner)
        assert (await wire.answer()).status == 204
        assert (await world.get("s")).body == b"xxx" + inner

    play(story)


def test_an_empty_body_of_the_known_shape_is_refused() -> None:
    async def story(world: World) -> None:
        wire = await repeating(world)
        wire.send(append_of(b""))
        assert (await wire.answer()).error == "EMPTY_BODY"
        assert (await world.head("s")).headers[
            "stream-next-offset"
        ] == "0000000000000003_0000000000000003"

    play(story)


@pytest.mark.parametrize(
    "other", [{"stream_seq": "a"}, {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}]
)
def test_another_shape_behind_the_known_one_does_not_change_its_answer(
    other: dict[str, str],
) -> None:
    async def story(world: World) -> None:
        wire = await repeating(world)
        world.service.turns.held = True
        wire.send(append_of(b"y"))
        await world.until(lambda: len(world.service.turns._proposals) == 1)
        wire.send(append_of(b"z", **other))
        await world.until(lambda: len(world.service.turns._proposals) == 2)
        world.service.turns.release()
        assert [(await wire.answer()).status for _ in range(2)] == [
            204,
            200 if "producer_id" in other else 204,
        ]
        assert (await world.get("s")).body == b"xxxyz"

    play(story)


def test_an_error_of_a_repeated_append_leaves_nothing_in_the_next_answer() -> None:
    async def story(world: World) -> None:
        wire = await repeating(world)
        wire.send(append_of(b"y"))
        plain = await wire.answer()
        world.service.turns.fault = Unavailable("the journal is behind")
        wire.send(append_of(b"y"))
        refused = await wire.answer()
        assert (refused.error, "x-request-id" in refused.headers) == ("UNAVAILABLE", True)
        world.service.turns.fault = None
        wire.send(append_of(b"y"))
        answer = await wire.answer()
        assert (answer.status, answer.headers.keys()) == (204, plain.headers.keys())

    play(story)


def test_a_fault_in_a_repeated_append_is_answered() -> None:
    async def story(world: World) -> None:
        wire = await repeating(world)
        world.service.turns.propose = failing  # type: ignore[method-assign]
        wire.send(append_of(b"y"))
        assert (await wire.answer()).error == "INTERNAL"

    def failing(*_: object) -> None:
        raise KeyError("no such group")

    play(story)
