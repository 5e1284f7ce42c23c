"""Stories of links between nodes: two nodes in one loop over real TCP, a proxy between them that
cuts, stops and delays, and strangers."""

from __future__ import annotations

import asyncio
import math
import socket
from functools import partial

import pytest
from msgspec import structs
from polling import wait_for
from worlds.two_nodes import (
    ECHO,
    HOLD,
    Node,
    answer_of,
    each_loop,  # noqa: F401 a fixture
    impatient,  # noqa: F401 a fixture
    one_way,
    two_nodes,
)

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.transport import Reply, address, backoff, keepalive, lane
from polynya.transport.dialing import Dialer
from polynya.transport.handshake import (
    LANE_ASK,
    LANE_RAFT,
    MAGIC,
    PREAMBLE,
    Hello,
    encode_hello,
    judge,
)
from polynya.transport.lane import messages_of
from polynya.transport.link import FRAME_BYTES_MAX, HEADER, FrameLink, FrameType
from polynya.transport.link_events import LinkEvents

run = asyncio.run


pytestmark = pytest.mark.usefixtures("each_loop", "impatient")


def test_every_core_reaches_every_core_by_the_one_port(tmp_path):
    async def story():
        async with two_nodes(tmp_path, cores=3) as (one, two, _):
            for core in range(3):
                for asking in one.transports:
                    assert await asking.call(address(2, core), ECHO, b"hi") == b"1.%d: hi" % core
            assert await two.transports[2].call(address(1, 1), ECHO, b"ho") == b"2.1: ho"
            assert await one.transports[0].call(1, ECHO, b"own") == b"0.1: own"

    run(story())


def test_messages_of_groups_reach_the_same_core_a_frame_for_each_turn(tmp_path):
    async def story():
        async with two_nodes(tmp_path, cores=2) as (one, two, _):
            for core in range(2):
                one.transports[core].raft.send(2, [b"m%d" % core, b"", b"n"])
                one.transports[core].raft.send(2, [b"more"])
            await wait_for(lambda: len(two.heard) == 4)
            assert sorted(two.heard) == [
                (core, 1, part)
                for core in range(2)
                for part in ([b"m%d" % core, b"", b"n"], [b"more"])
            ]

    run(story())


def test_nodes_with_other_numbers_of_cores_send_each_group_to_the_core_that_has_it(tmp_path):
    async def story():
        one, two = Node(tmp_path, 1, cores=2), Node(tmp_path, 2, cores=3)
        await two.start({1: one.port}, groups=12)
        await one.start({2: two.port}, groups=12)
        for node in (one, two):
            for made in node.transports:
                made.raft.receiver.group_of = lambda message: message[0]

        def joined(*nodes: Node) -> bool:
            lanes = [
                lane
                for node in nodes
                for made in node.transports
                for other in made.raft._nodes.values()
                for lane in other.lanes.values()
            ]
            return (
                all(lane.connected for lane in lanes)
                and len(lanes) == len(nodes) * one.cores * two.cores
            )

        await wait_for(lambda: joined(one, two))
        assert one.raft.cores_of(2) == 3 and two.raft.cores_of(1) == 2 and one.raft.there == 1

        async def exchange() -> None:
            for sender, receiver in ((one, two), (two, one)):
                receiver.heard.clear()
                for core, made in enumerate(sender.transports):
                    groups = [bytes([group]) for group in range(core, 13, sender.cores)]
                    made.raft.send(receiver.number, groups)
                    made.raft.send_bulk(receiver.number, groups)
                heard = receiver.heard
                await wait_for(lambda: sum(len(each[2]) for each in heard) == 26)  # noqa: B023
                assert all(
                    message[0] % receiver.cores == core
                    for core, _, messages in receiver.heard
                    for message in messages
                )

        await exchange()
        assert await one.transports[1].call(address(2, 2), ECHO, b"hi") == b"1.2: hi"
        await two.stop()
        await wait_for(lambda: one.raft.there == 0)
        two.cores = 1  # another life, of fewer
        await two.start({1: one.port}, groups=12, life="second")
        for made in two.transports:
            made.raft.receiver.group_of = lambda message: message[0]
        await wait_for(lambda: joined(one, two))
        assert all(made.raft.cores_of(2) == 1 for made in one.transports)
        await exchange()
        assert not [
            core_id
            for made in one.transports
            for core_id in made._peers.by_core
            if core_id >> 8 == 2 and core_id & 0xFF
        ]
        await one.stop()
        await two.stop()
        one.held.close()
        two.held.close()

    run(story())


