"""Detection of a cluster's problems and their descriptions for people."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.cluster.status import (
    LAG_ENTRIES,
    ClusterView,
    CoreStatus,
    MemberReport,
    Replica,
    clock_notes,
    described,
    disk_notes,
    problems,
    reader_notes,
    store_notes,
    trust_notes,
)
from polynya.replica import zones
from polynya.replica.memory import waits
from polynya.stream.features.placement.cluster_map import ClusterMap, born
from polynya.stream.features.placement.commands import NodeRecord, NodeState, Placement


def a_map(groups: int) -> ClusterMap:
    command = born(
        [NodeRecord(node, f"h:{node}", f"http://h:{node}") for node in (1, 2, 3)], groups, 3
    )
    return ClusterMap(
        1, 3, {node.id: node for node in command.nodes}, dict(enumerate(command.placements))
    )


def replica(
    group: int, role: str, *, term: int = 1, leader: int = 0, applied: int = 10, commit: int = 10
) -> Replica:
    return Replica(group, role, term, leader, commit, applied, applied)


def core_status(*replicas: Replica) -> CoreStatus:
    return CoreStatus("9.9", list(replicas))


def links_to(nodes: list[int], raft: SimpleNamespace) -> SimpleNamespace:
    """Return the links of a transport that rejects no peer."""
    return SimpleNamespace(nodes=nodes, raft=raft, refusals={}, twins={})


def test_a_cluster_that_is_well_has_no_problems():
    said = {
        (node, 0): core_status(
            *(replica(group, "leader" if group + 1 == node else "follower") for group in range(3))
        )
        for node in (1, 2, 3)
    }
    nodes, groups = described(a_map(2), 2, said)
    assert [group["leader"] for group in groups] == [1, 2, 3]
    assert nodes[2] == {
        "id": 2,
        "http": "http://h:2",
        "peer": "h:2",
        "zone": "",
        "role": "voter",
        "state": "active",
        "up": True,
        "release": "9.9",
        "level": 1,
        "cores": 1,
        "leader_of": 1,
        "replicas": 3,
        "forgotten": {},
        "lost": [],
        "votes": 3,
        "behind_entries": 0,
        "behind_seconds": 0.0,
        "store": "",
        "unheard_by": [],
        "disk": "",
        "condition": "active",
    }
    assert list(problems(a_map(len(groups) - 1), nodes, groups)) == []
    assert list(store_notes(nodes)) == []


def test_who_cannot_use_the_object_store_is_named_and_is_no_problem():
    why = "nothing could be written to it for 40 s: 403 Forbidden"
    said = {
        (node, 0): core_status(replica(0, "leader" if node == 1 else "follower"))
        for node in (1, 2, 3)
    }
    said[2, 1] = msgspec.structs.replace(core_status(), store=why)
    nodes, groups = described(a_map(0), 0, said)
    assert list(problems(a_map(0), nodes, groups)) == []
    assert list(store_notes(nodes)) == [f"node 2 and the object store: {why}"]


def test_whose_disk_is_nearly_full_is_named():
    said = {
        (node, 0): core_status(replica(0, "leader" if node == 1 else "follower"))
        for node in (1, 2, 3)
    }
    said[3, 0] = msgspec.structs.replace(said[3, 0], disk="9 MiB are free in /d: make room")
    nodes, _ = described(a_map(0), 0, said)
    assert list(disk_notes(nodes)) == ["node 3: 9 MiB are free in /d: make room"]


def test_why_nodes_that_run_do_not_let_each_other_in_is_told():
    why = "its certificate is not accepted: certificate has expired"
    said = {
        (node, core): core_status(replica(0, "leader" if node == 1 else "follower"))
        for node in (1, 3)
        for core in (0, 1)
    }
    said = {where: msgspec.structs.replace(part, refusals={2: why}) for where, part in said.items()}
    said[3, 0] = msgspec.structs.replace(
        said[3, 0], certificate="cluster.cert: expires on 2026-11-30"
    )
    nodes, _ = described(a_map(0), 0, said)
    assert list(trust_notes(nodes, said)) == [
        "node 3: cluster.cert: expires on 2026-11-30",
        f"node 1 and node 2: {why}",
        f"node 3 and node 2: {why}",
    ]
    said[2, 0] = core_status(replica(0, "follower"))
    nodes, _ = described(a_map(0), 0, said)
    assert list(trust_notes(nodes, said)) == ["node 3: cluster.cert: expires on 2026-11-30"], (
        "it is there: that was an attempt"
    )


def test_an_id_that_is_used_twice_is_told_once():
    said = {
        (node, core): core_status(replica(0, "leader" if node == 1 else "follower"))
        for node in (1, 2, 3)
        for core in (0, 1)
    }
    said = {
        where: msgspec.structs.replace(part, twins={2: "10.0.0.9"} if where[0] != 2 else {})
        for where, part in said.items()
    }
    nodes, _ = described(a_map(0), 0, said)
    (note,) = trust_notes(nodes, said)
    assert note.startswith(
        "a second process at 10.0.0.9 uses the id of node 2, and node 1 rejects it: node ids must "
        "be unique"
    )


def test_a_node_that_is_replaced_waits_for_its_heir():
    """Wait for the replacement node, not for room on the others."""
    now = put(a_map(1), 2, NodeState.LEAVING)
    now = msgspec.structs.replace(
        now, nodes={**now.nodes, 4: NodeRecord(4, "h:9", "http://h:9", replaces=2)}
    )
    said = {
        (node, 0): core_status(
            *(replica(group, "leader" if node == 1 else "follower") for group in (0, 1))
        )
        for node in (1, 3)
    }
    nodes, groups = described(now, 1, said)
    found = list(problems(now, nodes, groups))
    assert "node 2 waits for its replacement: start node 4 on an empty disk" in found
    assert not any("no other node has room" in problem for problem in found)


def put(now: ClusterMap, number: int, state: int) -> ClusterMap:
    return msgspec.structs.replace(
        now, nodes={**now.nodes, number: msgspec.structs.replace(now.nodes[number], state=state)}
    )


def test_a_node_that_leads_nothing_any_more_is_said_to_be_drained():
    now = put(a_map(1), 1, NodeState.DRAINING)
    said = {
        (node, 0): core_status(
            *(replica(group, "leader" if group + 1 == node else "follower") for group in range(2))
        )
        for node in (1, 2, 3)
    }

    def condition() -> str:
        nodes, _ = described(now, 1, said)
        assert nodes[1]["state"] == NodeState.NAMES[now.nodes[1].state], (
            "what was asked for stays as it is"
        )
        return str(nodes[1]["condition"])

    assert condition() == "draining"
    said[1, 0], said[3, 0] = (
        core_status(replica(0, "follower"), replica(1, "follower")),
        core_status(replica(0, "leader"), replica(1, "follower")),
    )
    assert condition() == "drained"
    del said[1, 0]
    assert condition() == "drained", "it may be away now"
    said[3, 0] = core_status(replica(0, "follower"), replica(1, "follower"))
    assert condition() == "draining", "it does not answer, and group 0 has no other leader"


def test_a_node_that_holds_nothing_any_more_is_said_to_be_emptied():
    now = put(a_map(1), 1, NodeState.EMPTYING)
    said = {
        (node, 0): core_status(
            *(replica(group, "leader" if node == 2 else "follower") for group in range(2))
        )
        for node in (1, 2, 3)
    }
    assert described(now, 1, said)[0][1]["condition"] == "emptying"
    left = Placement((2, 3), (2, 3), 2)
    half = msgspec.structs.replace(now, groups={**now.groups, 1: left})
    assert described(half, 1, said)[0][1]["condition"] == "emptying", "it votes in group 0 yet"
    whole = msgspec.structs.replace(half, groups={0: left, 1: left})
    assert described(whole, 1, said)[0][1]["condition"] == "emptied", (
        "it follows group 0, as every node does"
    )


def test_what_is_wrong_is_named():
    said = {
        (1, 0): core_status(
            replica(0, "leader", commit=LAG_ENTRIES + 11, applied=LAG_ENTRIES + 11),
            replica(1, "candidate"),
        ),
        (3, 0): core_status(replica(0, "follower"), replica(1, "follower")),
    }
    nodes, groups = described(a_map(1), 1, said)
    assert groups[0]["behind"] == {"1": 0, "3": LAG_ENTRIES + 1}
    assert list(problems(a_map(len(groups) - 1), nodes, groups)) == [
        "node 2 does not answer",
        "no leader: group 1",
        f"node 3 is more than {LAG_ENTRIES} entries behind: group 0",
        "under-replicated, as node 2 is down: groups 0, 1",
    ]


def test_what_a_read_replica_lacks_is_told_and_is_no_problem():
    now = a_map(1)
    far = NodeRecord(4, "h:4", "http://h:4", "far", reader=True)
    now = msgspec.structs.replace(now, nodes={**now.nodes, 4: far})
    said = {
        (node, 0): core_status(
            *(replica(group, "leader" if group + 1 == node else "follower") for group in range(2))
        )
        for node in (1, 2, 3)
    }
    nodes, groups = described(now, 1, said)
    assert (nodes[4]["role"], nodes[4]["up"], groups[1]["readers"], groups[0]["readers"]) == (
        "reader",
        False,
        [4],
        [4],
    )
    assert list(problems(now, nodes, groups)) == [] and list(reader_notes(now, nodes, 1)) == [
        "read replica 4 does not answer"
    ]
    said[4, 0] = core_status(replica(0, "follower"))
    nodes, groups = described(now, 1, said)
    assert list(reader_notes(now, nodes, 1)) == ["read replica 4 has 1 of 2 groups so far"]
    said[4, 0] = core_status(replica(0, "follower"), replica(1, "follower", applied=0))
    said[2, 0] = msgspec.structs.replace(said[2, 0], lags={4: (LAG_ENTRIES + 1, 12.3456)})
    said[3, 0] = msgspec.structs.replace(said[3, 0], lags={4: (3, 0.5)})
    nodes, groups = described(now, 1, said)
    assert (nodes[4]["behind_entries"], nodes[4]["behind_seconds"]) == (LAG_ENTRIES + 1, 12.346)
    assert list(reader_notes(now, nodes, 1)) == [
        f"read replica 4 is {LAG_ENTRIES + 1} entries behind, and 12 s"
    ]
    assert list(problems(now, nodes, groups)) == []


def test_of_two_that_think_they_lead_the_later_term_counts():
    said = {
        (1, 0): core_status(replica(0, "leader", term=4)),
        (2, 0): core_status(replica(0, "leader", term=5)),
        (3, 0): core_status(replica(0, "follower", term=5)),
    }
    _, groups = described(a_map(0), 0, said)
    assert (groups[0]["leader"], groups[0]["term"]) == (2, 5)


def test_many_groups_are_not_all_named():
    said = {
        (node, 0): core_status(*(replica(group, "follower") for group in range(20)))
        for node in (1, 2, 3)
    }
    nodes, groups = described(a_map(19), 19, said)
    assert list(problems(a_map(len(groups) - 1), nodes, groups)) == [
        "no leader: groups 0, 1, 2, 3, 4, 5, 6, 7 …"
    ]


def test_a_node_that_is_there_is_asked_again_and_one_that_is_away_is_not():
    asked: list[int] = []

    async def call(core_address: int, kind: int, body: bytes) -> bytes:
        asked.append(core_address >> 8)
        if core_address >> 8 == 3 or len(asked) < 4:
            raise (Unavailable, OutcomeUnknown)[len(asked) % 2]("the connection is on its way")
        return msgspec.msgpack.encode(CoreStatus("9.9", []))

    there = SimpleNamespace(
        is_up=lambda node: node == 2 or asked.count(node) < 2, cores_of=lambda node: 1
    )
    transport: Any = SimpleNamespace(
        others=[], node_links=links_to([2, 3], there), raft=there, call=call, on=lambda *what: None
    )
    start: Any = SimpleNamespace(identity=SimpleNamespace(node=1), core=0)
    statuses = asyncio.run(ClusterView(start, transport, MemberReport(), None).gather())
    assert sorted(statuses) == [(1, 0), (2, 0)] and asked.count(2) >= 2 and asked.count(3) == 2


def test_a_node_that_some_do_not_hear_is_a_problem_though_who_is_asked_hears_it():
    said = {
        (node, 0): core_status(
            *(
                replica(group, "leader" if group == 0 and node == 1 else "follower")
                for group in (0,)
            )
        )
        for node in (1, 2, 3)
    }
    now = a_map(0)
    assert not list(problems(now, *described(now, 0, said)))
    said[2, 0] = msgspec.structs.replace(said[2, 0], unheard=[3])
    assert list(problems(now, *described(now, 0, said))) == [
        "node 3 is up, but not connected to node 2: check the network between them"
    ]
    del said[3, 0]
    assert "node 3 does not answer" in list(problems(now, *described(now, 0, said)))
    assert not any(
        "not connected" in problem for problem in problems(now, *described(now, 0, said))
    ), "then that is all"


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        ({1: 0.0, 2: 4.0, 3: -0.9}, []),
        ({1: 0.0, 2: 0.2, 3: 3600.0}, ["the clock of node 3 is 3600 s ahead of the others"]),
        ({1: 0.0, 2: -7200.0, 3: -7200.0}, ["the clock of node 1 is 7200 s ahead of the others"]),
        ({1: 0.0, 2: -60.0}, ["the clocks of nodes 2 and 1 are 60 s apart"]),
        ({1: 0.0, 2: 0.0, 3: 6.0, 4: 6.0}, ["the clocks of nodes 1 and 3 are 6 s apart"]),
    ],
)
def test_a_clock_that_differs_from_the_others_is_noted(
    ahead: dict[int, float], said: list[str]
) -> None:
    statuses = {
        (node, 0): CoreStatus("9.9", [], clock=1e9, ahead=seconds)
        for node, seconds in ahead.items()
    }
    # of a release that does not say what time it is
    statuses[9, 0] = CoreStatus("0.1", [], ahead=0.0)
    assert [note.partition(";")[0] for note in clock_notes(statuses)] == said


def test_a_clock_is_compared_with_the_moments_around_the_answer() -> None:

    async def call(core_address: int, kind: int, body: bytes) -> bytes:
        return msgspec.msgpack.encode(CoreStatus("9.9", [], clock=clock))

    def ahead() -> float:
        there = SimpleNamespace(is_up=lambda node: True, cores_of=lambda node: 1)
        transport: Any = SimpleNamespace(
            others=[], node_links=links_to([2], there), raft=there, call=call, on=lambda *what: None
        )
        view = ClusterView(
            SimpleNamespace(identity=SimpleNamespace(node=1), core=0),
            transport,
            MemberReport(),
            None,
        )  # type: ignore[arg-type]
        times = iter([100.0, 1000.0, 1001.0])  # of its own status, of the question, of the answer
        view.clock = lambda: next(times)
        return asyncio.run(view.gather())[2, 0].ahead

    clock = 1010.5
    assert ahead() == 9.5
    clock = 990.0
    assert ahead() == -10.0
    clock = 1000.5
    assert ahead() == 0.0
    clock = 0.0
    assert ahead() == 0.0


def in_zones(*named: str, voters: tuple[int, ...]) -> ClusterMap:
    nodes = {
        number: NodeRecord(number, f"h:{number}", f"http://h:{number}", zone)
        for number, zone in enumerate(named, 1)
    }
    return ClusterMap(
        1, 3, nodes, {group: Placement(voters, voters, voters[0]) for group in (0, 1)}
    )


def test_two_replicas_in_one_zone_are_a_problem_only_where_another_node_could_have_one():
    now = in_zones("a", "a", "b", "c", voters=(1, 2, 3))
    said = {
        (node, 0): core_status(
            *(replica(group, "leader" if group + 1 == node else "follower") for group in (0, 1))
        )
        for node in (1, 2, 3, 4)
    }
    nodes, groups = described(now, 1, said)
    assert list(problems(now, nodes, groups)) == [
        "more replicas than necessary in one zone, being moved: groups 0, 1"
    ]
    nodes[4]["up"] = False
    assert not any("zone" in problem for problem in problems(now, nodes, groups))
    assert list(zones.notes(now)) == [
        "zone a has most replicas of 2 of 2 groups: they have no majority if the zone fails"
    ]


def test_a_zone_that_is_missing_is_a_note():
    now = in_zones("a", "", "b", "", voters=(1, 2, 3))
    assert list(zones.notes(now)) == [
        "nodes 2, 4: no zone in the settings; replicas are spread over zones once every node has "
        "one"
    ]
    assert list(zones.notes(in_zones("", "", "", voters=(1, 2, 3)))) == []


def test_what_a_node_without_its_data_waits_for_is_a_problem():
    def blank(group: int, *unheard: int) -> Replica:
        return msgspec.structs.replace(replica(group, "follower"), forgotten=list(unheard))

    said = {
        (1, 0): core_status(replica(0, "leader"), replica(1, "follower"), replica(2, "follower"))
    }
    said |= {(node, 0): core_status(blank(0), blank(1, 3), blank(2)) for node in (2,)}
    nodes, groups = described(a_map(2), 2, said)
    found = [
        problem for problem in problems(a_map(2), nodes, groups) if problem.startswith("node 2")
    ]
    assert found[1:] == [
        "node 2 has no vote yet, as it started with an empty disk and is catching up: group 0"
    ], "nobody may lose another disk now"
    assert "group 0" not in found[0]
    heard = (
        "no data of group 1 on its disk, and rejoins after a reply from node 3: start it; a node "
        "whose disk is permanently lost starts on an empty one; "
    )
    assert heard + "it has lost its disk, and waits for a leader of group 2" in found[0]


def test_a_node_without_its_data_says_whom_it_cannot_find():
    said = waits({1: [2, 4], 2: [5]}, known=[2, 3])
    assert "after a reply from nodes 2, 4, 5" in said
    assert (
        "has no address of nodes 4, 5: list in [[cluster.nodes]] the current nodes of the cluster"
        in said
    )
    assert "found" not in waits({1: [2]}, known=[2, 3]) and "found" not in waits({1: [2]})


@pytest.mark.parametrize(
    "answer",
    [
        b"\xc1",
        b"\xa3\xff\xff\xff",
        b"\x05",
        msgspec.msgpack.encode({"release": 7, "replicas": []}),
        b"\x91" * 5000,
    ],
)
def test_an_answer_that_makes_no_sense_is_none(answer: bytes) -> None:
    async def call(core_address: int, kind: int, body: bytes) -> bytes:
        return answer

    there = SimpleNamespace(is_up=lambda node: True, cores_of=lambda node: 1)
    transport: Any = SimpleNamespace(
        others=[], node_links=links_to([2], there), raft=there, call=call, on=lambda *what: None
    )
    start: Any = SimpleNamespace(identity=SimpleNamespace(node=1), core=0)
    assert list(asyncio.run(ClusterView(start, transport, MemberReport(), None).gather())) == [
        (1, 0)
    ]


@pytest.mark.parametrize("clock", [float("inf"), float("-inf"), float("nan")])
def test_a_clock_that_is_none_is_not_compared(clock: float) -> None:
    async def call(core_address: int, kind: int, body: bytes) -> bytes:
        return msgspec.msgpack.encode(CoreStatus("9.9", [], clock=clock))

    there = SimpleNamespace(is_up=lambda node: True, cores_of=lambda node: 1)
    transport: Any = SimpleNamespace(
        others=[], node_links=links_to([2], there), raft=there, call=call, on=lambda *what: None
    )
    start: Any = SimpleNamespace(identity=SimpleNamespace(node=1), core=0)
    statuses = asyncio.run(ClusterView(start, transport, MemberReport(), None).gather())
    assert statuses[2, 0].clock == 0.0 and not list(clock_notes(statuses))
