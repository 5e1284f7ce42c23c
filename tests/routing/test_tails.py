"""Live readers, here and of another core's streams: nothing missing, nothing twice, and told when
there is no more."""

from __future__ import annotations

import asyncio

import pytest
from polling import wait_for
from stories.service import node_story
from worlds.service import Code, Listener, Node, World, name_in
from worlds.transactions import plant_end

from polynya.base.errors import Unavailable
from polynya.local.api import LiveEvent, Refusal, StreamInfo
from polynya.routing.tails import RemoteTails
from polynya.stream.features.lifetimes.commands import Touch
from polynya.stream.state.model import KafkaState, OpenTransaction

HERE, THERE = name_in(2), name_in(1)  # of core 0, of core 1


async def attached(world: World, name: str) -> tuple[StreamInfo, Listener]:
    listener = Listener()
    info = await world.service.open(name).attach(listener)
    assert isinstance(info, StreamInfo)
    return info, listener


@pytest.mark.parametrize("name", [HERE, THERE])
@node_story
async def test_readers_that_come_while_a_writer_writes_miss_nothing(node: Node, name: str) -> None:
    here = node.worlds[0]
    await here.create(name)
    readers: list[tuple[StreamInfo, Listener]] = []

    async def write() -> None:
        for number in range(200):
            await here.append(name, b"%03d" % number)

    writer = asyncio.create_task(write())
    for _ in range(20):
        readers.append(await attached(here, name))
        for _ in range(7):
            await asyncio.sleep(0)
    await writer
    whole = await here.read(name)
    await wait_for(
        lambda: all(
            listener.events and listener.events[-1].byte == len(whole) for _, listener in readers
        )
    )
    for info, listener in readers:
        caught_up = [event for event in listener.events if event.record > info.record]
        assert caught_up[0].begin_record <= info.record, (
            "a gap between the facts and the first event"
        )
        assert whole.startswith(whole[: info.byte]) and whole.endswith(
            b"".join(bytes(event.payload) for event in caught_up)
        )
        listener.check_gap_free(listener.events[0].begin_record, listener.events[0].begin_byte)


@node_story
async def test_a_tail_watch_carries_numbers_only_between_cores(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE)
    watcher, (_, reader) = Listener(), await attached(here, THERE)
    info = await here.service.open(THERE).attach(watcher, numbers=True)
    assert isinstance(info, StreamInfo)
    await here.append(THERE, b"abc")
    await wait_for(lambda: watcher.events and reader.events)
    assert [(event.record, event.byte, bytes(event.payload)) for event in watcher.events] == [
        (1, 3, b"")
    ]
    assert [bytes(event.payload) for event in reader.events] == [b"abc"]
    here.service.detach(info.uid, watcher)
    here.service.detach(info.uid, reader)
    await wait_for(lambda: len(there.local.feeds) == 0)


