"""Appends of one pass for one group travel together: order, the faults of one, and exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.replica.log import encode_command
from polynya.routing import bundles, messages
from polynya.routing.bundles import Bundles, handler_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import Acknowledge
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply

STAMP = 77


class World:
    """A core that asks, and one that leads groups 1 and 2. `sent`: (target, kind) of each
    message."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.proposed: list[tuple[int, Append, Any]] = []
        self.protocols = 2
        self.lost: BaseException | None = None
        self.refused: set[str] = set()
        self.bundles = Bundles(self)
        self._handle = handler_of(
            {1, 2}.__contains__, lambda group: 9, self._propose, lambda: STAMP, lambda *came: None
        )

    def protocol(self, core: int) -> int:
        return self.protocols

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None:
        self.sent.append((core, kind))
        if self.lost is not None:
            done(self.lost)
        elif kind == messages.PROPOSE_ALL:
            self._handle(body, done, 0)
        else:
            done(messages.encode(Reply(Code.OK, detail="alone")))

    def _propose(self, group: int, append: Append, done: Any) -> None:
        if append.name in self.refused:
            raise TypeError(f"{append.name} cannot be encoded")
        self.proposed.append((group, append, done))

    def ask(self, group: int, name: str, size: int = 3) -> list[Any]:
        answers: list[Any] = []
        command = Append(name, 1, "", Batch(Encoding.BYTES, 1, b"x" * size, 0))
        self.bundles.propose(5, group, command, encode_command(command), answers.append)
        return answers


def story(work: Callable[[World], Any]) -> None:
    async def run() -> None:
        await work(World())

    asyncio.run(run())


def test_the_appends_of_a_pass_for_a_group_are_one_message_and_one_answer():
    async def work(world: World) -> None:
        answers = [
            world.ask(1, "a"),
            world.ask(2, "z"),
            world.ask(1, "b"),
            world.ask(2, "y"),
            world.ask(1, "c"),
        ]
        assert not world.sent, "the pass is not over"
        await asyncio.sleep(0)
        assert world.sent == [(5, messages.PROPOSE_ALL)] * 2
        assert [(group, append.name, append.now_ms) for group, append, _ in world.proposed] == [
            (1, "a", STAMP),
            (1, "b", STAMP),
            (1, "c", STAMP),
            (2, "z", STAMP),
            (2, "y", STAMP),
        ]
        for number, (_, _, done) in enumerate(world.proposed[:2]):
            done(Reply(Code.OK, number))
        assert answers == [[], [], [], [], []], "they are answered together"
        world.proposed[2][2](Reply(Code.OK, 2))
        assert [found[0].uid for found in answers[::2]] == [0, 1, 2] and answers[1] == answers[
            3
        ] == []
        assert sum(world.bundles.seconds.counts) == 1, "the answered message"

    story(work)


def test_what_fails_does_so_alone():
    async def work(world: World) -> None:
        world.refused = {"b"}
        answers = [world.ask(1, name) for name in "abc"]
        await asyncio.sleep(0)
        world.proposed[0][2](Unavailable("later"))
        world.proposed[1][2](Reply(Code.CLOSED))
        assert isinstance(answers[0][0], Unavailable) and str(answers[0][0]) == "later"
        assert isinstance(answers[1][0], OutcomeUnknown) and "cannot be encoded" in str(
            answers[1][0]
        )
        assert answers[2] == [Reply(Code.CLOSED)]

    story(work)


def test_a_command_of_a_later_release_is_the_fault_of_it_alone():
    taken: list[str] = []
    handle = handler_of(
        lambda group: True,
        lambda group: 0,
        lambda group, append, done: (taken.append(append.name), done(Reply(0))),
        lambda: 1,
        lambda *came: None,
    )
    strange = msgspec.msgpack.encode([2, 5, "no time", "", None])
    bodies = [
        encode_command(Append("a", 1, "", None)),
        strange,
        encode_command(Append("b", 1, "", None)),
    ]
    answers: list[Any] = []
    handle(b"\x01\x00\xdd\x00\x00\x00\x03" + b"".join(bodies), answers.append, 0)
    replies, faults = msgspec.msgpack.decode(answers[0])
    assert (
        taken == ["a", "b"]
        and replies[1] is None
        and replies[0] is not None is not replies[2]
        and list(faults) == [1]
    )


