"""Reading and following: every record once and in order, whatever becomes of the connections."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from operations import END, LOST, NOBODY, OPENED, Played, no, ok, play, token

from polynya.client import Retry, StreamGone, StreamReplaced, Trimmed, Unavailable
from polynya.client.messages import Broken, HttpResponse
from polynya.client.reading import JUMP, ReadPosition, read, tail
from polynya.client.values import Page

RETRY = Retry(seconds=30.0, pause_seconds=0.1, pause_seconds_max=1.0)
LIFE = "42"


class Source:
    """A JSON stream of numbered records, and a server's responses about it."""

    def __init__(self, count: int, content_type: str = "application/json") -> None:
        self.raws = [b'{"n":%d}' % number for number in range(count)]
        self.content_type = content_type

    def offset(self, record: int) -> str:
        return token(record, sum(len(raw) + 1 for raw in self.raws[:record]))

    def body(self, begin: int, end: int) -> bytes:
        return b"[" + b",".join(self.raws[begin:end]) + b"]"

    def page(self, begin: int, end: int, **more: str) -> HttpResponse:
        headers = {
            "content_type": self.content_type,
            "stream_next_offset": self.offset(end),
            "stream_incarnation": LIFE,
        }
        if end == len(self.raws):
            headers["stream_up_to_date"] = "true"
        return ok(200, self.body(begin, end), **headers, **more)

    def event(self, begin: int, end: int, *, closed: bool = False) -> bytes:
        data = b"event: data\ndata:" + self.body(begin, end) + b"\n\n" if end > begin else b""
        control = {
            "streamNextOffset": self.offset(end),
            "streamCursor": "9",
            "upToDate": True,
            **({"streamClosed": True} if closed else {}),
        }
        return data + b"event: control\ndata:" + json.dumps(control).encode() + b"\n\n"


def values(played: Played) -> list[int]:
    return [value["n"] for page in played.given for value in page.values]


def test_pages_come_until_the_tail() -> None:
    source = Source(5)
    position = ReadPosition("s", "-1")
    played = play(
        read(position, RETRY), [source.page(0, 2), LOST, source.page(2, 4), source.page(4, 5)]
    )
    assert played.ended and played.error is None and values(played) == [0, 1, 2, 3, 4]
    assert position.offset == source.offset(5) and position.up_to_date
    assert f"offset={source.offset(2)}" in played.targets[1] and played.targets[2].startswith(
        played.targets[1]
    )
    assert played.asked[2].headers["stream-incarnation"] == LIFE, (
        "another life of the name must not be read on"
    )


def test_each_record_knows_the_offset_after_it() -> None:
    source = Source(3)
    (page,) = play(read(ReadPosition("s", "-1"), RETRY), [source.page(0, 3)]).given
    assert [record.offset for record in page.records] == [
        source.offset(1),
        source.offset(2),
        source.offset(3),
    ]
    foreign = Page(
        stream="s",
        begin="",
        offset="opaque",
        content_type="application/json",
        body=b"",
        up_to_date=True,
        closed=False,
        raws=(b"1", b"2"),
    )
    assert [record.offset for record in foreign.records] == ["", "opaque"]


@pytest.mark.parametrize(
    "damage",
    [
        {"body": b'[{"n":1},{"n":2}'},
        {"body": b'[{"n":1},{"n":1},{"n":2}]'},  # more than lies between the offsets
        {"headers": {"content-type": "application/json", "stream-incarnation": LIFE}},
    ],
)
def test_a_damaged_page_is_asked_for_again(damage: dict[str, Any]) -> None:
    source = Source(3)
    bad = msgspec.structs.replace(source.page(1, 3), **damage)
    played = play(
        read(ReadPosition("s", source.offset(0)), RETRY),
        [source.page(0, 1), bad, source.page(1, 3)],
    )
    assert played.error is None and values(played) == [0, 1, 2] and len(played.asked) == 3


