"""Many streams of one reader: every record once and in order, by its cursor, or by its offsets when
the server has lost that."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from operations import LOST, NOBODY, Played, no, ok, play, token

from polynya.client import Refused, Retry, Unavailable
from polynya.client.live.many import ManyPosition, StreamEvent, tail_many

RETRY = Retry(seconds=30.0, pause_seconds=0.1, pause_seconds_max=1.0)
OPENED = ok(200, content_type="text/event-stream")
GONE = b'event: error\ndata:{"error":{"code":"CURSOR_GONE","message":"gone"}}\n\n'


def event(name: str, number: int, **fields: Any) -> bytes:
    text = json.dumps(fields)
    return f"id:{'a' * 24}.{number:08x}\nevent: {name}\ndata:{text}\n\n".encode()


def began(number: int, stream: str, content_type: str = "application/json") -> bytes:
    at = token(0, 0)
    return event("control", number, stream=stream, streamNextOffset=at, contentType=content_type)


def data(number: int, stream: str, record: int, *, name: str = "data", value: Any = None) -> bytes:
    value = [record] if value is None else value
    at = token(record, 2 * record)
    return event("data", number, stream=stream, streamNextOffset=at, **{name: value})


def records(played: Played) -> list[tuple[str, bytes, str]]:
    given: list[StreamEvent] = played.given
    return [
        (each.stream, each.data, each.offset)
        for received in given
        for each in received.page.records
    ]


def query(played: Played, at: int) -> dict[str, list[str]]:
    return parse_qs(urlsplit(played.targets[at]).query)


def test_records_have_their_stream_and_a_break_resumes_with_the_cursor() -> None:
    position = ManyPosition(["runs/*"])
    stream = began(1, "runs/1") + data(2, "runs/1", 1)
    played = play(
        tail_many(position, RETRY),
        [OPENED, stream[:70], stream[70:-3], LOST, OPENED, data(2, "runs/1", 1), NOBODY],
    )
    assert records(played) == [("runs/1", b"1", token(1, 2))]
    assert query(played, 0) == {"offset": ["-1"], "match": ["runs/*"]}
    again = [request for request in played.asked if "last-event-id" in request.headers]
    assert again[0].headers["last-event-id"] == "a" * 24 + ".00000001"
    assert position.offsets == {"runs/1": token(1, 2)}


def test_without_its_cursor_it_goes_on_with_the_offset_of_each_stream() -> None:
    position = ManyPosition(["runs/"], "now")
    first = began(1, "runs/1") + data(2, "runs/1", 1) + began(3, "runs/2")
    played = play(
        tail_many(position, RETRY),
        [OPENED, first, b"", OPENED, GONE, OPENED, data(1, "runs/1", 1) + data(2, "runs/1", 2)],
    )
    assert records(played) == [("runs/1", b"1", token(1, 2)), ("runs/1", b"2", token(2, 4))]
    assert query(played, 0)["offset"] == ["now"], "where the streams of the first connection begin"
    last = query(played, -1)
    assert last["prefix"] == ["runs/"] and last["offset"] == ["-1"], (
        "later ones begin at their start"
    )
    assert last["stream"] == ["runs/1@1_2", "runs/2@0_0"]
    assert "last-event-id" not in played.asked[-1].headers


def test_a_cursor_of_more_streams_than_a_request_can_name_cannot_be_replaced() -> None:
    position = ManyPosition(["**"], offsets={f"s{number}": token(1, 1) for number in range(1001)})
    played = play(tail_many(position, RETRY), [OPENED, GONE])
    assert isinstance(played.error, Refused) and played.error.code == "CURSOR_GONE"


def test_a_list_ends_with_its_streams_and_other_types_are_text_and_bytes() -> None:
    position = ManyPosition(["t", "b", "later"])
    events = [
        event("control", 1, stream="later", error={"code": "NOT_FOUND", "message": "none"}),
        began(1, "t", "text/plain") + data(2, "t", 1, name="text", value="zwölf"),
        began(3, "b", "image/png") + data(4, "b", 1, name="base64", value="AP8="),
        event("control", 5, stream="t", streamNextOffset=token(1, 2), streamClosed=True),
        event("control", 6, stream="b", streamNextOffset=token(1, 2), streamDeleted=True),
    ]
    played = play(tail_many(position, RETRY), [OPENED, *events])
    assert not played.ended, "a stream that does not exist may be created"
    more = began(7, "later") + event("control", 8, stream="later", streamClosed=True)
    played = play(tail_many(ManyPosition(["t", "b", "later"]), RETRY), [OPENED, *events, more])
    assert played.ended and played.error is None
    assert [raw for _, raw, _ in records(played)] == ["zwölf".encode(), b"\x00\xff"]
    assert [received.error for received in played.given][0].startswith("NOT_FOUND")
    assert [received.stream for received in played.given if received.deleted] == ["b"]


def test_refusals_and_a_server_that_does_not_come_back_end_it() -> None:
    played = play(tail_many(ManyPosition(["a"]), RETRY), [no(403, "FORBIDDEN")])
    assert isinstance(played.error, Refused)
    played = play(tail_many(ManyPosition(["a"]), RETRY), [NOBODY] * 1000)
    assert isinstance(played.error, Unavailable)


def test_a_lone_surrogate_is_handed_out_as_it_is() -> None:
    text = b'id:x\nevent: data\ndata:{"stream":"a","streamNextOffset":"1_2","data":["\\ud800"]}\n\n'
    played = play(tail_many(ManyPosition(["a"]), RETRY), [OPENED, text])
    assert [raw for _, raw, _ in records(played)] == [b'"\\ud800"']


def page(cursor: int, *events: bytes, up_to_date: bool = True) -> Any:
    """The answer to a long-poll with these events, each as an event stream has it."""
    shown = []
    for each in events:
        id_line, name, text = each.decode().strip().split("\n")
        fields = {"event": name[7:], "id": id_line[3:]} | json.loads(text[5:])
        shown.append(json.dumps(fields))
    caught_up = "true" if up_to_date else "false"
    cursor_id = f"{'a' * 24}.{cursor:08x}"
    body = f'{{"cursor":"{cursor_id}","upToDate":{caught_up},"events":[{",".join(shown)}]}}'
    return ok(200, body.encode(), content_type="application/json")


def test_pages_of_long_polls_go_on_from_one_another() -> None:
    position = ManyPosition(["runs/*"], "now")
    pages = [page(1, began(1, "runs/1")), LOST, page(2, data(2, "runs/1", 1)), page(2)]
    played = play(tail_many(position, RETRY, "long-poll"), pages)
    assert records(played) == [("runs/1", b"1", token(1, 2))] and position.up_to_date
    first, *others = played.asked
    assert query(played, 0) == {"offset": ["now"], "match": ["runs/*"], "live": ["long-poll"]}
    assert "text/event-stream" not in first.headers["accept"]
    known = [request.headers["last-event-id"][-1] for request in others]
    assert known == ["1", "1", "2", "2"]
    gone = no(410, "CURSOR_GONE")
    played = play(tail_many(position, RETRY, "long-poll"), [gone, page(1, data(1, "runs/1", 2))])
    assert records(played) == [("runs/1", b"2", token(2, 4))]
    assert query(played, 1)["stream"] == ["runs/1@1_2"] and query(played, 1)["offset"] == ["-1"]


def test_a_page_that_cannot_be_read_is_asked_for_again_and_a_surrogate_can() -> None:
    text = event("data", 1, stream="a", streamNextOffset=token(1, 2), data=["\ud800"])
    broken = ok(200, b'{"cursor":', content_type="application/json")
    played = play(tail_many(ManyPosition(["a"]), RETRY, "long-poll"), [broken, page(1, text)])
    assert [raw for _, raw, _ in records(played)] == [b'"\\ud800"']


@pytest.mark.parametrize("streams", [(), ("a", "b/*"), ("a/", "b")])
def test_a_list_has_no_patterns(streams: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="or one pattern"):
        ManyPosition(streams)