def test_a_senseless_append_of_another_core_is_refused_and_the_others_are_proposed():
    async def work(world: World) -> None:
        sound, answers = world.ask(1, "a"), []
        strange = Append("b", 1, "", Batch(Encoding.BYTES, 3, b"xyz", 0))
        world.bundles.propose(5, 1, strange, encode_command(strange), answers.append)
        await asyncio.sleep(0)
        assert [append.name for _, append, _ in world.proposed] == ["a"] and not answers
        world.proposed[0][2](Reply(Code.OK))
        assert sound == [Reply(Code.OK)]
        assert "refused to propose an invalid command: the record lengths of a batch" in str(
            answers[0]
        )

    story(work)


def test_a_code_of_a_later_release_leaves_the_outcome_unknown():
    """Leave the outcome unknown: a refusal or a success would be a guess."""
    later = max(Code) + 1
    for body in (messages.encode(Reply(later)), messages.encode([2, later])):
        kind = messages.PROPOSE if body[1] == later else messages.INFO
        with pytest.raises(msgspec.ValidationError, match=f"`int` <= {later - 1}"):
            messages.decode(kind, body)
    replies = [Reply(Code.OK, record=1), Reply(later), Reply(Code.CLOSED)]
    first, second, third = bundles._outcomes(messages.encode((replies, {})), 3)
    assert (first, third) == (replies[0], replies[2])
    assert isinstance(second, OutcomeUnknown) and "no readable reply" in str(second)


def test_who_does_not_lead_says_who_does_and_a_lost_connection_is_everybodys():
    async def work(world: World) -> None:
        answers = [world.ask(3, "a"), world.ask(3, "b")]
        await asyncio.sleep(0)
        assert [(type(found[0]), found[0].node) for found in answers] == [(NotLeader, 9)] * 2
        world.lost = OutcomeUnknown("gone")
        answers = [world.ask(1, "a"), world.ask(1, "b")]
        await asyncio.sleep(0)
        assert answers == [[world.lost]] * 2

    story(work)


def test_what_may_take_longer_goes_alone_and_behind_what_came_before_it():
    async def work(world: World) -> None:
        world.ask(1, "a"), world.ask(1, "b")
        answers: list[Any] = []
        command = Acknowledge(4)
        world.bundles.propose(5, 1, command, encode_command(command), answers.append)
        assert (
            world.sent == [(5, messages.PROPOSE_ALL), (5, messages.PROPOSE)]
            and answers[0].detail == "alone"
        )
        world.ask(1, "c")
        await asyncio.sleep(0)
        assert world.sent[2:] == [(5, messages.PROPOSE)], "one is no bundle"

    story(work)


def test_an_older_release_gets_them_one_by_one():
    async def work(world: World) -> None:
        world.protocols = 1
        assert [world.ask(1, "a"), world.ask(1, "b")] == [[Reply(Code.OK, detail="alone")]] * 2
        assert world.sent == [(5, messages.PROPOSE)] * 2

    story(work)


@pytest.mark.parametrize(("size", "sent"), [(300, 2), (2000, 4)])
def test_a_bundle_is_bounded(monkeypatch, size, sent):
    monkeypatch.setattr(bundles, "BUNDLE_BYTES_MAX", 1000)

    async def work(world: World) -> None:
        for name in "abcde"[: 4 if size > 1000 else 5]:
            world.ask(1, name, size)
        await asyncio.sleep(0)
        assert len(world.sent) == sent and (size > 1000 or len(world.proposed) >= 3)

    story(work)
