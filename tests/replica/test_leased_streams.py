"""Leased streams in a simulated cluster: segments roll over under writers, leadership goes round,
and a writer that was away neither acknowledges nor is read.

That a segment has the appends of its writer alone is checked at each append that a node applies
(`Node._is_by_its_writer`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from statistics import median

import pytest
from long_tests import long
from sim.cluster import Node, World
from sim.leased import LeasedEpisode, LeasedSwarm
from sim.loop import run_simulated
from stories.cluster import A, led, stories

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery
from polynya.local.segments import HOLD_SECONDS, SegmentWriter
from polynya.service.stream_segments import LeasedSegments, view_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import SegmentLimits
from polynya.stream.replies import Done
from polynya.stream.state.model import Stream


async def leased(records: int = 10) -> tuple[World, Node]:
    """A cluster, and who leads the group of A and has made it, with short segments."""
    world = World(1)
    world.segments = SegmentLimits(records, 0)
    await world.start()
    leader = world.leader(world.group_of(A))
    assert leader is not None
    await world.wait(lambda: leader.engine.local.machines[world.group_of(A)].counters.level >= 3)
    await leader.create(A)
    return world, leader


async def leased_for_long() -> tuple[World, Node]:
    """The same, with segments that are never full."""
    return await leased(1_000_000)


story = stories(leased)
long_segments = stories(leased_for_long)
replicated = stories(led)


def segments_at(node: Node) -> LeasedSegments:
    machine = node.engine.local.machines[node.world.group_of(A)]
    found = view_of(machine.directory.streams[A])
    assert found is not None
    return found


async def appends(node: Node, mark: bytes, count: int) -> list[bytes]:
    """Append one after the other; return the acknowledged records."""
    sent = [mark + b"%04d;" % number for number in range(count)]
    for payload in sent:
        await node.append(A, payload)
    return sent


@story
async def test_segments_roll_over_under_writers_everywhere_and_nothing_is_lost(
    world: World, leader: Node
) -> None:
    sent = await asyncio.gather(
        *(appends(node, b"%d" % number, 60) for number, node in world.nodes.items())
    )
    content = await leader.read(A)
    assert sorted(content.split(b";")[:-1]) == sorted(
        payload[:-1] for each in sent for payload in each
    )
    await world.wait_equal()
    found = segments_at(leader)
    assert sum(each.records for each in found.segments) == 180
    assert [each.epoch for each in found.segments] == list(range(1, len(found.segments) + 1))
    assert 9 <= len(found.segments) <= 19, "about ten records each, and those in flight"
    writers = [each.writer for each in found.segments]
    assert set(writers) == {1, 2, 3}, "each node has its turn"
    assert all(before != after for before, after in pairwise(writers))


@story
async def test_a_new_leader_takes_over_the_open_segment_of_a_dead_writer(
    world: World, leader: Node
) -> None:
    await appends(leader, b"a", 3)
    loop = asyncio.get_running_loop()
    leader.kill()
    other, began = world.alive()[0], loop.time()
    while True:
        try:
            await other.append(A, b"b;")
            break
        except (Unavailable, OutcomeUnknown):
            assert loop.time() - began < 5
    assert loop.time() - began < 2.0
    found = segments_at(world.leader(world.group_of(A)) or other)
    assert [each.epoch for each in found.segments] == [1, 2]
    assert found.segments[0].writer == leader.number and found.segments[0].records == 3
    assert found.segments[1].writer != leader.number
    leader.start()
    assert await leader.read(A) == b"a0000;a0001;a0002;b;"


@story
async def test_a_paused_writer_that_wakes_up_neither_acknowledges_nor_is_read(
    world: World, leader: Node
) -> None:
    await leader.append(A, b"a;")
    leader.pause(20.0)
    late = asyncio.ensure_future(leader.append(A, b"late;"))
    asleep = asyncio.ensure_future(leader.read(A))
    await asyncio.sleep(5)
    other = next(node for node in world.alive() if node is not leader)
    await other.append(A, b"b;")
    await asyncio.sleep(16)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await late
    try:
        read = await asleep
    except Unavailable:
        read = b"a;b;"
    assert read.startswith(b"a;b;"), (
        "what began while it was asleep ended behind the other's append"
    )
    content = await leader.read(A)
    assert content in (b"a;b;", b"a;b;late;"), "unknown: it may have been sent on when it woke up"
    assert segments_at(other).segments[0].records == 1


@story
async def test_a_rollover_stalls_writers_for_less_than_20_ms(world: World, leader: Node) -> None:
    loop, taken = asyncio.get_running_loop(), list[float]()
    for number in range(200):
        began = loop.time()
        await leader.append(A, b"%d;" % number)
        taken.append(loop.time() - began)
    assert segments_at(leader).segments[-1].epoch > 10
    assert max(taken) - median(taken) < 0.02, "the disks and the network here take 7 ms"


@story
async def test_a_segment_is_closed_on_request_by_any_node_once(world: World, leader: Node) -> None:
    other = next(node for node in world.alive() if node is not leader)
    writing = asyncio.ensure_future(
        asyncio.gather(*(appends(node, b"%d" % node.number, 20) for node in world.alive()))
    )
    await world.wait(lambda: segments_at(leader).segments[-1].records > 3)
    epoch = segments_at(leader).segments[-1].epoch
    rolls = [other.process.drive(other.engine.segments.roll(A, epoch)) for _ in range(3)]
    results = await asyncio.gather(*rolls)
    assert any(each is not None and each.rolled for each in results)
    assert all(each is not None and each.segments.segments[-1].epoch > epoch for each in results)
    sent = [payload for each in await writing for payload in each]
    await world.wait_equal()
    found = segments_at(leader).segments
    assert [each.epoch for each in found] == list(range(1, len(found) + 1))
    assert found[epoch - 1].records <= 10
    content = await other.read(A)
    assert sorted(content.split(b";")[:-1]) == sorted(payload[:-1] for payload in sent)
    assert await other.process.drive(other.engine.segments.roll("test/none")) is None


@story
async def test_sealed_segments_are_read_from_a_replica_without_a_leader(
    world: World, leader: Node
) -> None:
    await appends(leader, b"a", 25)
    await world.wait_equal()
    sealed = segments_at(leader).segments[-1].record
    assert sealed >= 10
    alone, *others = world.alive()
    for other in others:
        other.kill()
    await asyncio.sleep(10)
    page = await alone.process.drive(alone.engine.service.read(ReadQuery(A, 0, 0)))
    assert isinstance(page, Page)
    assert page.record >= sealed and not page.has_all
    at = ReadQuery(A, page.record, page.byte)
    with pytest.raises(Unavailable):
        await alone.process.drive(alone.engine.service.read(at))
    for other in others:
        other.start()


@long_segments
async def test_a_segment_under_a_writer_lets_go_after_a_minute(world: World, leader: Node) -> None:
    """A failure moved it. The node that came back leads again, though no segment is full."""
    group, loop = world.group_of(A), asyncio.get_running_loop()
    leader.kill()
    await world.wait(lambda: world.leader(group) not in (None, leader))
    await (world.leader(group) or leader).append(A, b"x;")
    leader.start()
    began = loop.time()
    while world.leader(group) is not leader:
        assert loop.time() - began < 10 * HOLD_SECONDS
        await asyncio.sleep(0.5)
        await (world.leader(group) or leader).append(A, b"x;")
    assert HOLD_SECONDS / 2 < loop.time() - began < 2 * HOLD_SECONDS
    await leader.append(A, b"y;")
    found = segments_at(leader).segments
    assert (found[-1].epoch, found[-1].writer) == (3, leader.number), "it moved twice"


@long_segments
async def test_an_idle_segment_lets_go_at_once(world: World, leader: Node) -> None:
    group = world.group_of(A)
    leader.kill()
    await world.wait(lambda: world.leader(group) not in (None, leader))
    await (world.leader(group) or leader).append(A, b"x;")
    leader.start()
    await asyncio.sleep(HOLD_SECONDS / 2)
    assert world.leader(group) is leader


@long_segments
async def test_a_leader_whose_writers_are_elsewhere_lets_go_after_a_minute(
    world: World, leader: Node
) -> None:
    group = world.group_of(A)
    near = next(node for node in world.alive() if node is not leader)
    loop = asyncio.get_running_loop()
    until = loop.time() + HOLD_SECONDS + 10.0
    while loop.time() < until:
        await near.append(A, b"x;")
        await asyncio.sleep(0.05)
    assert world.leader(group) is near
    assert [each.writer for each in segments_at(near).segments] == [leader.number, near.number]


@replicated
async def test_streams_without_the_profile_keep_their_leader(world: World, leader: Node) -> None:
    for number in range(50):
        await leader.append(A, b"%d;" % number)
    group = world.group_of(A)
    assert world.leader(group) is leader
    assert not leader.engine.local.machines[group].directory.leased


def _no_claim(self: SegmentWriter, group: int, stream: Stream, command: Append, done: Done) -> bool:
    return True


def _no_waiting(
    self: SegmentWriter, group: int, stream: Stream, command: Append, done: Done
) -> bool:
    """Roll over, and let appends pass meanwhile."""
    if stream.uid in self._waiting:
        return True
    _ADMIT(self, group, stream, command, done)
    return stream.uid not in self._waiting


_ADMIT = SegmentWriter.admit


@pytest.mark.parametrize("admit", [_no_claim, _no_waiting])
def test_appends_by_another_than_the_writer_are_caught(
    monkeypatch: pytest.MonkeyPatch, admit: Callable[..., bool]
) -> None:
    """The check of each applied append finds a leader that does not claim, or does not wait."""
    monkeypatch.setattr(SegmentWriter, "admit", admit)

    async def run() -> None:
        world, leader = await leased()
        writers = [appends(leader, b"%d" % number, 20) for number in range(8)]
        writing = asyncio.ensure_future(asyncio.gather(*writers, return_exceptions=True))
        await asyncio.sleep(1)
        leader.kill()
        for _ in range(3):
            with suppress(Unavailable, OutcomeUnknown):
                await world.alive()[0].append(A, b"other;")
        await writing
        leader.start()
        world.check()
        await world.stop()

    with pytest.raises(AssertionError, match="whose writer is node"):
        run_simulated(run())


@pytest.mark.parametrize("seed", [1, 2, 5, *long([3, 6, 7])])
def test_histories_with_kills_pauses_and_rollovers(seed: int) -> None:
    episode = LeasedEpisode(seed, mishaps=15)
    episode.play()
    epochs = episode.epochs()
    assert len(epochs) == len(episode.streams)
    assert sum(epochs) > 5


@pytest.mark.parametrize("seed", [0, *long(range(1, 12))])
def test_leased_streams_in_the_worlds_of_the_swarm(seed: int) -> None:
    """Run with failing object stores and disks, evictions, and five nodes."""
    try:
        episode = LeasedSwarm(seed)
        episode.play()
        acknowledged = sum(
            len(each.acknowledged) + len(each.produced) for each in episode.histories.values()
        )
        assert sum(episode.epochs()) > 10 or acknowledged < 100, "segments roll over"
    except Exception as fault:
        raise AssertionError(f"again: make sim ARGS=--leased SEED={seed}") from fault