def test_bulk_goes_another_way_and_arrives_too(tmp_path):
    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            one.raft.send_bulk(2, [bytes(3 << 20), b"and"])
            one.raft.send(2, [b"beat"])
            await wait_for(lambda: len(two.heard) == 2)
            assert sorted(two.heard) == [(0, 1, [bytes(3 << 20), b"and"]), (0, 1, [b"beat"])]

    run(story())


def test_faults_travel_between_nodes_as_what_they_are(tmp_path):
    def refuse(body: bytes, reply: Reply, sender: int) -> None:
        raise NotLeader(3)

    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            two.transports[0].on(HOLD, refuse)
            with pytest.raises(NotLeader) as refused:
                await one.transports[0].call(address(2, 0), HOLD, b"")
            assert refused.value.node == 3

    run(story())


def test_a_cut_is_told_and_mended(tmp_path):
    async def story():
        async with two_nodes(tmp_path, proxied=True) as (one, two, proxy):
            held: list[Reply] = []
            two.transports[0].on(HOLD, lambda body, reply, sender: held.append(reply))
            call = asyncio.create_task(one.transports[0].call(address(2, 0), HOLD, b""))
            await wait_for(lambda: held)
            proxy.cut()
            with pytest.raises(OutcomeUnknown):
                await call
            await wait_for(lambda: one.seen == ["found 2", "lost 2", "found 2"])
            assert await answer_of(one, b"again") == b"1.0: again"
            one.raft.send(2, [b"again"])
            await wait_for(lambda: two.heard)

    run(story())


def test_a_node_that_falls_silent_is_lost_though_no_connection_broke(tmp_path, monkeypatch):
    async def story():
        async with two_nodes(tmp_path, proxied=True) as (one, _two, proxy):
            await one.transports[0].call(address(2, 0), ECHO, b"")
            # not before: a machine that stands still for so long is usual
            monkeypatch.setattr(keepalive, "SILENCE_SECONDS", 0.3)
            proxy.allow(0)
            call = asyncio.create_task(one.transports[0].call(address(2, 0), ECHO, b""))
            await wait_for(lambda: one.seen[-1] == "lost 2")
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await call
            proxy.allow(math.inf)
            monkeypatch.setattr(keepalive, "SILENCE_SECONDS", 60.0)
            await wait_for(lambda: one.seen[-1] == "found 2")

    run(story())


def test_while_something_large_moves_both_ends_are_told_and_when_it_stops_the_node_is_lost(
    tmp_path, monkeypatch
):
    async def story():
        async with two_nodes(tmp_path, proxied=True) as (one, two, proxy):
            taking, sending = [], []
            one.raft.receiver.taking = lambda node, shared: taking.append((node, shared(1)))
            two.raft.receiver.sending = lambda node, shared: sending.append((node, shared(1)))
            one.raft.send(2, [b"small"])
            await wait_for(lambda: two.heard)
            assert taking == sending == []

            def slowly(condition):
                def look():
                    proxy.allow(1 << 16)
                    return condition()

                return wait_for(look, pause=0.005)

            proxy.allow(0)
            one.raft.send(2, [bytes(4 << 20)])
            await slowly(lambda: len(taking) >= 5 and len(sending) >= 5)
            assert len(two.heard) == 1 and one.seen == ["found 2"]
            assert set(taking) == {(2, True)} and set(sending) == {(1, True)}
            await slowly(lambda: len(two.heard) == 2)
            one.raft.send(2, [bytes(4 << 20)])
            known = len(taking)
            await slowly(lambda: len(taking) >= known + 5)
            proxy.allow(0)
            monkeypatch.setattr(keepalive, "SILENCE_SECONDS", 0.3)
            await wait_for(lambda: one.seen[-1] == "lost 2")
            assert len(two.heard) == 2
            monkeypatch.setattr(keepalive, "SILENCE_SECONDS", 60.0)
            proxy.allow(math.inf)

    run(story())


