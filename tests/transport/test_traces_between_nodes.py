"""The trace of a forwarded append: it goes on at the other node, unless that has an older release."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from polling import wait_for
from worlds.traced import PARENT, tracer_of
from worlds.two_nodes import answer_of, each_loop, two_nodes  # noqa: F401 a fixture

from polynya.base.spans import Span, Tracer, active, within
from polynya.replica.log import encode_command
from polynya.routing import messages
from polynya.routing.bundles import Bundles
from polynya.routing.proposals import ReceivedProposals
from polynya.routing.requests import TRACE_PROTOCOL, Received
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Done, Reply
from polynya.transport import Transport, address

run = asyncio.run
pytestmark = pytest.mark.usefixtures("each_loop")


def lead(transport: Transport, tracer: Tracer) -> None:
    """Take appends for group 1 on this core; each has a span below the one that is active."""

    def propose(group: int, command: Append, done: Done) -> None:
        if (above := active()) is not None:
            above.child("commit").end()
        done(Reply(Code.OK))

    local: Any = SimpleNamespace(propose=propose, stamped=lambda command: command, now_ms=int)
    directory: Any = SimpleNamespace(leads=(1).__eq__, leader_here=lambda group: 0)
    # PROPOSE has the number of the echo of these nodes
    named: Any = SimpleNamespace(
        on=lambda kind, handler: kind == messages.TRACED and transport.on(kind, handler)
    )
    ReceivedProposals(local, directory, Received(named, lambda: tracer), lambda *came: None)


async def appended(bundles: Bundles, span: Span, count: int) -> None:
    """Append to the leader on node 2, within a span."""
    answers: list[Any] = []

    def ask() -> None:
        for number in range(count):
            command = Append(f"s{number}", 1, "", Batch(Encoding.BYTES, 1, b"x", 0))
            bundles.propose(address(2, 0), 1, command, encode_command(command), answers.append)

    within(span, ask)
    await wait_for(lambda: len(answers) == count, what="the answers")
    assert all(isinstance(each, Reply) for each in answers), answers


@pytest.mark.parametrize("count", [1, 2])
def test_the_spans_of_a_forwarded_append_have_one_trace(tmp_path: Path, count: int) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (one, two, _):
            here, there = tracer_of(1), tracer_of(2)
            lead(two.transports[0], there)
            await answer_of(one, b"the link for calls")
            bundles = Bundles(one.transports[0])
            root = here.begin("POST", PARENT)
            assert root is not None
            await appended(bundles, root, count)
            forwards = here.take(100)
            *commits, propose = there.take(100)
            assert {each.name for each in forwards} == {"forward"}
            assert len(forwards) == len(commits) == count
            assert (propose.name, propose.parent) == ("propose", forwards[0].id)
            assert {each.parent for each in commits} == {propose.id}
            assert {each.trace_id for each in (*forwards, *commits, propose)} == {root.trace_id}
            assert forwards[0].attributes["polynya.node"] == 2

    run(story())


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [(TRACE_PROTOCOL, messages.TRACED), (TRACE_PROTOCOL - 1, messages.PROPOSE)],
)
def test_a_node_of_an_older_release_gets_no_trace(protocol: int, kind: int) -> None:
    sent: list[int] = []

    def call_nowait(core: int, kind: int, body: bytes, done: Any) -> None:
        sent.append(kind)
        done(messages.encode(Reply(Code.OK)))

    async def story() -> None:
        transport: Any = SimpleNamespace(protocol=lambda core: protocol, call_nowait=call_nowait)
        root = tracer_of(1).begin("POST", PARENT)
        assert root is not None
        await appended(Bundles(transport), root, 1)
        assert sent == [kind]

    run(story())
