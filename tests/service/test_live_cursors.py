"""The cursors of readers of many streams: the positions at any of the last events, and for how
long."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base import limits
from polynya.base.errors import Unavailable
from polynya.service.live import cursors
from polynya.service.live.cursors import Cursor, LiveCursors, State, StreamPosition

MOVES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 3), st.sampled_from([State.OPEN, State.CLOSED]))
)


class Rpc:
    """The other cores: the answer of each, or why there is none."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def serve(self, kind: int, shape: Any, answer: Any, handle: Any) -> None:
        """Serve nothing: no core asks."""

    def others(self) -> list[int]:
        return [*range(len(self.answers))]

    async def ask(self, core: int, kind: int, question: Any) -> Any:
        if isinstance(self.answers[core], Exception):
            raise self.answers[core]
        return self.answers[core]


def kept(now: Callable[[], float] = lambda: 0.0, *answers: Any) -> LiveCursors:
    service: Any = SimpleNamespace(rpc=Rpc(*answers))
    return LiveCursors(service, now)


def written(held: LiveCursors, name: str = "a") -> Cursor:
    """A cursor with one stream and one event, which is kept."""
    cursor = held.begin(lambda: None)
    cursor.add(StreamPosition(name, 7, 0, 0))
    cursor.move(0, 1, 2, State.OPEN)
    held.keep(cursor)
    return cursor


@given(MOVES, st.integers(0, 40))
def test_the_places_at_an_event_are_what_they_were(
    moves: list[tuple[int, int, int]], back: int
) -> None:
    cursor = Cursor(lambda: None)
    past = [deepcopy(cursor.positions)]
    for index, step, state in moves:
        while len(cursor.positions) <= index:
            cursor.add(StreamPosition(f"s{len(cursor.positions)}", len(cursor.positions), 0, 0))
        position = cursor.positions[index]
        event_id = cursor.move(index, position.record + step, position.byte + 2 * step, state)
        assert cursors.is_event_id(event_id) and len(event_id) < 40
        past.append(deepcopy(cursor.positions))
    number = max(0, len(moves) - back)
    reported = [position for position in past[number] if position.state != State.UNTOLD]
    for _ in range(2):  # a lost response is asked for again
        found = cursor.at(number)
        assert found is not None
        assert [position for position in found if position.state != State.UNTOLD] == reported
    assert cursor.at(len(moves) + 1) is None


def test_the_last_events_are_known_and_older_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "LIVE_CURSOR_EVENTS_MAX", 10)
    cursor = Cursor(lambda: None)
    cursor.add(StreamPosition("a", 7, 0, 0))
    for number in range(1, 101):
        cursor.move(0, number, number, State.OPEN)
        assert cursor.size < 10_000
    assert cursor.at(1) is None
    for number in range(90, 101):
        found = cursor.at(number)
        assert found is not None and found[0].record == number


def test_a_cursor_is_kept_for_a_while_and_the_oldest_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    held = kept(lambda: clock[0])
    first = written(held)

    async def known(cursor: Cursor) -> bool:
        return await held.take(cursor.event_id) is not None

    assert asyncio.run(known(first))
    clock[0] = limits.LIVE_CURSOR_SECONDS + 1
    assert not asyncio.run(known(first)) and len(held) == 0
    monkeypatch.setattr(cursors, "LIVE_CURSOR_BYTES_PER_CORE", 3000)
    older, newer = written(held, "o" * 1000), written(held, "n" * 1000)
    last = written(held, "l" * 1000)
    assert [asyncio.run(known(each)) for each in (older, newer, last)] == [False, True, True]


def test_a_cursor_in_use_is_taken_from_its_connection() -> None:
    held = kept()
    ended = []

    def end() -> None:
        ended.append(True)
        held.keep(cursor)

    cursor = held.begin(end)
    cursor.add(StreamPosition("a", 7, 0, 0))
    cursor.move(0, 1, 2, State.OPEN)
    found = asyncio.run(held.take(cursor.event_id))
    assert ended and found == [StreamPosition("a", 7, 1, 2, State.OPEN)]


def test_other_cores_are_asked_and_those_that_do_not_answer_have_none() -> None:
    positions = [StreamPosition("a", 7, 1, 2, State.OPEN)]
    event_id = "0" * 24 + ".00000001"
    assert (
        asyncio.run(kept(lambda: 0.0, Unavailable("down"), None, positions).take(event_id))
        == positions
    )
    assert asyncio.run(kept(lambda: 0.0, Unavailable("down"), None).take(event_id)) is None


def test_a_stream_that_began_again_later_has_its_older_place() -> None:
    cursor = Cursor(lambda: None)
    first = cursor.add(StreamPosition("a", 7, 0, 0))
    event_id = cursor.move(first, 1, 2, State.OPEN)
    cursor.move(first, 1, 2, State.DELETED)
    cursor.add(StreamPosition("a", 0, -1, 0))
    before = cursor.at(int(event_id.rpartition(".")[2], 16))
    assert before == [StreamPosition("a", 7, 1, 2, State.OPEN)]
    after = cursor.at(cursor.number)
    assert after is not None and [position.state for position in after] == [
        State.DELETED,
        State.UNTOLD,
    ]
    assert cursor.moved_after(cursor.number) == set() and cursor.moved_after(0) == {first}


def test_a_kept_cursor_does_not_keep_its_connection_in_memory() -> None:
    class Connection:
        def finish(self) -> None:
            """End."""

    held, connection = kept(), Connection()
    cursor = held.begin(connection.finish)
    held.keep(cursor)
    gone = weakref.ref(connection)
    del connection
    gc.collect()
    assert gone() is None and len(held) == 1


def test_what_goes_on_from_a_kept_cursor_is_told_when_it_is_used_or_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors, "LIVE_CURSOR_BYTES_PER_CORE", 1000)
    held, events = kept(), []
    used, dropped = held.begin(lambda: None), held.begin(lambda: None)
    held.keep(used, lambda: events.append("used"))
    asyncio.run(held.take(used.event_id))
    held.keep(dropped, lambda: events.append("dropped"))
    written(held, "l" * 1000)
    assert events[0] == "used" and "dropped" in events