def test_a_new_life_of_a_node_is_lost_and_found(tmp_path):
    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            await two.stop()
            await wait_for(lambda: one.seen == ["found 2", "lost 2"])
            one.raft.send(2, [b"to nobody"])
            await two.start({1: one.port}, life="second")
            await wait_for(lambda: one.seen == ["found 2", "lost 2", "found 2"])
            assert await answer_of(one, b"new") == b"1.0: new"
            assert two.heard == []

    run(story())


def test_a_node_that_comes_is_tried_at_once_by_those_who_would_wait(tmp_path, monkeypatch):
    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            await one.transports[0].call(address(2, 0), ECHO, b"")
            monkeypatch.setattr(backoff, "SECONDS_MAX", 60.0)
            for waiting in (
                one.raft._nodes[2].lanes[0],
                one.transports[0]._peers.by_core[address(2, 0)],
            ):
                waiting._backoff._pause = 60.0
            await two.stop()
            await wait_for(lambda: one.seen[-1] == "lost 2")
            await two.start({1: one.port}, life="second")
            await wait_for(
                lambda: one.seen[-1] == "found 2" and one.transports[0].counters()["connected"]
            )

    run(story())


def test_a_new_life_is_believed_before_the_connection_to_the_old_one_breaks(tmp_path):
    async def story():
        async with two_nodes(tmp_path, proxied=True) as (one, _two, _proxy):
            one.raft.greeted(Hello(1, 1, "c", 1, 4, 2, 0, 1, "second"))
            assert one.seen == ["found 2"]
            await wait_for(lambda: one.seen == ["found 2", "lost 2", "found 2"])

    run(story())


