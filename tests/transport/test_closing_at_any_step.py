"""A transport is closed after each number of passes of the loop from its start on: every call is
answered, and nothing is left."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from worlds.two_nodes import ECHO, HOLD, Node

from polynya.base.errors import Unavailable
from polynya.transport import Transport, address

# A connection that asyncio takes while its server closes is half made, and told when it is thrown
# away, from Python 3.12 on (python/cpython#109564); uvloop, which nodes run on, has no such gap.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. .function "
    "_SelectorTransport.__del__:pytest.PytestUnraisableExceptionWarning"
)
SECONDS = 60.0  # of one closing, on a machine that has much else to do
LAST = -1


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request, monkeypatch):
    monkeypatch.setattr("polynya.transport.peer.WAIT_SECONDS", 60.0)
    return request.param


async def passes(count: int, asked: list[asyncio.Task[bytes]]) -> None:
    """Let the loop pass that many times. `LAST`: until all is answered."""
    if count == LAST:
        async with asyncio.timeout(SECONDS):
            await asyncio.wait(asked)
    for _ in range(count):
        await asyncio.sleep(0)


async def closed(
    first: list[Transport], second: list[Transport], asked: list[asyncio.Task[bytes]]
) -> int:
    """Close `first`, then `second`, and count the answered calls of `first`. Every call ends, and
    no task stays."""
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(each.close() for each in first))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(Unavailable):
            await first[0].call(address(2, 0) if first[0].raft else 1 - first[0].core, ECHO, b"")
        await asyncio.gather(*(each.close() for each in second))
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
    assert not [each for each in first + second if each._connections.inbound]
    return sum(isinstance(answer, bytes) for answer in answers)


def test_between_cores(tmp_path, run):
    async def story(count: int) -> int:
        asking, other = (Transport(core, 2, str(tmp_path), start_id="s") for core in (0, 1))
        for each in (asking, other):
            each.on(ECHO, lambda body, reply, core: reply(body))
            each.on(HOLD, lambda body, reply, core: None)
        await other.start()
        await asking.start()
        asked = [
            asyncio.create_task(asking.call(1, kind, bytes(size)))
            for kind in (ECHO, HOLD)
            for size in (1, 300_000)
        ]
        await passes(count, asked[:2])
        return await closed([asking], [other], asked)

    answered = [run(story(count)) for count in (*range(30), LAST)]
    assert (answered[0], answered[-1]) == (0, 2)


def test_between_nodes(tmp_path, run):
    """Run two cores each: half of the connections are handed from one to the other."""

    async def story(count: int, *, asker_first: bool) -> int:
        one, two = Node(tmp_path, 1, cores=2), Node(tmp_path, 2, cores=2)
        await two.start({1: one.port})
        await one.start({2: two.port})
        asked = [
            asyncio.create_task(each.call(address(2, core), ECHO, b"x"))
            for each in one.transports
            for core in (0, 1)
        ]
        await passes(count, asked)
        one.held.close()
        two.held.close()
        if asker_first:
            return await closed(one.transports, two.transports, asked)
        async with asyncio.timeout(SECONDS):
            await two.stop()
        return await closed(one.transports, [], asked)

    for count in range(0, 60, 3):
        run(story(count, asker_first=count % 2 == 0))
    assert run(story(LAST, asker_first=True)) == 4
