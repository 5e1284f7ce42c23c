"""The protocol's header fields and targets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.wire import headers
from polynya.wire.headers import BadField
from polynya.wire.http import targets
from polynya.wire.http.cursor import EPOCH_MS, JITTER_INTERVALS_MAX, current_interval, next_cursor


@pytest.mark.parametrize(
    "text", ["", "01", "+1", "-1", "1.0", "1e3", "abc", " 1", "1 ", "٣", "99999999999999999999"]
)
def test_bad_ttls(text: str) -> None:
    with pytest.raises(BadField):
        headers.parse_ttl(text)


def test_good_ttls() -> None:
    assert [headers.parse_ttl(text) for text in ("0", "1", "3600")] == [0, 1, 3600]


@pytest.mark.parametrize(
    "text",
    ["2099-01-01", "Wed, 21 Oct 2099 07:28:00 GMT", "2099-01-01T00:00:00", "2099-02-30T00:00:00Z", "2099-01-01T24:00:00Z", "2099-01-01T00:00:00+25:00",
     "2099-01-01T00:00:00+01:60", "2099-01-01 00:00:00Z", "4102444800", "not-a-date", "2099-1-1T0:0:0Z", "2099-01-01T00:00:61Z"],
)  # fmt: skip
def test_what_is_no_rfc_3339(text: str) -> None:
    with pytest.raises(BadField):
        headers.parse_instant_ms(text)


@given(
    st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2200, 1, 1)),  # noqa: DTZ001
    st.integers(-23 * 60, 23 * 60),
)
def test_instants_are_those_of_the_standard_library(naive: datetime, minutes: int) -> None:
    when = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    expected = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert headers.parse_instant_ms(when.isoformat()) == expected
    assert headers.parse_instant_ms(headers.format_instant(expected)) == expected


def test_equal_instants_in_different_words() -> None:
    same = {
        headers.parse_instant_ms(text)
        for text in (
            "2099-01-01T00:00:00Z",
            "2099-01-01t01:00:00.000+01:00",
            "2098-12-31T23:59:60Z",
        )
    }
    assert len(same) == 1


def test_producers_come_whole() -> None:
    assert headers.parse_producer({}) is None
    found = headers.parse_producer(
        {"producer-id": "p", "producer-epoch": "0", "producer-seq": "9007199254740991"}
    )
    assert found is not None
    assert (found.id, found.epoch, found.sequence) == ("p", 0, 2**53 - 1)
    good = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    for name in good:
        with pytest.raises(BadField):
            headers.parse_producer({key: value for key, value in good.items() if key != name})
    for bad in ("-1", "1.5", "+1", "", "9007199254740992", "x", "²", "1" * 5000):
        with pytest.raises(BadField):
            headers.parse_producer({**good, "producer-seq": bad})
    for bad in ("", "x" * 257):
        with pytest.raises(BadField):
            headers.parse_producer({**good, "producer-id": bad})


def test_closed_is_true_in_any_case_and_nothing_else() -> None:
    assert [
        headers.is_true(value) for value in ("true", "TRUE", "True", "false", "1", "yes", "", None)
    ] == [True, True, True, *[False] * 5]


def test_if_none_match() -> None:
    tag = '"abc:c"'
    assert all(
        headers.none_match(value, tag)
        for value in (tag, "W/" + tag, '"x", ' + tag, "*", ' "x" , W/"abc:c"')
    )
    assert not any(
        headers.none_match(value, tag) for value in (None, "", '"abc"', "abc:c", '"x", "y"')
    )


def test_accepting_lines() -> None:
    assert headers.accepts_lines("text/html, Application/X-NDJSON;q=0.5")
    assert headers.accepts_lines("application/ndjson")
    assert not any(
        headers.accepts_lines(value)
        for value in (None, "*/*", "application/json", "application/x-ndjson;q=0", "text/x-ndjson")
    )


def test_event_ids() -> None:
    text = headers.format_event_id(3, 70, (1 << 48 | 5, 2))
    assert headers.parse_event_id(text) == (3, 70, (1 << 48 | 5, 2))
    assert headers.parse_event_id("3_70") == (3, 70, None)
    for bad in ("", "x", "-1", "3_70~", "3_70~x.1", "3_70~1"):
        with pytest.raises(BadField):
            headers.parse_event_id(bad)


def test_paths_are_decoded_once() -> None:
    assert targets.decode_path("a%2525/b%20c") == "a%25/b c"
    assert targets.decode_path("%c3%a4") == "ä"
    for bad in ("a%2Fb", "a%2fb", "a%00", "a%", "a%zz", "%ff"):
        with pytest.raises(targets.BadTarget):
            targets.decode_path(bad)
    assert targets.decode_segments("a%2Fb/c") == ("a/b", "c")


def test_targets_and_queries() -> None:
    assert targets.split_target("/a?b=c?d") == ("/a", "b=c?d")
    assert targets.split_target("http://h:1/a?b") == ("/a", "b")
    assert targets.split_target("HTTP://h") == ("/", "")
    for bad in ("*", "a", "/a#b", "ftp://h/a"):
        with pytest.raises(targets.BadTarget):
            targets.split_target(bad)
    assert targets.parse_query("a=1&b=%20+x&a=2&&c") == {"a": "1", "b": "  x", "c": ""}
    with pytest.raises(targets.BadTarget):
        targets.parse_query("offset=1&offset=1")


def test_cursors() -> None:
    now = EPOCH_MS + 1000 * 20_000 + 19_999
    assert (
        current_interval(now)
        == next_cursor(None, now, 0.5)
        == next_cursor("999", now, 0.5)
        == next_cursor("x", now, 0.5)
        == 1000
    )
    assert next_cursor("1000", now, 0.0) == 1001
    assert next_cursor("5000", now, 0.9999) == 5000 + JITTER_INTERVALS_MAX