def test_a_peer_that_takes_nothing_costs_a_bounded_queue_and_nobody_else_anything(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(lane, "QUEUE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(lane, "SOCKET_BYTES_MAX", 1 << 16)

    async def story():
        async with two_nodes(tmp_path, proxied=True) as (one, two, proxy):
            sent = one.raft._nodes[2].lanes[0]
            proxy.allow(0)
            for number in range(400):
                one.raft.send(2, [b"%06d" % number + bytes(1 << 16)])
                await asyncio.sleep(0)
            assert one.raft.dropped > 0 and sent._queued_bytes <= 1 << 20
            proxy.allow(math.inf)
            # the newest are kept
            await wait_for(lambda: two.heard and two.heard[-1][2][-1][:6] == b"000399")
            numbers = [int(message[:6]) for _, _, messages in two.heard for message in messages]
            assert numbers == sorted(numbers) and len(numbers) + one.raft.dropped == 400

    run(story())


def test_what_one_turn_says_may_be_more_than_a_frame_has(tmp_path):
    """Several of the largest appends, or a member that gets up in many groups at once: as one frame
    it would be taken for nonsense."""

    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            messages = [bytes([number]) * (FRAME_BYTES_MAX // 3) for number in range(4)]
            one.raft.send(2, messages)
            one.raft.send(2, [b"beat"])
            await wait_for(
                lambda: sum(len(some) for _, _, some in two.heard) == 5 or "lost 2" in one.seen
            )
            assert one.seen == ["found 2"] and one.raft.dropped == 0
            assert [message for _, _, some in two.heard for message in some] == [*messages, b"beat"]

    run(story())


# --- strangers ------------------------------------------------------------------------------------


OWN = Hello(4, 4, "c", 1, 4, 1, 0, 1, "s", "9.9")


@pytest.mark.parametrize(
    ("other", "names", "reason"),
    [
        (Hello(4, 4, "c", 1, 4, 2, 0, 1, "t"), None, ""),
        (Hello(4, 4, "c", 1, 4, 2, 0, 1, "t"), ("node-2.polynya.internal",), ""),
        (
            Hello(6, 7, "c", 1, 4, 2, 0, 1, "t", "11.0"),
            None,
            "it speaks protocol 6 to 7, this node 4 (release 11.0 and 9.9); upgrade one release "
            "at a time",
        ),
        (
            Hello(1, 3, "c", 1, 4, 2, 0, 1, "t", "0.1.0"),
            None,
            "it speaks protocol 1 to 3, this node 4 (release 0.1.0 and 9.9); the older one keeps "
            "its data in format 1: start the new release on "
            "empty data directories, and copy the streams with 'polynya import'",
        ),
        (Hello(4, 4, "d", 1, 4, 2, 0, 1, "t"), None, "it belongs to the cluster d"),
        (
            Hello(4, 4, "c", 2, 4, 2, 0, 1, "t"),
            None,
            "it holds history 2 of the cluster, this node 1",
        ),
        (Hello(4, 4, "c", 1, 4, 2, 5, 7, "t"), None, ""),
        (Hello(4, 4, "c", 1, 4, 3, 0, 1, "t"), None, "it is node 3, but node 2 was expected"),
        (Hello(4, 4, "c", 1, 8, 2, 0, 1, "t"), None, "it has 8 groups, this node 4"),
        (Hello(4, 4, "c", 1, 4, 2, 1, 1, "t"), None, "it claims to be core 1 of 1"),
        (
            Hello(4, 4, "c", 1, 4, 2, 0, 1, "t"),
            ("node-3.polynya.internal",),
            "its certificate is for node-3.polynya.internal, not for node-2",
        ),
        (Hello(4, 4, "c", 1, 4, 2, 0, 1, "t"), (), "its certificate is for no DNS name"),
    ],
)
def test_who_may_come_in(other, names, reason):
    found = judge(OWN, other, expected=2, certified=names)
    assert found.startswith(reason) if reason else found == ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "another"}, "it belongs to the cluster"),
        ({"groups": 9}, "it has 9 groups"),
    ],
)
def test_a_stranger_is_refused_with_the_reason_in_both_logs_and_harms_nobody(
    tmp_path, caplog, settings, said
):
    async def story():
        async with two_nodes(tmp_path) as (one, _two, _):
            pending = Node(tmp_path, 3)
            await pending.start({1: one.port}, **settings)
            await wait_for(
                lambda: any(
                    record.getMessage() == "a node was refused" for record in caplog.records
                )
            )
            await wait_for(
                lambda: any(
                    record.getMessage() == "a node cannot be reached" for record in caplog.records
                )
            )
            assert pending.seen == []
            assert await one.transports[0].call(address(2, 0), ECHO, b"well") == b"1.0: well"
            await pending.stop()
            pending.held.close()
        reasons = {
            record.getMessage(): record.reason
            for record in caplog.records
            if hasattr(record, "reason")
        }
        assert reasons["a node was refused"].startswith(said)
        assert reasons["a node cannot be reached"].startswith("it refuses this node: " + said)

    run(story())


def test_a_node_that_is_not_listed_and_one_that_has_our_id_are_refused(tmp_path, caplog):
    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            unlisted, twin = Node(tmp_path, 9), Node(tmp_path / "twin", 1)
            await unlisted.start({1: one.port})
            await twin.start({2: two.port, 1: one.port})
            refused = lambda: {  # noqa: E731
                record.reason
                for record in caplog.records
                if record.getMessage() == "a node was refused"
            }
            await wait_for(
                lambda: any(
                    "node 9 is not a known member of the cluster" in reason for reason in refused()
                )
            )
            await wait_for(
                lambda: any("every node needs its own id" in reason for reason in refused())
            )
            for node in (unlisted, twin):
                await node.stop()
                node.held.close()

    (tmp_path / "twin").mkdir()
    run(story())


def test_somebody_else_with_the_id_of_a_node_that_is_there_is_refused_and_named_until_that_one_is_gone(
    tmp_path,
):
    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            (first,) = one.transports
            twin = Node(tmp_path / "twin", 2)
            await twin.start({1: one.port}, life="another")
            await wait_for(lambda: "every node needs its own id" in twin.links.refusals.get(1, ""))
            assert (
                one.links.twins == {2: "127.0.0.1"}
                and one.seen == ["found 2"]
                and not twin.raft.is_up(1)
            )
            assert await first.call(address(2, 0), ECHO, b"well") == b"1.0: well", (
                "who was there goes on"
            )
            await two.stop()
            await wait_for(lambda: twin.raft.is_up(1))
            await twin.stop()
            twin.held.close()

    (tmp_path / "twin").mkdir()
    run(story())


