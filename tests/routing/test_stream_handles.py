"""A handle is opened once and kept: it answers right whatever happens to the stream, its group and
its leader."""

from __future__ import annotations

import asyncio
from functools import partial

from sim.cluster import World as Cluster
from stories.cluster import stories
from stories.service import story
from worlds.service import Code, Listener, World, raw_batch
from worlds.stream import kafka_batch

from polynya.base.futures import settle
from polynya.local.api import Page, ReadQuery, Refusal, StreamInfo
from polynya.routing.handle import StreamHandle
from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE, Append, Produce
from polynya.stream.features.consumer_groups.commands import CommitOffsets
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.parts import Encoding
from polynya.stream.replies import Reply
from polynya.stream.snapshots.encode import machine_from, snapshot_of

A = "test/a"


async def sent(handle: StreamHandle, payload: bytes, *, produce: bool = False) -> Code:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    append: Append | Produce = Append(A, 0, "text/plain", raw_batch(payload))
    if produce:
        append = Produce(A, 0, kafka_batch(1, payload))
    handle.append(append, partial(settle, future))
    return Code((await future).code)


async def answers(handle: StreamHandle, content: bytes) -> None:
    """The handle, its nowait methods and the others, knows the stream with this content."""
    query = ReadQuery(A)
    page, info = await handle.read(query), await handle.info()
    assert isinstance(page, Page) and isinstance(info, StreamInfo)
    assert b"".join(bytes(span.payload) for span in page.spans) == content
    assert page.info.uid == info.uid
    if handle.is_readable:
        assert handle.info_nowait() == info
        near = handle.read_nowait(query)
        assert near is None or (isinstance(near, Page) and near.spans == page.spans)


async def proposed(handle: StreamHandle, command: Create | Delete | SetProfile) -> Code:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    handle.propose(command, partial(settle, future))
    return Code((await future).code)


@story
async def test_one_handle_for_the_life_of_a_process(world: World) -> None:
    handle, service = world.service.open(A), world.service
    assert (handle.name, handle.group) == (A, service.group_of(A))
    assert isinstance(handle.info_nowait(), Refusal)
    assert await sent(handle, b"0") == Code.NOT_FOUND
    assert await proposed(handle, world.create_of(A)) == Code.CREATED
    assert [await sent(handle, b"%d;" % n) for n in range(3)] == [Code.OK] * 3
    await answers(handle, b"0;1;2;")

    for n in range(1_000):
        commit = CommitOffsets("g", n, -1, "", [])
        assert (await service.call(handle.group, commit)).code == Code.OK
    assert await sent(handle, b"3;") == Code.OK
    await answers(handle, b"0;1;2;3;")

    assert await world.evict() == 1 and world.evicted == {A}
    await answers(handle, b"0;1;2;3;")
    assert await sent(handle, b"4;") == Code.OK
    await answers(handle, b"0;1;2;3;4;")

    old = world.local.machines[handle.group]
    put(world, handle.group)
    assert await sent(handle, b"5;") == Code.OK
    await answers(handle, b"0;1;2;3;4;5;")
    assert world.local.machines[handle.group] is not old
    listener = Listener()
    assert await handle.attach(listener) == handle.info_nowait()

    uid = (await world.info(A)).uid  # type: ignore[union-attr]
    assert await proposed(handle, Delete(A, world.clock.ms)) == Code.OK
    assert await sent(handle, b"no;") == Code.NOT_FOUND
    assert await proposed(handle, world.create_of(A)) == Code.CREATED
    assert [await sent(handle, b"%d;" % n) for n in range(2)] == [Code.OK] * 2
    await answers(handle, b"0;1;")
    assert (await world.info(A)).uid != uid  # type: ignore[union-attr]
    assert listener.events[-1].gone

    for profile, payload in ((Profile.DISKLESS, b"2;"), (Profile.REPLICATED, b"3;")):
        changed = SetProfile(A, profile, world.clock.ms)
        assert await proposed(handle, changed) == Code.OK
        assert await sent(handle, payload) == Code.OK
    await answers(handle, b"0;1;2;3;")


@story
async def test_a_produce_goes_the_same_way(world: World) -> None:
    handle = world.service.open(A)
    assert await sent(handle, b"0", produce=True) == Code.NOT_FOUND
    create = Create(A, world.clock.ms, KAFKA_CONTENT_TYPE, Encoding.KAFKA)
    assert await proposed(handle, create) == Code.CREATED
    assert [await sent(handle, b"%d;" % n, produce=True) for n in range(3)] == [Code.OK] * 3
    changed = SetProfile(A, Profile.DISKLESS, world.clock.ms)
    assert await proposed(handle, changed) == Code.OK
    assert await sent(handle, b"3;", produce=True) == Code.OK
    await answers(handle, b"0;1;2;3;")


def put(world: World, group: int) -> None:
    """Replace the state of a group by its copy from elsewhere."""
    old = world.local.machines[group]
    hot = {
        (batch.position, uid): batch.payload
        for uid, stream in old.directory.by_uid.items()
        for batch in stream.hot
    }
    copy = machine_from(snapshot_of(old), lambda position, uid: hot[position, uid])
    copy.counters.standalone = old.counters.standalone
    world.engine.storage.core_replicas.groups[group].machine = copy
    world.local.put(group, copy)


async def three() -> tuple[Cluster]:
    return (await Cluster().start(),)


@stories(three)
async def test_a_handle_outlives_the_lead_of_its_node(cluster: Cluster) -> None:
    await cluster.wait_leaders()
    first = cluster.alive()[0]
    handles = {node.number: node.engine.service.open(A) for node in cluster.alive()}
    group = handles[1].group
    assert (await first.propose(A, Create(A, 0, "text/plain", Encoding.BYTES))).code == Code.CREATED
    content = b""
    for round_ in range(3):
        for node in cluster.alive():
            payload = b"%d.%d;" % (round_, node.number)
            assert await node.process.drive(sent(handles[node.number], payload)) == Code.OK
            content += payload
        await follow_another(cluster, group)
    for node in cluster.alive():
        await node.process.drive(answers(handles[node.number], content))


async def follow_another(cluster: Cluster, group: int) -> None:
    """Transfer the leadership of a group, and wait until the next leader has it."""
    leader = cluster.leader(group)
    assert leader is not None
    other = next(node for node in cluster.alive() if node is not leader)
    assert leader.core.transfer(group, other.number) is None
    await cluster.wait(lambda: cluster.leader(group) is other)
