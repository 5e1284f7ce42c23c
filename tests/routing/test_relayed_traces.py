"""The trace of a request that a node relays to the leader of its group: from the core that asks
over the relay to the leader, and its write; and of a question to another core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from worlds.traced import PARENT, tracer_of

from polynya.base.errors import InvalidMessage, NotLeader
from polynya.base.spans import Span, active, within
from polynya.replica.log import encode_command
from polynya.routing import messages
from polynya.routing.bundles import Bundles
from polynya.routing.requests import TRACE_PROTOCOL, Answer, Received, Relay
from polynya.routing.rpc import Rpc
from polynya.routing.send import THROUGH, SoleTargets
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply
from polynya.transport.handshake import address

GROUP = 2
RELAY, LEADER = address(2, 0), address(3, 0)
OLDER = TRACE_PROTOCOL - 1


class Core:
    """The transport of a core of node 1 to 3: what it asks arrives at once, and `protocols` are
    those of the cores that it knows."""

    def __init__(self, node: int, cores: dict[int, Core]) -> None:
        self.core = address(node, 0)
        self.handlers: dict[int, Callable[[bytes, Answer, int], None]] = {}
        self.protocols: dict[int, int] = {}
        self.asked: list[tuple[int, int]] = []  # core, kind
        self.tracer = tracer_of(node)
        self._cores = cores
        cores[self.core] = self

    def on(self, kind: int, handler: Callable[[bytes, Answer, int], None]) -> None:
        self.handlers[kind] = handler

    def protocol(self, core: int) -> int:
        return self.protocols.get(core, TRACE_PROTOCOL)

    def call_nowait(self, core: int, kind: int, body: bytes, done: Answer) -> None:
        self.asked.append((core, kind))
        self._cores[core].handlers[kind](body, done, self.core)


class ThreeNodes:
    """Node 1 does not reach node 3, which leads the group; node 2 reaches both."""

    def __init__(self) -> None:
        cores: dict[int, Core] = {}
        self.one, self.two, self.three = (Core(node, cores) for node in (1, 2, 3))
        self.leader = LEADER
        self.relay = Relay(self.two, lambda group: self.leader, lambda group: 7)
        self.relay.tracer = self.two.tracer
        self.two.on(messages.PASS_ON, self.relay.handle)
        received = Received(self.three, lambda: self.three.tracer)
        received.on(messages.PROPOSE, self._apply)
        received.on(messages.PROPOSE_ALL, self._apply)

    def _apply(self, body: bytes, reply: Answer, peer: int) -> None:
        if (above := active()) is not None:
            above.child("fsync").end()
        reply(messages.encode(Reply(Code.OK)))

    def append(self) -> tuple[Span, list[Any]]:
        """Append on node 1 within a traced request."""
        answers: list[Any] = []

        async def story() -> Span:
            root = self.one.tracer.begin("POST", PARENT)
            assert root is not None
            bundles = Bundles(self.one)
            command = Append("s", 1, "", Batch(Encoding.BYTES, 1, b"x", 0))
            ask = partial(
                bundles.propose,
                *(THROUGH + RELAY, GROUP, command, encode_command(command), answers.append),
            )
            within(root, ask)
            while not answers:
                await asyncio.sleep(0)
            return root

        return asyncio.run(story()), answers


def test_a_relayed_append_has_one_trace_from_the_front_to_the_leaders_write() -> None:
    nodes = ThreeNodes()
    root, answers = nodes.append()
    assert answers == [Reply(Code.OK)]
    (forward,), (relay,) = nodes.one.tracer.take(9), nodes.two.tracer.take(9)
    fsync, propose = nodes.three.tracer.take(9)
    assert [each.name for each in (forward, relay, propose, fsync)] == [
        *("forward", "relay", "propose", "fsync")
    ]
    assert {each.trace_id for each in (forward, relay, propose, fsync)} == {root.trace_id}
    chain = (root.id, forward.id, relay.id, propose.id)
    assert (forward.parent, relay.parent, propose.parent, fsync.parent) == chain
    assert forward.attributes["polynya.relayed"] is True and not relay.error
    assert forward.attributes["polynya.node"] == 2


def test_a_relay_that_does_not_trace_hands_the_trace_on() -> None:
    nodes = ThreeNodes()
    nodes.relay.tracer = None
    nodes.append()
    (forward,), (_, propose) = nodes.one.tracer.take(9), nodes.three.tracer.take(9)
    assert propose.parent == forward.id and not nodes.two.tracer.queue


@pytest.mark.parametrize("older", ["relay", "leader"])
def test_a_core_of_an_older_release_gets_the_bare_request(older: str) -> None:
    nodes = ThreeNodes()
    (nodes.one if older == "relay" else nodes.two).protocols = {RELAY: OLDER, LEADER: OLDER}
    _, answers = nodes.append()
    assert answers == [Reply(Code.OK)] and nodes.two.asked == [(LEADER, messages.PROPOSE)]
    assert not nodes.three.tracer.queue
    assert [each.name for each in nodes.two.tracer.queue] == ["relay"] * (older == "leader")


def test_a_relay_that_reaches_no_leader_says_who_leads_and_leaves_no_span() -> None:
    nodes = ThreeNodes()
    nodes.leader = -1
    _, (answer,) = nodes.append()
    assert isinstance(answer, NotLeader) and answer.node == 7 and not nodes.two.tracer.queue
    (forward,) = nodes.one.tracer.take(9)
    assert forward.error == "NotLeader"


@pytest.mark.parametrize("target", [LEADER, THROUGH + RELAY])
def test_a_question_to_another_core_is_a_part_of_the_trace(
    monkeypatch: pytest.MonkeyPatch, target: int
) -> None:
    """A task of the other core continues the trace, too."""
    nodes, kind = ThreeNodes(), 60_001
    monkeypatch.setitem(messages.DECODERS, kind, messages.DECODERS[messages.META])

    def rpc_of(core: Core) -> Rpc:
        transport: Any = core
        nothing: Any = None
        received = Received(transport, lambda: core.tracer)
        targets = SoleTargets(core.core, 1)
        return Rpc(nothing, nothing, targets, transport, received, core=core.core, cores=1)

    async def answer(question: int) -> int:
        await asyncio.sleep(0)
        if (above := active()) is not None:
            above.child("store get").end()
        if question < 0:
            raise InvalidMessage("below zero")
        return question + 1

    async def story() -> Span:
        rpc_of(nodes.three).serve(kind, int, int, answer)
        root = nodes.one.tracer.begin("GET", PARENT)
        assert root is not None
        asking, tasks = rpc_of(nodes.one), list[asyncio.Task[Any]]()

        def ask() -> None:
            for question in (1, -1):
                tasks.append(asyncio.ensure_future(asking.ask(target, kind, question, GROUP)))

        within(root, ask)
        assert await tasks[0] == 2
        with pytest.raises(InvalidMessage):
            await tasks[1]
        assert await asking.ask(target, kind, 4, GROUP) == 5, "of a request that is not traced"
        return root

    root = asyncio.run(story())
    asks, there = nodes.one.tracer.take(9), nodes.three.tracer.take(9)
    between = nodes.two.tracer.take(9) or asks
    assert sorted(each.name for each in there) == ["answer"] * 2 + ["store get"] * 2
    answers = [each for each in there if each.name == "answer"]
    assert (
        [each.error for each in asks] == [each.error for each in answers] == ["", "InvalidMessage"]
    )
    assert [each.parent for each in answers] == [each.id for each in between]
    assert {each.parent for each in there if each.name == "store get"} == {
        each.id for each in answers
    }
    assert {each.trace_id for each in (*asks, *between, *there)} == {root.trace_id}
    assert {each.parent for each in asks} == {root.id}