def test_a_node_that_is_added_is_met_and_one_that_is_removed_is_not_heard_any_more(
    tmp_path, caplog
):
    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            three = Node(tmp_path, 3)
            await three.start({1: one.port, 2: two.port})
            (first,) = one.transports
            assert not first.raft.is_up(3)
            with pytest.raises(Unavailable, match="node 3 does not belong"):
                await first.call(address(3, 0), ECHO, b"x")
            assert not first.send(address(3, 0), ECHO, b"x")
            one.links.add_node(3, ("127.0.0.1", three.port))
            one.links.add_node(3, ("127.0.0.1", three.port))
            await wait_for(lambda: first.raft.is_up(3) and three.raft.is_up(1))
            assert await first.call(address(3, 0), ECHO, b"x") == b"1.0: x"
            first.raft.send(3, [b"m"])
            await wait_for(lambda: (0, 1, [b"m"]) in three.heard)
            assert one.links.nodes == [2, 3]
            one.links.dismiss_node(3, 5)
            assert first.raft.is_up(3)
            await one.links.remove_node(3)
            assert not first.raft.is_up(3) and one.links.nodes == [2] and "lost 3" in one.seen
            first.raft.send(3, [b"n"])  # is dropped
            with pytest.raises(Unavailable):
                await first.call(address(3, 0), ECHO, b"x")
            await three.stop()
            again = Node(tmp_path / "again", 3)
            await again.start({1: one.port})
            await wait_for(
                lambda: any(
                    "node 3 was removed from the cluster" in str(getattr(each, "reason", ""))
                    for each in caplog.records
                )
            )
            await again.stop()
            again.held.close()
            three.held.close()

    (tmp_path / "again").mkdir()
    run(story())


def test_a_removed_node_is_told_by_which_map_and_believes_no_other_cluster_s_nodes(
    tmp_path, caplog
):
    """Tell a node that was removed while down, through the peer that rejects it. A leaving node,
    or one of another history, ignores that."""

    async def story():
        one, two = Node(tmp_path, 1), Node(tmp_path, 2)
        removals = []
        await one.start({2: two.port, 3: 1})
        one.links.dismiss_node(2)  # its address is another's by now, and it is not removed yet
        await two.start({1: one.port})
        two.links.on_removed = removals.append
        await wait_for(
            lambda: any(
                "is being removed from the cluster" in str(getattr(each, "reason", ""))
                for each in caplog.records
            )
        )
        assert removals == []
        one.links.dismiss_node(2, 7)
        one.links.dismiss_node(2, 9)  # later maps have it so, too
        await wait_for(lambda: removals)
        assert {(each.node, each.cluster, each.history, each.removed) for each in removals} == {
            (1, "c", 1, 7)
        }
        await two.stop()
        pending = Node(tmp_path / "again", 2)
        await pending.start({1: one.port}, name="another")
        heard = []
        pending.links.on_removed = heard.append
        await wait_for(
            lambda: any(
                "belongs to the cluster another" in str(getattr(each, "reason", ""))
                for each in caplog.records
            )
        )
        await wait_for(
            lambda: any(
                str(getattr(each, "reason", "")).startswith("it refuses this node: it belongs")
                for each in caplog.records
            )
        )
        assert heard == []
        await one.links.remove_node(2)  # the reason is kept
        assert one.links._port._dismissed == {2: 7}
        for node in (one, pending):
            await node.stop()
        for node in (one, two, pending):
            node.held.close()

    (tmp_path / "again").mkdir()
    run(story())


def test_a_removed_node_that_comes_by_a_one_way_road_is_put_out(tmp_path):
    """Tell a removed node over its own connection: the others cannot connect to it, and so never
    missed it."""

    async def story():
        async with one_way(tmp_path) as (one, two):
            removals = []
            two.links.on_removed = removals.append
            await wait_for(lambda: two.raft.is_up(1))
            one.links.dismiss_node(2, 5)
            await one.links.remove_node(2)
            await wait_for(lambda: removals and not two.raft.is_up(1))
            assert removals[0].removed == 5

    run(story())


