"""The leader of a group counts how long its turns take to commit; the followers count nothing."""

from __future__ import annotations

import random
from functools import partial
from itertools import count

from sim.cluster import Node, World
from stories.cluster import A, led, stories
from worlds.stream import raw_batch

from polynya.base.spans import Span, Tracer, within
from polynya.engine.replicated import ReplicatedEngine
from polynya.stream.features.appends.commands import Append
from polynya.stream.replies import Done

story_of_a_leader = stories(led)


def commits(core: ReplicatedEngine) -> int:
    return sum(core.counters.commits.counts)


@story_of_a_leader
async def test_each_turn_of_a_leader_is_timed_until_its_entries_are_applied(
    world: World, leader: Node
) -> None:
    group = world.group_of(A)
    before = commits(leader.core)
    others = {node: commits(node.core) for node in world.alive() if node is not leader}
    for number in range(3):
        await leader.append(A, b"%d;" % number)
    assert commits(leader.core) == before + 3
    assert leader.core.counters.commits.total > 0
    assert not leader.core.members[group].timed
    assert {node: commits(node.core) for node in others} == others


@story_of_a_leader
async def test_a_leader_that_is_replaced_forgets_what_it_timed(world: World, first: Node) -> None:
    group = world.group_of(A)
    member = first.core.members[group]
    target = next(node for node in world.alive() if node is not first)
    member.timed.append((1 << 40, 0.0))
    first.core.transfer(group, target.number)
    await world.wait(lambda: world.leader(group) is target)
    assert not member.timed


def propose(node: Node, text: bytes, done: Done = lambda reply: None) -> None:
    """Propose an append to a node's core."""
    command = node.engine.local.stamped(Append(A, 1, "text/plain", raw_batch(text)))
    node.core.propose(node.world.group_of(A), command, done)


def root_of(tracer: Tracer) -> Span:
    """The span of a request."""
    span = tracer.begin("request")
    assert span is not None
    return span


@story_of_a_leader
async def test_a_traced_commit_has_the_write_to_the_leaders_journal(
    world: World, leader: Node
) -> None:
    numbers = random.Random(7)
    tracer = Tracer(
        ratio=1.0,
        follows_clients=True,
        queue_max=100,
        now_ns=count(1000).__next__,
        random=numbers.random,
        bits=numbers.getrandbits,
    )
    root = root_of(tracer)
    answers: list[object] = []
    group, traced = world.group_of(A), leader.core.counters.traced

    def propose_two() -> None:  # in one turn, with one commit
        for text in (b"1;", b"2;"):
            propose(leader, text, answers.append)

    within(root, propose_two)
    await world.wait(lambda: len(answers) == 2)
    root.end()
    fsync, commit, request = tracer.take(100)
    assert (fsync.name, commit.name, request) == ("fsync", "commit", root)
    assert (fsync.parent, commit.parent) == (commit.id, root.id)
    assert commit.attributes == {"polynya.group": group}
    exemplars = leader.core.counters.commits.exemplars
    assert {each[:2] for each in exemplars.values()} == {("trace_id", root.trace_id)}
    assert not traced.waiting and not traced.writing and not traced.trace_id
    other = next(node for node in world.alive() if node is not leader)
    within(root_of(tracer), partial(propose, other, b"3;"))
    assert not other.core.counters.traced.waiting, "a refused proposal has no commit"
