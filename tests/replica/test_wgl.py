"""The checkers of what the simulation's clients are told have to find lies, and to believe what can
be true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sim.life_model import Appended, Created, Deleted, Exchange, Looked, Model, Pinned
from sim.linearizability import FOREVER, Operation, Search, Undecided
from sim.workers import Held, Shift

from polynya.local.api import Refusal, StreamInfo
from polynya.stream.replies import Code, Reply


def register(state: int, operation: Any) -> Iterator[int]:
    """("write", value) or ("read", value)."""
    verb, value = operation
    if verb == "write":
        yield value
    elif state == value:
        yield state


@pytest.mark.parametrize(
    ("operations", "can_be"),
    [
        ([(0, 1, ("write", 1)), (2, 3, ("read", 1))], True),
        ([(0, 1, ("write", 1)), (2, 3, ("read", 0))], False),  # stale
        ([(0, 3, ("write", 1)), (1, 2, ("read", 0))], True),  # they overlap
        (
            [(0, 5, ("write", 1)), (1, 2, ("read", 1)), (3, 4, ("read", 0))],
            False,
        ),  # seen, and not any more
        (
            [(0, FOREVER, ("write", 1)), (5, 6, ("read", 0)), (7, 8, ("read", 1))],
            True,
        ),  # it happened late
        ([(0, FOREVER, ("write", 1)), (5, 6, ("read", 1)), (7, 8, ("read", 0))], False),  # once
        ([(0, FOREVER, ("write", 1)), (7, 8, ("read", 0))], True),  # never
    ],
)
def test_a_register(operations: list[tuple[float, float, Any]], can_be: bool) -> None:
    assert Search([Operation(*each) for each in operations], 0, register).run() is can_be


def test_a_search_that_is_given_up_is_no_yes() -> None:
    operations = [Operation(0, 100, ("write", value)) for value in range(12)] + [
        Operation(101, 102, ("read", -1))
    ]
    with pytest.raises(Undecided):
        Search(operations, 0, register, states_max=1000).run()


def ok(record: int, code: int = Code.OK) -> Reply:
    return Reply(code, 7, record, record * 8)


MADE = (Created(), ok(0, Code.CREATED))
LIVES: dict[str, tuple[bool, list[tuple[Any, Any]]]] = {
    "a Stream-Seq that is larger is taken, an equal one is not": (
        True,
        [
            MADE,
            (Appended(b"a", "1"), ok(1)),
            (Appended(b"b", "1"), ok(1, Code.SEQ_REGRESSION)),
            (Appended(b"c", "2"), ok(2)),
        ],
    ),
    "an equal one is taken": (
        False,
        [MADE, (Appended(b"a", "1"), ok(1)), (Appended(b"b", "1"), ok(2))],
    ),
    "one that is larger is refused": (
        False,
        [MADE, (Appended(b"a", "1"), ok(1)), (Appended(b"b", "2"), ok(1, Code.SEQ_REGRESSION))],
    ),
    "a refusal by what nobody was told of": (
        True,
        [MADE, (Appended(b"a", "5"), None), (Appended(b"b", "2"), ok(1, Code.SEQ_REGRESSION))],
    ),
    "a repeat is one": (
        True,
        [
            MADE,
            (Appended(b"a", None, ("p", 0, 0)), ok(1)),
            (Appended(b"a", None, ("p", 0, 0)), ok(1, Code.DUPLICATE)),
        ],
    ),
    "a repeat with another body is refused": (
        True,
        [
            MADE,
            (Appended(b"a", None, ("p", 0, 0)), ok(1)),
            (Appended(b"b", None, ("p", 0, 0)), ok(1, Code.PRODUCER_CONFLICT)),
        ],
    ),
    "a repeat with the same body is refused": (
        False,
        [
            MADE,
            (Appended(b"a", None, ("p", 0, 0)), ok(1)),
            (Appended(b"a", None, ("p", 0, 0)), ok(1, Code.PRODUCER_CONFLICT)),
        ],
    ),
    "a repeat is taken twice": (
        False,
        [
            MADE,
            (Appended(b"a", None, ("p", 0, 0)), ok(1)),
            (Appended(b"a", None, ("p", 0, 0)), ok(2)),
        ],
    ),
    "an older epoch is taken": (
        False,
        [
            MADE,
            (Appended(b"a", None, ("p", 1, 0)), ok(1)),
            (Appended(b"b", None, ("p", 0, 0)), ok(2)),
        ],
    ),
    "a gap that is none": (
        False,
        [MADE, (Appended(b"a", None, ("p", 0, 0)), ok(0, Code.PRODUCER_GAP))],
    ),
    "a closed stream grows": (
        False,
        [
            MADE,
            (Appended(None, close=True), Reply(Code.OK, 7, 0, 0, True)),
            (Appended(b"a"), ok(1)),
        ],
    ),
    "a deleted one is there": (
        False,
        [MADE, (Deleted(), ok(0)), (Looked(), StreamInfo(7, "n", "text/plain", 0, 0, 0, 0))],
    ),
    "it is gone, and nothing holds it": (
        False,
        [MADE, (Deleted(), ok(0)), (Looked(), Refusal(Code.GONE))],
    ),
    "it is gone, and a fork holds it": (
        True,
        [MADE, (Pinned(0), True), (Deleted(), ok(0)), (Looked(), Refusal(Code.GONE))],
    ),
    "and is there no more when that goes": (
        True,
        [MADE, (Pinned(0), True), (Deleted(), ok(0)), (Looked(), Refusal(Code.GONE)), MADE],
    ),
    "a fork of what was not there yet": (False, [MADE, (Pinned(1), True), (Appended(b"a"), ok(1))]),
}


@pytest.mark.parametrize("name", LIVES)
def test_the_life_of_a_stream(name: str) -> None:
    can_be, steps = LIVES[name]
    operations = [
        Operation(at, at + 0.5 if answer is not None else FOREVER, Exchange(asked, answer))
        for at, (asked, answer) in enumerate(steps)
    ]
    assert Search(operations, None, Model({}).step).run() is can_be


def test_a_place_that_was_seen_says_what_was_appended_there() -> None:
    """Append twice without a response; one of the two is known to be stored."""
    steps = [
        (Created(), ok(0, Code.CREATED)),
        (Appended(b"a"), None),
        (Appended(b"b"), None),
        (Appended(b"c"), ok(2)),
    ]
    operations = [
        Operation(at, at + 0.5 if answer is not None else FOREVER, Exchange(asked, answer))
        for at, (asked, answer) in enumerate(steps)
    ]
    for known, can_be in (({(7, 0): b"b"}, True), ({(7, 0): b"x"}, False), ({(7, 1): b"b"}, False)):
        assert Search(operations, None, Model(known).step).run() is can_be


def test_a_producer_that_was_not_answered_puts_the_same_into_the_next_life() -> None:
    """Repeat an unanswered append in the next incarnation: it was seen there alone, the first
    incarnation is gone."""
    sent = Appended(b"a", None, ("p", 0, 0))
    again = Reply(Code.CREATED, 8, 0, 0), Reply(Code.OK, 8, 1, 8)
    steps = [
        MADE,
        (sent, None),
        (Appended(b"b"), ok(2)),
        (Deleted(), ok(2)),
        (Created(), again[0]),
        (sent, again[1]),
    ]
    operations = [
        Operation(at, at + 0.5 if answer is not None else FOREVER, Exchange(asked, answer))
        for at, (asked, answer) in enumerate(steps)
    ]
    for known, can_be in (({(8, 0): b"a"}, True), ({(7, 1): b"a"}, False)):
        assert Search(operations, None, Model(known).step).run() is can_be


def test_a_lease_has_one_holder_at_a_time() -> None:
    shift = Shift("pull")
    shift.give(1, "w1", Held("a", 100, 1100))
    shift.give(3, "w3", Held("c", 2300, 3300))
    shift.give(2, "w2", Held("b", 1200, 2200))  # its answer came late
    with pytest.raises(AssertionError, match="has it until"):
        shift.give(4, "w4", Held("d", 3000, 4000))
    with pytest.raises(AssertionError, match="the same wake"):
        shift.give(3, "w3", Held("e", 3400, 4400))
    shift.held[3].let_go = True
    shift.check(3)