def test_bytes_go_on_after_a_restore_that_has_lost_what_was_read_last() -> None:
    """The next record has a number that no lost one had, and takes the place of lost bytes."""

    def page(end: str, body: bytes) -> HttpResponse:
        return ok(
            body=body,
            content_type="application/octet-stream",
            stream_next_offset=end,
            stream_up_to_date="true",
            stream_incarnation=LIFE,
        )

    position = ReadPosition("s", "-1")
    assert play(read(position, RETRY), [page(token(3, 300), b"x" * 300)]).error is None
    shorter = play(read(position, RETRY), [page(token(2 + JUMP, 200), b"")])
    assert shorter.error is None and position.offset == token(2 + JUMP, 200)
    position.offset = token(3, 300)
    longer = play(read(position, RETRY), [page(token(3 + JUMP, 310), b"y" * 110)])
    assert [page.body for page in longer.given] == [b"y" * 110]
    damaged = play(read(position, RETRY), [page(token(4 + JUMP, 320), b"z" * 11)])
    assert not damaged.given


def test_where_answers_break_off_smaller_ones_are_asked_for_and_then_larger_ones_again() -> None:
    source = Source(6)
    outcomes = [
        LOST,
        LOST,
        source.page(0, 1),
        source.page(1, 2),
        NOBODY,
        source.page(2, 3),
        source.page(3, 6),
    ]
    played = play(read(ReadPosition("s", "-1", 1 << 20), RETRY), outcomes)
    assert values(played) == list(range(6))
    asked = [int(target.partition("max_bytes=")[2]) for target in played.targets]
    assert asked == [1 << 20, 1 << 18, 1 << 16, 1 << 17, 1 << 18, 1 << 18, 1 << 19]


def test_a_page_that_is_too_large_for_an_event_comes_by_pages() -> None:
    source = Source(4)
    at_tail = source.page(0, 1)
    at_tail.headers["stream-up-to-date"] = "true"
    outcomes = [
        at_tail,
        OPENED,
        source.event(1, 1) + source.event(1, 4)[:30],
        LOST,
        LOST,
        source.page(1, 3),
        source.page(3, 4),
        OPENED,
    ]
    played = play(tail(ReadPosition("s", "-1"), RETRY), outcomes)
    assert (
        values(played) == [0, 1, 2, 3]
        and "live" not in played.targets[2]
        and "live=sse" in played.targets[-1]
    )


def test_a_server_that_gets_nowhere_is_given_up_on() -> None:
    source = Source(3)
    stuck = ok(200, b"[]", content_type="application/json", stream_next_offset=source.offset(1))
    played = play(read(ReadPosition("s", source.offset(1)), RETRY), [stuck] * 1000)
    assert played.error is not None and "makes no progress" in str(played.error)


def test_a_tail_reads_up_and_then_follows_events_over_any_number_of_connections() -> None:
    source = Source(6)
    at_tail = source.page(0, 2)
    at_tail.headers["stream-up-to-date"] = "true"
    outcomes = [
        at_tail, OPENED, source.event(2, 2), source.event(2, 3), LOST,
        NOBODY, no(503, "UNAVAILABLE"),
        OPENED, source.event(3, 4) + source.event(4, 5), END,
        OPENED, source.event(5, 6, closed=True),
    ]  # fmt: skip
    position = ReadPosition("s", "-1")
    played = play(tail(position, RETRY), outcomes)
    assert (
        played.ended
        and played.error is None
        and values(played) == list(range(6))
        and position.closed
    )
    assert [target.partition("offset=")[2].partition("&")[0] for target in played.targets[1:]] == [
        source.offset(2), source.offset(3), source.offset(3), source.offset(3), source.offset(5),
    ]  # fmt: skip
    assert "cursor=9" in played.targets[2]


def test_events_that_come_twice_are_given_once() -> None:
    source = Source(3)
    empty = ok(
        200,
        b"[]",
        content_type="application/json",
        stream_next_offset=source.offset(0),
        stream_up_to_date="true",
        stream_incarnation=LIFE,
    )
    twice = (
        source.event(0, 1)
        + source.event(0, 1)
        + source.event(1, 3)
        + source.event(0, 3)
        + source.event(1, 3)
    )
    played = play(tail(ReadPosition("s", "-1"), RETRY), [empty, OPENED, twice])
    assert values(played) == [0, 1, 2]


