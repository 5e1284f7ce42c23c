"""Appends of one turn are one entry of the log: its bytes, which appends go together, and that each
is found again, whatever happens to the nodes."""

from __future__ import annotations

import asyncio

import pytest
from sim.cluster import Node, World
from sim.loop import run_simulated
from worlds.service import raw_batch
from worlds.stream import kafka_batch

from polynya.base.errors import Unavailable
from polynya.base.limits import (
    APPEND_BYTES_MAX,
    CONTENT_TYPE_BYTES_MAX,
    PATH_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    STREAM_SEQ_BYTES_MAX,
)
from polynya.raft import Append as AppendMessage
from polynya.raft import Entry, encode_message
from polynya.replica.log import (
    ENTRY_BYTES_MAX,
    count_of,
    decode_command,
    decode_part,
    encode_bundle,
    encode_command,
)
from polynya.replica.member import BUNDLE_BYTES, Bundled, Proposal, bundled, parts_of
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import (
    BUNDLE_COMMANDS_MAX,
    PRODUCE_BUNDLE_BYTES,
    Append,
    Bundle,
    Produce,
)
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Code
from polynya.transport.link import FRAME_BYTES_MAX
from polynya.wire.json_records import RECORDS_PER_APPEND_MAX

A = "test/a"


def append_of(number: int, size: int = 4) -> Append:
    return Append(A, number, "text/plain", raw_batch(b"x" * size), Producer("p", 0, number))


def proposal(command: Command) -> Proposal:
    return Proposal(encode_command(command), command=command, token=lambda reply: None)


@pytest.mark.parametrize("count", [1, 15, 16, BUNDLE_COMMANDS_MAX])
def test_a_bundle_has_the_bytes_of_its_commands(count: int) -> None:
    commands = [append_of(number) for number in range(count)]
    data = encode_bundle([encode_command(command) for command in commands])
    assert data == encode_command(Bundle(commands))
    assert decode_command(data) == Bundle(commands) and count_of(data) == count
    assert [decode_part(data, number) for number in range(count + 1)] == [*commands, None]


def test_a_command_alone_is_its_own_first_part() -> None:
    data = encode_command(append_of(1))
    assert (decode_part(data, 0), decode_part(data, 1), count_of(data)) == (append_of(1), None, 1)


