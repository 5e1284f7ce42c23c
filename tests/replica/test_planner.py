"""The planner in a toy cluster: whatever is asked for comes about, step by step, none of which
takes a group below its quorum."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.toy_groups import ROUNDS_MAX, Toy, leader_count, node

from polynya.replica import zones
from polynya.replica.placement_goals import MOVES_AT_ONCE
from polynya.replica.placement_steps import ChangeVoters
from polynya.replica.planner import READS_AT_ONCE, is_read_as_it_should, may_have_work, moving, plan
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.placement.commands import (
    NodeAdd,
    NodeAnnounce,
    NodePromote,
    NodeSet,
    NodeState,
    PlaceGroup,
    ReaderAdd,
    SetBalancing,
)


def test_nothing_is_done_where_nothing_has_to_be() -> None:
    assert plan(Toy([""] * 3).map, Toy([""] * 3).observe()) == []


def test_a_node_more_becomes_a_reader_and_with_balance_gets_its_share() -> None:
    toy = Toy([""] * 3)
    toy.apply(NodeAdd(node(4)))
    toy.settle()
    assert toy.configurations[META_GROUP].readers == (4,) and toy.holds()[4] == 0
    toy.apply(SetBalancing(True))
    toy.settle()
    toy.check_rest()
    assert sorted(toy.holds().values()) == [6, 6, 6, 6] and not toy.map.balancing
    leads = [leader_count(toy.map, number) for number in toy.map.members]
    assert max(leads) - min(leads) <= 1


def test_a_node_that_was_added_before_it_was_started_gets_its_share_when_it_comes() -> None:
    toy = Toy([""] * 3)
    toy.apply(NodeAdd(node(4), balance=True))
    toy.down.add(4)
    for _ in range(5):
        toy.round()
    assert toy.map.balancing and toy.holds()[4] == 0
    toy.down.clear()
    toy.settle()
    assert not toy.map.balancing and toy.holds()[4] == 6


def test_a_node_is_removed_when_its_last_replica_is_gone() -> None:
    toy = Toy([""] * 4)
    toy.apply(NodeSet(1, NodeState.LEAVING))
    for _ in range(ROUNDS_MAX):
        toy.round()
        held = any(1 in configuration.voters for configuration in toy.configurations.values())
        assert not held or toy.map.nodes[1].state == NodeState.LEAVING
        if toy.map.nodes[1].state == NodeState.REMOVED:
            break
    assert 1 in toy.configurations[META_GROUP].readers  # it is still there, and hears of it
    toy.down.add(1)
    toy.settle()
    assert toy.map.members == (2, 3, 4) and toy.configurations[META_GROUP].readers == ()
    toy.check_rest()


def test_a_node_stays_until_no_group_has_it_any_more_also_one_that_was_about_to_get_a_vote() -> (
    None
):
    """Change the goal in the joint phase: the map no longer names the node, but the group still
    does."""
    toy = Toy([""] * 3, groups=1, replicas=1, slow=1.0)
    toy.apply(NodeAdd(node(4)))
    toy.settle()
    toy.apply(PlaceGroup(1, (4,), 4, toy.map.groups[1].epoch))
    while 4 not in toy.configurations[1].voters:
        toy.round()
    assert toy.configurations[1].joint
    toy.apply(NodeSet(4, NodeState.LEAVING))
    toy.settle()
    toy.down.add(4)
    toy.settle()
    toy.check_rest()
    assert toy.map.nodes[4].state == NodeState.REMOVED


def test_a_learner_that_the_goal_no_longer_names_goes_first() -> None:
    """Drop it: it has no replica any more, and a learner that lost its disk would wait for it."""
    toy = Toy([""] * 5, groups=1)
    voters = toy.configurations[1].voters
    one, other = (number for number in toy.map.members if number not in voters)
    toy.apply(PlaceGroup(1, tuple(sorted((voters[0], one, other))), one, toy.map.groups[1].epoch))
    toy.round()
    assert toy.configurations[1].learners == (one, other)
    toy.down = {one, other}
    goal = tuple(sorted((*voters[:2], other)))
    toy.apply(PlaceGroup(1, goal, voters[0], toy.map.groups[1].epoch))
    (step,) = plan(toy.map, toy.observe())
    assert isinstance(step, ChangeVoters)
    assert (step.configuration.voters, step.configuration.learners) == (voters, (other,))


@pytest.mark.parametrize("replicas", [1, 3, 5])
@pytest.mark.parametrize("state", [NodeState.EMPTYING, NodeState.LEAVING])
def test_nodes_that_are_told_to_go_at_the_same_time_keep_what_nobody_can_take_over(
    replicas: int, state: int
) -> None:
    """Each was allowed to, as the others were to stay."""
    for going in range(1, 6):
        toy = Toy([""] * 5, replicas=replicas)
        for number in range(1, going + 1):
            toy.apply(NodeSet(number, state))
        toy.settle()
        assert all(
            len(configuration.voters) >= replicas for configuration in toy.configurations.values()
        )


def test_three_nodes_do_not_become_two_by_themselves_when_one_is_away() -> None:
    toy = Toy([""] * 3)
    toy.down.add(2)
    assert plan(toy.map, toy.observe()) == []


def test_a_node_that_is_given_up_is_replaced_and_only_where_there_is_room() -> None:
    toy = Toy([""] * 3)
    toy.down.add(2)
    toy.lost.add(2)
    toy.settle()
    assert all(2 in placement.voters for placement in toy.map.groups.values())
    toy.apply(NodeAdd(node(4)))
    toy.settle()
    assert not any(2 in placement.voters for group, placement in toy.map.groups.items() if group)


def test_a_replaced_disk_gives_just_its_replicas_to_the_heir() -> None:
    toy = Toy([""] * 5)
    before = {
        group: placement.voters
        for group, placement in toy.map.groups.items()
        if 2 in placement.voters
    }
    toy.down.add(2)
    toy.apply(NodeAdd(msgspec.structs.replace(node(6), peer="n2:1", http="http://n2", replaces=2)))
    toy.down.add(6)
    for _ in range(5):
        toy.round()
    assert all(2 in toy.configurations[group].voters for group in before), (
        "it waits for the successor"
    )
    toy.down.discard(6)
    toy.settle()
    for group, voters in before.items():
        assert toy.map.groups[group].voters == tuple(sorted({*voters, 6} - {2}))
    assert toy.map.nodes[2].state == NodeState.REMOVED


def test_who_takes_over_from_a_node_gets_its_share_of_leads_too() -> None:
    toy = Toy([""] * 3)
    toy.down.add(2)
    toy.apply(NodeAdd(msgspec.structs.replace(node(4), peer="n2:1", http="http://n2", replaces=2)))
    toy.down.add(4)
    for _ in range(5):
        toy.round()
    assert leader_count(toy.map, 2) == 0, "others lead meanwhile"
    toy.down.discard(4)
    toy.settle()
    leads = [leader_count(toy.map, number) for number in (1, 3, 4)]
    assert max(leads) - min(leads) <= 1, leads


def test_a_cordoned_node_keeps_what_it_has_and_a_drained_one_its_replicas() -> None:
    toy = Toy([""] * 4)
    held = toy.holds()
    toy.apply(NodeSet(4, NodeState.CORDONED))
    toy.apply(NodeSet(1, NodeState.DRAINING))
    toy.apply(SetBalancing(True))
    toy.settle()
    toy.check_rest()
    assert (
        toy.holds()[4] == held[4]
        and toy.holds()[1] > 0
        and leader_count(toy.map, 1) == 0
        and leader_count(toy.map, 4) > 0
    )


def test_when_all_who_could_lead_are_drained_one_of_them_still_does() -> None:
    toy = Toy(["", "", "", "", "a", ""])
    for number in (2, 3, 5):
        toy.apply(NodeSet(number, NodeState.DRAINING))
    toy.settle()
    assert toy.map.first_of(5) in toy.map.groups[5].voters == (2, 3, 5)


def test_zones_each_get_a_replica_once_there_are_enough() -> None:
    toy = Toy(["a", "a", "b"], groups=12)
    toy.apply(NodeAdd(node(4, "c")))
    toy.apply(NodeAdd(node(5, "c")))
    toy.apply(SetBalancing(True))
    toy.settle()
    toy.check_rest()
    zones = {number: record.zone for number, record in toy.map.nodes.items()}
    for group in range(1, 13):
        assert {zones[each] for each in toy.map.groups[group].voters} == {"a", "b", "c"}


def zoned(toy: Toy, number: int, zone: str) -> NodeAnnounce:
    record = toy.map.nodes[number]
    return NodeAnnounce(number, record.peer, record.http, zone, 1)


def test_zones_that_are_introduced_node_after_node_are_kept_apart_unasked_once_all_are_known() -> (
    None
):
    toy = Toy([""] * 6, groups=24)
    for number, zone in enumerate("aabbc", 1):
        toy.apply(zoned(toy, number, zone))
        assert plan(toy.map, toy.observe()) == [], "what fails together is not known yet"
    toy.apply(zoned(toy, 6, "c"))
    assert zones.crowded(toy.map) and may_have_work(toy.map)
    before = {group: set(placement.goal) for group, placement in toy.map.groups.items()}
    toy.settle()
    toy.check_rest()
    for group, placement in toy.map.groups.items():
        if group:
            assert {toy.map.nodes[each].zone for each in placement.voters} == {"a", "b", "c"}
            assert len(set(placement.voters) - before[group]) <= 1, (
                "no more is copied than has to be"
            )
    assert not may_have_work(toy.map)


def test_five_replicas_are_spread_over_two_zones_as_evenly_as_they_can_be() -> None:
    toy = Toy(["a"] * 5 + ["b"] * 3, groups=6, replicas=5)
    toy.apply(zoned(toy, 4, "b"))
    toy.apply(zoned(toy, 5, "b"))
    toy.apply(zoned(toy, 6, "a"))
    toy.settle()
    toy.check_rest()
    for placement in toy.map.groups.values():
        assert sorted(zones.tally(toy.map.nodes, placement.voters).values()) == [2, 3]


def test_zones_wait_for_nodes_that_are_away_and_move_a_few_groups_at_a_time() -> None:
    toy = Toy(["a", "b", "c", "c"], groups=20)
    toy.apply(zoned(toy, 3, "a"))
    toy.down.add(4)
    assert zones.crowded(toy.map) and plan(toy.map, toy.observe()) == []
    toy.down.clear()
    toy.round()
    assert 0 < len(moving(toy.map)) <= MOVES_AT_ONCE
    toy.settle()
    toy.check_rest()


def test_a_group_whose_missing_voters_have_no_nodes_is_spread_over_zones() -> None:
    """The meta group of five nodes wants five voters, and a node that is drained gets none."""
    toy = Toy(["a", "a", "b"])
    toy.apply(NodeAdd(node(4, "c")))
    toy.apply(NodeAdd(node(5, "c")))
    toy.apply(NodeSet(5, NodeState.DRAINING))
    assert META_GROUP in zones.crowded(toy.map)
    toy.settle()
    voters = toy.map.groups[META_GROUP].voters
    assert [toy.map.nodes[each].zone for each in voters] == ["a", "b", "c"]
    toy.apply(NodeSet(5, NodeState.ACTIVE))
    toy.settle()
    assert len(toy.map.groups[META_GROUP].voters) == 5


def test_the_meta_group_keeps_an_odd_number_of_voters_unasked() -> None:
    toy = Toy([""] * 5)
    assert len(toy.map.groups[META_GROUP].voters) == 5
    toy.apply(NodeSet(5, NodeState.LEAVING))
    toy.settle()
    toy.down.add(5)
    toy.settle()
    toy.check_rest()
    assert len(toy.map.groups[META_GROUP].voters) == 3
    toy.apply(NodeAdd(node(6)))
    toy.settle()
    assert len(toy.map.groups[META_GROUP].voters) == 5


def test_a_meta_group_that_shrinks_does_without_the_node_that_is_away() -> None:
    toy = Toy([""] * 5)
    toy.apply(PlaceGroup(META_GROUP, (1, 2, 3, 4), 1))
    toy.down.add(2)
    toy.apply(NodeSet(5, NodeState.EMPTYING))
    toy.settle()
    assert toy.map.groups[META_GROUP].voters == (1, 3, 4)


def test_a_cluster_grows_from_one_to_three_and_five_replicas_come_when_asked_for() -> None:
    toy = Toy([""])
    for number in (2, 3, 4, 5):
        toy.apply(NodeAdd(node(number), balance=True))
        toy.settle()
        toy.check_rest()
    assert {len(placement.voters) for group, placement in toy.map.groups.items() if group} == {3}
    assert len(toy.map.groups[META_GROUP].voters) == 5
    toy.apply(SetBalancing(True, 5))
    toy.settle()
    assert {len(placement.voters) for placement in toy.map.groups.values()} == {5}
    toy.apply(SetBalancing(True, 3))
    toy.settle()
    assert {len(placement.voters) for group, placement in toy.map.groups.items() if group} == {3}


def test_more_cores_hold_more() -> None:
    toy = Toy([""] * 3, groups=16)
    toy.apply(NodeAdd(node(4, cores=4), balance=True))
    toy.settle()
    assert (
        toy.holds()[4] == 16
        and max(toy.holds()[each] for each in (1, 2, 3))
        - min(toy.holds()[each] for each in (1, 2, 3))
        <= 1
    )


def reading(toy: Toy, number: int) -> list[int]:
    return [
        group
        for group, configuration in toy.configurations.items()
        if number in configuration.readers
    ]


def test_a_read_replica_follows_every_group_a_few_at_a_time_and_nothing_else_changes() -> None:
    toy = Toy([""] * 3, groups=30)
    before = dict(toy.map.groups)
    toy.down.add(4)
    toy.apply(ReaderAdd(node(4)))
    for _ in range(5):
        toy.round()
    assert reading(toy, 4) == [META_GROUP], "it is let in, and waited for with the rest"
    toy.down.clear()
    toy.round()
    assert len(reading(toy, 4)) == 1 + READS_AT_ONCE
    toy.settle()
    toy.check_rest()
    assert (
        len(reading(toy, 4)) == 31
        and toy.map.groups == before
        and is_read_as_it_should(toy.map, toy.observe())
    )
    toy.apply(SetBalancing(True, 5))
    toy.settle()
    assert (
        toy.holds()[4] == 0
        and leader_count(toy.map, 4) == 0
        and {len(each.voters) for each in toy.map.groups.values()} == {3}
    )


def test_a_read_replica_that_is_away_is_nothing_to_do() -> None:
    toy = Toy([""] * 3)
    toy.apply(ReaderAdd(node(4)))
    toy.settle()
    toy.down.add(4)
    toy.lost.add(4)
    assert plan(toy.map, toy.observe()) == [] and not may_have_work(toy.map)


def test_a_read_replica_is_removed_when_no_group_has_it_any_more_also_one_that_is_away() -> None:
    for away in (False, True):
        toy = Toy([""] * 3)
        toy.apply(ReaderAdd(node(4)))
        toy.settle()
        if away:
            toy.down.add(4)
        toy.apply(NodeSet(4, NodeState.LEAVING))
        toy.round()
        assert toy.map.nodes[4].state == NodeState.LEAVING and reading(toy, 4) == [META_GROUP]
        toy.round()
        assert toy.map.nodes[4].state == NodeState.REMOVED
        toy.down.add(4)
        toy.settle()
        toy.check_rest()


def test_a_read_replica_that_is_promoted_votes_in_groups_that_it_has_had() -> None:
    toy = Toy([""] * 3)
    toy.apply(ReaderAdd(node(4)))
    toy.settle()
    toy.apply(NodePromote(4, balance=True))
    for _ in range(ROUNDS_MAX):
        read = set(reading(toy, 4))
        steps = toy.round()
        for step in steps:
            if isinstance(step, ChangeVoters) and 4 in step.configuration.learners:
                assert step.group in read, "what it has is not made again"
        if not steps:
            break
    toy.check_rest()
    assert toy.holds()[4] == 6 and reading(toy, 4) == [META_GROUP]


def test_a_read_replica_does_not_hide_that_zones_are_known() -> None:
    toy = Toy(["a", "b", "c"])
    toy.apply(ReaderAdd(node(4)))
    assert zones.are_known(toy.map) and not zones.crowded(toy.map)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "add",
                "reader",
                "promote",
                "cordon",
                "drain",
                "empty",
                "leave",
                "active",
                "balance",
                "down",
                "up",
                "move",
                "zone",
            ]
        ),
        st.integers(1, 9),
    ),
    max_size=12,
)


@pytest.mark.timeout(120)
@given(
    named=st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=3, max_size=6)
    | st.lists(st.sampled_from("abc"), min_size=3, max_size=6),
    replicas=st.sampled_from([1, 3, 5]),
    acts=ACTS,
    share=st.sampled_from([1.0, 0.6, 0.3]),
    slow=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 1000),
)
def test_whatever_is_asked_for_it_ends_and_no_step_takes_a_quorum(
    named: list[str],
    replicas: int,
    acts: list[tuple[str, int]],
    share: float,
    slow: float,
    seed: int,
) -> None:
    toy = Toy(named, groups=6, replicas=replicas, seed=seed, slow=slow)
    for act, number in acts:
        _act(toy, act, number)
        for _ in range(toy.random.randint(0, 3)):
            toy.round(share)
    toy.down.clear()
    toy.settle(share)
    for number in [
        number for number, record in toy.map.nodes.items() if record.state == NodeState.REMOVED
    ]:
        toy.down.add(number)
    toy.settle(share)
    able = [number for number, record in toy.map.nodes.items() if record.state == NodeState.ACTIVE]
    if len(able) >= len(toy.map.members):
        toy.check_rest()


def _act(toy: Toy, act: str, number: int) -> None:
    states = {"cordon": 1, "drain": 2, "empty": 3, "leave": 4, "active": 0}
    known = sorted(toy.map.members)
    target = known[number % len(known)]
    able = [each for each in toy.map.voting if toy.map.nodes[each].state == NodeState.ACTIVE]
    if act == "add" and len(toy.map.nodes) < 12:
        toy.apply(NodeAdd(node(max(toy.map.nodes) + 1, "abc"[number % 3]), balance=number % 2 == 0))
    elif act == "reader" and len(toy.map.nodes) < 12:
        toy.apply(ReaderAdd(node(max(toy.map.nodes) + 1)))
    elif act == "promote" and toy.map.readers:
        toy.apply(NodePromote(min(toy.map.readers), balance=number % 2 == 0))
    elif act in states:
        toy.apply(NodeSet(target, states[act]))
    elif act == "zone":
        toy.apply(zoned(toy, target, "abc"[toy.random.randrange(3)]))
    elif act == "balance":
        toy.apply(SetBalancing(True))
    elif act == "down" and not toy.down:
        toy.down.add(target)
    elif act == "up":
        toy.down.clear()
    elif act == "move":
        group = number % 7
        goal = set(toy.map.groups[group].goal)
        rest = [each for each in able if each not in goal]
        if rest and not moving(toy.map):
            goal = (goal - {max(goal)}) | {rest[0]}
            toy.apply(PlaceGroup(group, tuple(goal), min(goal)))