def test_what_the_end_cuts_off_is_not_given() -> None:
    source = Source(2)
    empty = ok(
        200,
        b"[]",
        content_type="application/json",
        stream_next_offset=source.offset(0),
        stream_up_to_date="true",
        stream_incarnation=LIFE,
    )
    whole = source.event(0, 1)
    for cut in range(1, len(whole) - 1):
        played = play(
            tail(ReadPosition("s", "-1"), RETRY),
            [empty, OPENED, whole[:cut], LOST, empty, OPENED, source.event(0, 2)],
        )
        assert values(played) == [0, 1], cut


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_every_record_is_given_once_however_connections_fare(seed: int) -> None:
    """A server that answers from the asked offset; connections that end anywhere, repeat pieces, or
    never come to be."""
    chance = random.Random(seed)
    count = chance.randint(1, 8)
    source = Source(count)
    offsets = {source.offset(record): record for record in range(count + 1)}
    position, played = ReadPosition("s", "-1"), Played()

    def outcomes() -> Iterator[HttpResponse | Broken | bytes]:
        first = source.page(0, 0)
        first.headers["stream-up-to-date"] = "true"
        yield first
        while True:
            if chance.random() < 0.3:
                yield chance.choice(
                    [LOST, NOBODY, no(503, "UNAVAILABLE"), no(500, outcome="unknown")]
                )
                continue
            at = offsets[position.offset]
            if "live" not in played.targets[-1]:
                upto = chance.randint(min(at + 1, count), count)
                page = source.page(at, upto)
                if upto == count:
                    page.headers["stream-closed"] = "true"
                yield page
                continue
            yield OPENED
            wire = b""
            while at < count:
                upto = chance.randint(at + 1, count)
                wire += source.event(at, upto, closed=upto == count) * chance.randint(1, 2)
                at = upto
            end = len(wire) if chance.random() < 0.3 else chance.randint(0, len(wire))
            for begin in range(0, end, 40):
                yield wire[begin : min(begin + 40, end)]
            yield chance.choice([END, LOST])

    play(tail(position, Retry(seconds=1e9), "sse"), outcomes(), into=played)
    assert played.error is None and played.ended
    assert values(played) == list(range(count))


def test_an_error_event_ends_the_tail_or_resumes_it() -> None:
    source = Source(1)
    start = source.page(0, 1)

    def error(code: str) -> bytes:
        return (
            b'event: error\ndata:{"error":{"code":"%s","message":"m","request_id":""}}\n\n'
            % code.encode()
        )

    played = play(
        tail(ReadPosition("s", "-1"), RETRY), [start, OPENED, error("SLOW_READER"), OPENED]
    )
    assert not played.ended and len(played.asked) == 3
    assert isinstance(
        play(tail(ReadPosition("s", "-1"), RETRY), [start, OPENED, error("GONE")]).error, StreamGone
    )
    assert isinstance(
        play(
            tail(ReadPosition("s", "-1"), RETRY), [start, OPENED, error("STREAM_RECREATED")]
        ).error,
        StreamReplaced,
    )


def test_a_recreated_stream_and_a_trimmed_offset_are_told() -> None:
    source = Source(2)
    at_tail = source.page(0, 1)
    at_tail.headers["stream-up-to-date"] = "true"
    assert isinstance(
        play(
            tail(ReadPosition("s", "-1"), RETRY), [at_tail, no(412, "INCARNATION_MISMATCH")]
        ).error,
        StreamReplaced,
    )
    error = play(
        read(ReadPosition("s", source.offset(1)), RETRY),
        [no(410, "TRIMMED", stream_retained_offset="7")],
    ).error
    assert isinstance(error, Trimmed) and error.retained_offset == "7"


def test_text_is_followed_by_long_polls_because_events_cannot_carry_it() -> None:
    def poll(text: bytes, end: int, **more: str) -> HttpResponse:
        return ok(
            200,
            text,
            content_type="text/plain",
            stream_next_offset=token(end, end),
            stream_incarnation=LIFE,
            **more,
        )

    start = poll(b"", 0, stream_up_to_date="true")
    quiet = ok(204, stream_next_offset=token(0, 0), stream_up_to_date="true", stream_cursor="5")
    last = ok(204, stream_next_offset=token(2, 2), stream_up_to_date="true", stream_closed="true")
    played = play(
        tail(ReadPosition("s", "-1"), RETRY),
        [start, quiet, LOST, poll(b"a\r", 2, stream_up_to_date="true"), last],
    )
    assert (
        played.ended
        and b"".join(page.body for page in played.given) == b"a\r"
        and played.given[-1].closed
    )
    assert (
        all("live=long-poll" in target for target in played.targets[1:])
        and "cursor=5" in played.targets[2]
    )