def test_a_word_of_removal_is_not_heard_from_whoever_is_not_who_was_called(tmp_path):
    """Ignore a report of removal from a node of another history, or another number, at the address
    of node 2."""

    async def story():
        for wrong in ({"history": 2}, {"node": 4}):
            liar = await asyncio.start_server(partial(_refuse_as_removed, wrong), "127.0.0.1", 0)
            own = Hello(4, 4, "c", 1, 4, 3, 0, 1, "life")
            removals: list[Hello] = []
            events = LinkEvents()
            events.removed = removals.append
            dialer = Dialer(own, 2, liar.sockets[0].getsockname()[:2], None, events)
            with pytest.raises(OSError, match="it refuses this node"):
                await dialer.connect(0, LANE_ASK)
            assert removals == []
            liar.close()

    run(story())


async def _refuse_as_removed(wrong, reader, writer):
    await reader.readexactly(PREAMBLE.size)
    hello = Hello(4, 4, "c", 1, 4, 2, 0, 1, "life", removed=99)
    own = encode_hello(structs.replace(hello, **wrong))
    ends = FrameLink(lambda: None, lambda *frame: None, lambda: None, checked=True)
    ends.connection_made(writer.transport)
    ends.send(FrameType.REFUSED, len(own), 0, own + b"node 3 was removed from the cluster")
    ends.flush()  # from Python 3.12 on the writer closes the connection when it goes


def test_a_node_is_found_where_it_was_said_to_be_later(tmp_path):
    async def story():
        async with one_way(tmp_path) as (one, two):
            await wait_for(lambda: two.raft.is_up(1))
            assert not one.raft.is_up(2)
            one.links.add_node(2, ("127.0.0.1", two.port))
            await wait_for(lambda: one.raft.is_up(2))

    run(story())


def _raw(port: int, data: bytes) -> bytes:
    """Return the bytes that a raw client gets until the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(data)
        got = b""
        try:
            while piece := client.recv(65536):
                got += piece
        except ConnectionResetError:
            pass
        return got


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREAMBLE.pack(MAGIC, 0, 7),
        PREAMBLE.pack(MAGIC, 0, LANE_RAFT) + b"\0" * 64,
        PREAMBLE.pack(MAGIC, 0, LANE_ASK) + HEADER.pack(0, FrameType.CALL, ECHO, 1, 0),
    ],
)
def test_noise_at_the_peer_port_is_dropped(tmp_path, data):
    async def story():
        async with two_nodes(tmp_path) as (one, two, _):
            assert await asyncio.to_thread(_raw, two.port, data) == b""
            assert await one.transports[0].call(address(2, 0), ECHO, b"well") == b"1.0: well"

    run(story())


def test_a_frame_that_was_damaged_on_its_way_is_not_taken(tmp_path):
    async def story():
        got: list[bytes] = []
        lost: list[bool] = []
        sending = FrameLink(lambda: None, lambda *frame: None, lambda: None, checked=True)
        sending.up = True
        sending.send(FrameType.SEND, 1, 1, b"payload")
        wire = b"".join(sending._out)
        for position in range(len(wire)):
            receiving = FrameLink(
                lambda: None,
                lambda t, k, i, body: got.append(body),
                lambda: lost.append(True),
                checked=True,
            )
            receiving.up = True
            receiving.data_received(
                wire[:position] + bytes([wire[position] ^ 0x10]) + wire[position + 1 :]
            )
            assert not got
        receiving = FrameLink(
            lambda: None, lambda t, k, i, body: got.append(body), lambda: None, checked=True
        )
        receiving.up = True
        receiving.data_received(wire)
        assert got == [b"payload"]

    run(story())


def test_a_frame_of_messages_is_whole_or_refused():
    whole = b"\x02\0\0\0ab\x00\0\0\0\x01\0\0\0c"
    assert messages_of(whole) == [b"ab", b"", b"c"]
    for cut in (1, 5, 8, len(whole) - 1):
        with pytest.raises(ValueError, match="is truncated"):
            messages_of(whole[:cut])