def test_what_goes_together() -> None:
    queue: list[Entry] = [proposal(append_of(number)) for number in range(BUNDLE_COMMANDS_MAX + 3)]
    queue.append(proposal(Delete(A, 1)))
    queue.append(proposal(append_of(1)))
    queue.append(proposal(append_of(2, BUNDLE_BYTES)))
    queue += [proposal(append_of(number, BUNDLE_BYTES // 3)) for number in range(4)]
    entries = bundled(queue)
    assert [len(parts_of(entry)) for entry in entries] == [BUNDLE_COMMANDS_MAX, 3, 1, 1, 1, 2, 2]
    assert [part for entry in entries for part in parts_of(entry)] == queue, "in their order"
    assert all(
        len(entry.payload) <= BUNDLE_BYTES + 8 for entry in entries if type(entry) is Bundled
    )


def test_an_entry_that_no_message_carries_is_refused_and_the_group_goes_on() -> None:
    """Refuse the entry before the log: it would be sent without end, and the receiver would drop
    the connection of all groups each time."""
    largest = Batch(
        1, RECORDS_PER_APPEND_MAX, bytes(APPEND_BYTES_MAX + 1), 1, bytes(4 * RECORDS_PER_APPEND_MAX)
    )
    room = (
        PATH_BYTES_MAX + CONTENT_TYPE_BYTES_MAX + PRODUCER_ID_BYTES_MAX + STREAM_SEQ_BYTES_MAX + 256
    )
    assert len(encode_command(Append("", 1, "", largest))) + room <= ENTRY_BYTES_MAX
    message = AppendMessage(1, 2, 3, 4, 5, 6, 7, [Entry(b"", 1, 2, 3, 4)])
    assert ENTRY_BYTES_MAX + len(encode_message(message)) + 64 <= FRAME_BYTES_MAX

    async def story() -> None:
        world = await World().start()
        leader = world.leader(world.group_of(A))
        assert leader is not None
        await leader.create(A)
        with pytest.raises(Unavailable):
            await leader.core.call(world.group_of(A), append_of(0, ENTRY_BYTES_MAX))
        assert leader.core.inflight_bytes == 0
        assert (await leader.append(A, b"small")).code == Code.OK
        await world.stop()

    run_simulated(story())


async def _at_once(node: Node, count: int) -> None:
    """Append in one loop pass: by producers, with one duplicate and one gap, and without a
    producer."""
    producers = [Producer("p", 0, sequence) for sequence in range(count)]
    asked = [node.append(A, b"%d," % producer.sequence, producer) for producer in producers]
    asked += [
        node.append(A, b"0,", producers[0]),
        node.append(A, b"9,", Producer("p", 0, count + 5)),
        node.append(A, b"n,"),
    ]
    replies = await asyncio.gather(*asked)
    assert [reply.code for reply in replies] == [Code.OK] * count + [
        Code.DUPLICATE,
        Code.PRODUCER_GAP,
        Code.OK,
    ]
    assert [reply.record for reply in replies[:count]] == list(range(1, count + 1))


def test_each_append_of_a_bundle_is_judged_answered_and_found_again() -> None:
    run_simulated(_story())


async def _story() -> None:
    world = World(seed=1)
    await world.start()
    group = world.group_of(A)
    await world.wait(
        lambda: all(
            node.core.core_replicas.groups[group].machine.counters.level >= 2
            for node in world.alive()
        )
    )
    leader = world.leader(group)
    assert leader is not None
    await leader.create(A)
    before = leader.core.core_replicas.groups[group].applied_index
    await _at_once(leader, 40)
    assert leader.core.core_replicas.groups[group].applied_index - before < 10, (
        "40 appends are a few entries"
    )
    await world.wait_equal()
    expected = b"".join(b"%d," % sequence for sequence in range(40)) + b"n,"
    for node in world.alive():
        await node.snapshot()
    # the hot payload is read back from the positions that the snapshots name
    for node in list(world.nodes.values()):
        node.kill(power=1.0)
        node.start()
    await world.wait_leaders()
    assert await world.nodes[2].read(A) == expected
    lost = world.nodes[3]
    lost.kill()
    lost.lose_disk()
    lost.start()
    await world.wait_equal()
    assert await lost.read(A) == expected
    await world.stop()


def test_kafka_batches_fill_larger_entries() -> None:
    def produce(size: int) -> Proposal:
        return proposal(Produce(A, 1, kafka_batch(3, b"k" * size)))

    size = PRODUCE_BUNDLE_BYTES // 3
    queue: list[Entry] = [
        proposal(append_of(1)),
        produce(size),
        produce(size),
        produce(size),
        proposal(append_of(2)),
        produce(4),
    ]
    entries = bundled(queue)
    assert [len(parts_of(entry)) for entry in entries] == [3, 1, 2], (
        "an append joins no large entry"
    )
    assert [part for entry in entries for part in parts_of(entry)] == queue, "in their order"
    assert isinstance(decode_command(entries[0].payload), Bundle)


def test_a_produce_waits_for_the_level_also_inside_of_a_bundle() -> None:
    async def story() -> None:
        world = World()
        world.release = 2
        await world.start()
        leader = world.leader(world.group_of(A))
        assert leader is not None
        await leader.create(A)
        produce = Produce(A, 1, kafka_batch(3))
        for command in (
            produce,
            Bundle([append_of(0), produce]),
            Append(A, 1, "", kafka_batch(3)),
            Create("test/k", 1, "", Encoding.KAFKA),
        ):
            with pytest.raises(Unavailable, match="Finish the upgrade"):
                await leader.core.call(world.group_of(A), command)
        assert (await leader.append(A, b"x")).record == 1
        await world.stop()

    run_simulated(story())