def test_bytes_come_in_base64() -> None:
    start = ok(
        200,
        b"",
        content_type="image/png",
        stream_next_offset=token(0, 0),
        stream_up_to_date="true",
        stream_incarnation=LIFE,
    )
    opened = ok(200, stream_sse_data_encoding="base64")
    event = (
        b"event: data\ndata:"
        + b64encode(bytes(range(256)))
        + b'\n\nevent: control\ndata:{"streamNextOffset":"%s"}\n\n' % token(1, 256).encode()
    )
    damaged = event.replace(b"data:AAEC", b"data:AA")
    played = play(tail(ReadPosition("s", "-1"), RETRY), [start, opened, damaged, opened, event])
    assert b"".join(page.body for page in played.given) == bytes(range(256))


def test_where_events_do_not_get_through_long_polls_are_tried() -> None:
    source = Source(1)
    outcomes = [
        source.page(0, 1),
        *[OPENED, END] * 3,
        ok(204, stream_next_offset=source.offset(1), stream_up_to_date="true"),
    ]
    played = play(tail(ReadPosition("s", "-1"), RETRY), outcomes)
    assert ["sse" in target for target in played.targets[1:4]] == [
        True
    ] * 3 and "live=long-poll" in played.targets[4]
    only = play(
        tail(ReadPosition("s", "-1"), RETRY, "sse"), [source.page(0, 1), *[OPENED, END] * 5]
    )
    assert all("live=sse" in target for target in only.targets[1:])


def test_a_server_that_does_not_come_back_ends_a_tail_after_the_time_that_was_set() -> None:
    source = Source(1)
    played = play(
        tail(ReadPosition("s", "-1"), RETRY),
        [source.page(0, 1), OPENED, source.event(1, 1), LOST, *[NOBODY] * 1000],
    )
    assert isinstance(played.error, Unavailable) and 25 < sum(played.pauses) <= 30


def test_a_record_with_a_lone_surrogate_is_given_as_it_is() -> None:
    raw = b'["\\ud83d", {"a": [1, "]"]} , 2.50]'
    page = ok(
        200,
        raw,
        content_type="application/json",
        stream_next_offset=token(3, 99),
        stream_up_to_date="true",
    )
    (given,) = play(read(ReadPosition("s", "-1"), RETRY), [page]).given
    assert list(given.raws) == [b'"\\ud83d"', b'{"a": [1, "]"]}', b"2.50"]


def test_a_local_read_ends_where_the_node_has_no_more() -> None:
    source = Source(3)
    short = source.page(0, 2)
    nothing = ok(
        200,
        b"[]",
        content_type="application/json",
        stream_next_offset=source.offset(2),
        stream_incarnation=LIFE,
    )
    position = ReadPosition("s", "-1", local=True)
    played = play(read(position, RETRY), [short, nothing])
    assert (
        played.ended
        and played.error is None
        and values(played) == [0, 1]
        and not position.up_to_date
    )
    assert all("consistency=local" in target for target in played.targets)


def test_a_live_reader_is_told_later_that_it_has_all() -> None:
    source = Source(2)
    unsure = (
        source.event(1, 2).replace(b'"upToDate": true, ', b"").replace(b', "upToDate": true', b"")
    )
    assert b"upToDate" not in unsure
    at_tail = source.page(0, 1, stream_up_to_date="true")
    position = ReadPosition("s", "-1")
    played = play(tail(position, RETRY), [at_tail, OPENED, unsure])
    assert values(played) == [0, 1] and not position.up_to_date
    position = ReadPosition("s", "-1")
    played = play(tail(position, RETRY), [at_tail, OPENED, unsure, source.event(2, 2)])
    assert values(played) == [0, 1] and position.up_to_date