@pytest.mark.parametrize("name", [HERE, THERE])
def test_the_end_of_a_transaction_reaches_readers_of_either_core(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_end(monkeypatch)

    @node_story
    async def run(node: Node) -> None:
        here, home = node.worlds[0], node.worlds[name == THERE]
        await here.create(name)
        info, reader = await attached(here, name)
        watcher, uncommitted = Listener(), Uncommitted()
        for watch in (watcher, uncommitted):
            await here.service.open(name).attach(watch, numbers=True)
        stream = home.local.machines[home.service.group_of(name)].directory.streams[name]
        stream.kafka = KafkaState(open={7: OpenTransaction(0, 0, 0, 1)})
        await here.append(name, b"abc")
        await wait_for(lambda: uncommitted.events)
        late = Listener()
        found = await here.service.open(name).attach(late, numbers=True)
        assert isinstance(found, StreamInfo)
        assert (found.record, found.high_watermark) == (0, 1)
        assert not reader.events and not watcher.events
        here.service.propose(name, Touch([(info.uid, 7)], 1), lambda reply: None)
        listeners = (reader, watcher, uncommitted, late)
        await wait_for(lambda: all(each.events and each.events[-1].record for each in listeners))
        for each in listeners:
            last = each.events[-1]
            assert (last.begin_record, last.record, last.byte, last.payload) == (0, 1, 3, b"")
        await wait_for(lambda: len(uncommitted.events) == 2)
        again = await here.service.open(name).attach(late, numbers=True)
        assert isinstance(again, StreamInfo)
        assert (again.record, again.high_watermark) == (1, 1)
        for each in listeners:
            here.service.detach(info.uid, each)

    run()


class Uncommitted(Listener):
    """A live reader that wants the records of open transactions."""

    uncommitted = True


@node_story
async def test_many_readers_are_one_subscription_and_the_last_one_ends_it(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE)
    found = await asyncio.gather(*(attached(here, THERE) for _ in range(5)))
    assert len(there.local.feeds) == 1
    for info, listener in found[:4]:
        here.service.detach(info.uid, listener)
    assert len(there.local.feeds) == 1
    await here.append(THERE, b"x")
    await wait_for(lambda: found[4][1].events)
    assert not found[0][1].events
    here.service.detach(found[4][0].uid, found[4][1])
    await wait_for(lambda: len(there.local.feeds) == 0)


@node_story
async def test_a_client_that_leaves_while_it_is_attached_leaves_nothing(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE)
    for turns in range(30):
        task = asyncio.create_task(here.service.open(THERE).attach(Listener()))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(result, StreamInfo):
            break
    else:
        await wait_for(lambda: len(there.local.feeds) == 0)
        tails = here.service._tails[False, False]
        assert not tails._tails and not tails._names and not len(tails._feeds)


@node_story
async def test_the_facts_of_a_reader_do_not_change_under_it(node: Node) -> None:
    here, _ = node.worlds
    await here.create(THERE)
    first, listener = await attached(here, THERE)
    await here.append(THERE, b"x", close=True)
    await wait_for(lambda: listener.events)
    second, _ = await attached(here, THERE)
    assert (first.record, first.closed, second.record, second.closed) == (0, False, 1, True)


@pytest.mark.parametrize("name", [HERE, THERE])
@node_story
async def test_a_deleted_stream_tells_its_readers_once(node: Node, name: str) -> None:
    here = node.worlds[0]
    await here.create(name)
    _, listener = await attached(here, name)
    await here.append(name, b"x")
    await here.delete(name)
    await wait_for(lambda: len(listener.events) == 2)
    assert [event.gone for event in listener.events] == [False, True]
    assert isinstance(await here.service.open(name).attach(listener), Refusal)
    await here.create(name)
    info, again = await attached(here, name)
    await here.append(name, b"y")
    await wait_for(lambda: again.events)
    assert (again.events[0].uid, again.payload, len(listener.events)) == (info.uid, b"y", 2)


@node_story
async def test_readers_are_cut_when_the_streams_core_dies_and_may_come_again(node: Node) -> None:
    here, _ = node.worlds
    await here.create(THERE)
    await here.append(THERE, b"1")
    _, listener = await attached(here, THERE)
    await node.kill_core(1)
    await wait_for(lambda: listener.events)
    assert [event.cut for event in listener.events] == [True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polynya.transport.peer.WAIT_SECONDS", 60.0)
        waiting = asyncio.create_task(here.service.open(THERE).attach(Listener()))
        await asyncio.sleep(0)
        await node.start_core(1)
        await node.wait_connected()
        info = await waiting
    assert isinstance(info, StreamInfo) and info.record == 1
    info, listener = await attached(here, THERE)
    await here.append(THERE, b"2")
    await wait_for(lambda: listener.events)
    assert await here.read(THERE) == b"12"


@node_story
async def test_a_reader_of_another_core_keeps_a_ttl_stream(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE, ttl_seconds=8)
    info, listener = await attached(here, THERE)
    here.clock.ms += 60_000
    there.local.sweep()
    assert (await here.append(THERE, b"x")).code == Code.OK
    here.service.detach(info.uid, listener)
    await wait_for(lambda: len(there.local.feeds) == 0)
    here.clock.ms += 8000
    assert await here.code_of(THERE) == Code.NOT_FOUND


@node_story
async def test_a_subscriber_that_is_too_slow_is_cut_and_leaves_nothing(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE)
    _, listener = await attached(here, THERE)
    uid = next(iter(there.local.feeds.uids()))
    big = LiveEvent(uid, 0, 0, 1, 41 << 20, 0, b"x" * (41 << 20))
    there.local.feeds.publish(big)  # larger than a message may be
    assert len(there.local.feeds) == 0
    await wait_for(lambda: listener.events)
    assert listener.events[-1].cut


@node_story
async def test_a_core_that_is_away_for_long_is_unavailable(node: Node) -> None:
    here, _ = node.worlds
    await here.create(THERE)
    await node.kill_core(1)
    with pytest.raises(Unavailable):
        await here.service.open(THERE).attach(Listener())
    await node.start_core(1)
    await node.wait_connected()
    assert (await attached(here, THERE))[0].record == 0


def test_a_stream_whose_core_could_not_even_be_asked_is_asked_for_again():
    class Transport:
        asked = 0

        def subscribe(self, core, kind, body, on_item, on_end):
            self.asked += 1
            raise Unavailable("node 2 does not belong to the cluster; retry")

    async def story():
        tails = RemoteTails(transport := Transport())
        for _ in range(2):
            with pytest.raises(Unavailable):
                async with asyncio.timeout(60):
                    await tails.attach(1, 1, "s", Listener())
        assert transport.asked == 2

    asyncio.run(story())
