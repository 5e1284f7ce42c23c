"""The event parser against a naive one, however the bytes are cut."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from polynya.client.live.events import Event, EventParser


def events(chunks: Iterable[bytes]) -> list[Event]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def naive(body: bytes) -> list[Event]:
    """Parse all lines at once, by the letter of the standard."""
    found, name, data, last = [], "", [], ""
    *lines, _ = re.split("\r\n|\n|\r", body.decode("utf-8", "replace"))
    for line in lines:
        if not line:
            if data:
                found.append(Event(name or "message", "\n".join(data), last))
            name, data = "", []
        else:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "event":
                name = value
            elif field == "id" and "\0" not in value:
                last = value
    return found


@given(
    st.lists(
        st.sampled_from(
            [
                "data:",
                "data: ",
                "event: control",
                "id: 7",
                ":comment",
                "a",
                "é",
                "\r",
                "\n",
                "\r\n",
                "\n\n",
                "\0",
            ]
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_events_do_not_depend_on_how_the_bytes_are_cut(parts: list[str], cuts: list[int]) -> None:
    body = "".join(parts).encode()
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    chunks = [body[begin:end] for begin, end in itertools.pairwise(edges)]
    # A lone CR at the very end may still become CR LF: both readings have the same events.
    assert list(events(chunks)) == naive(body)


def test_an_event_that_the_end_cuts_off_is_dropped() -> None:
    assert list(events([b"data: 1\n\ndata: 2\n"])) == [Event("message", "1", "")]
