"""Random members, lost answers, late requests, slow members and failovers: no partition has two
owners (rule J), and in the end each has one.

An owner is a client that was told that it has a partition, and has not yet said that it gave it up.
It stops when it is fenced, and when its session or its rebalance timeout ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sim.code_edits import edited_function
from worlds.modern_group import REBALANCE_MS, Client, Coordinated, topic_id

from polynya.stream.features.consumer_groups.assignors import TopicPartition
from polynya.stream.features.consumer_groups.calls import HeartbeatAnswer
from polynya.stream.features.consumer_groups.modern import SESSION_MS, ModernGroup

NAMES = ("a", "b", "c")
WHO = st.sampled_from(NAMES)
STEP_MS = 5_000


class Groups(RuleBasedStateMachine):
    """A group, and clients that each send one request at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Coordinated(t=5, u=2)
        self.clients: dict[str, Client] = {}
        self.waiting: dict[str, tuple[Client, int]] = {}  # requests whose answers are not read
        self.deaf_until: dict[str, int] = {}  # when a client that hears nothing gives up

    @rule(name=WHO, topics=st.sampled_from((["t"], ["t", "u"])), is_static=st.booleans())
    def join(self, name: str, topics: list[str], is_static: bool) -> None:
        if name not in self.clients:
            instance = f"i-{name}" if is_static else None
            self.clients[name] = Client(self.group, name, topics, instance=instance)
            self.send(name)

    @rule(name=WHO)
    def send(self, name: str) -> None:
        """Send a heartbeat. Its answer comes later, or never."""
        client = self.clients.get(name)
        if client is not None and name not in self.waiting:
            self.waiting[name] = (client, self.group.send(client.call()))

    @rule(name=WHO, is_slow=st.booleans())
    def receive(self, name: str, is_slow: bool = False) -> None:
        if name in self.waiting:
            client, ticket = self.waiting[name]
            answer = self.group.answers.get(ticket)
            if isinstance(answer, HeartbeatAnswer):
                del self.waiting[name]
                client.take(answer, is_slow=is_slow)

    @rule(name=WHO)
    def finish(self, name: str) -> None:
        if name in self.clients:
            self.clients[name].finish()

    @rule(name=WHO, is_slow=st.booleans())
    def beat(self, name: str, is_slow: bool = False) -> None:
        self.send(name)
        self.group.commit()
        self.receive(name, is_slow)

    @rule(slow=st.sets(WHO))
    def beat_all(self, slow: set[str]) -> None:
        for name in sorted(self.clients):
            self.beat(name, name in slow)

    @rule(name=WHO)
    def lose_answer(self, name: str) -> None:
        if name in self.waiting:
            client, _ = self.waiting.pop(name)
            client.lose()

    @rule(name=WHO)
    def repeat(self, name: str) -> None:
        """Send a request twice: a client gave up the first one, which arrives all the same."""
        client = self.clients.get(name)
        if client is not None and name not in self.waiting:
            call = client.call()
            self.group.send(call)
            self.waiting[name] = (client, self.group.send(call))

    @rule(name=WHO, stays=st.booleans())
    def leave(self, name: str, stays: bool) -> None:
        client = self.clients.get(name)
        if client is not None and name not in self.waiting and client.epoch > 0:
            del self.clients[name]
            client.owned = set()
            self.group.send(client.call(-2 if stays and client.instance else -1))

    @rule(name=WHO)
    def stop(self, name: str) -> None:
        """Stop without a word: what it had is not read any more."""
        self.clients.pop(name, None)
        self.waiting.pop(name, None)

    @rule(is_slow=st.booleans())
    def pass_time(self, is_slow: bool) -> None:
        """Let time pass. A client that hears nothing for its session gives up, as Kafka's do on
        `max.poll.interval.ms`; the coordinator waits as long."""
        self.group.pass_time(STEP_MS if is_slow else 100)
        self.give_up()

    def give_up(self) -> None:
        """Forget the partitions of clients that the coordinator does not know any more."""
        known = self.group.group.members
        for client in self.clients.values():
            if client.id not in known and client.owned:
                client.forget()

    @rule(count=st.integers(1, 6))
    def change_topics(self, count: int) -> None:
        self.group.set_topics(t=count, u=2)

    @rule()
    def log(self) -> None:
        self.group.commit()

    @rule(logs=st.booleans())
    def set_log(self, logs: bool) -> None:
        self.group.logs_at_once = logs

    @rule()
    def fail_over(self) -> None:
        self.group.fail_over()
        for client, _ in self.waiting.values():
            client.lose()
        self.waiting = {}
        self.give_up()

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners: dict[TopicPartition, str] = {}
        for client in self.clients.values():
            for partition in client.owned:
                other = owners.setdefault(partition, client.id)
                assert other == client.id, f"{partition}: {other} and {client.id}"

    def teardown(self) -> None:
        """All is well in the end: each partition has one owner, and the log is still."""
        self.group.logs_at_once = True
        self.group.commit()
        self.waiting = {}
        for client in self.clients.values():
            client.lose()
            client.finish()
        for _ in range(12 + (SESSION_MS + REBALANCE_MS) // STEP_MS):
            for name in tuple(self.clients):
                self.beat(name)
                self.no_partition_has_two_owners()
            self.group.pass_time(STEP_MS)
            self.give_up()
        wanted = {topic for each in self.clients.values() for topic in each.topics}
        view = self.group.view
        partitions = {
            (topic_id(name), number)
            for name in wanted
            for number in range(view.by_name[name].partitions)
        }
        owned = [partition for each in self.clients.values() for partition in each.owned]
        assert sorted(owned) == sorted(partitions)
        puts = len(self.group.log)
        for name in tuple(self.clients):
            self.beat(name)
        assert len(self.group.log) == puts, "heartbeats of a stable group are not logged"


def run(examples: int, *phases: Phase, steps: int = 40) -> None:
    run_state_machine_as_test(
        Groups,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            phases=phases or (Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_partition_has_two_owners() -> None:
    run(60)


MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a partition is given before it is revoked": (
        "_advance",
        edited_function(
            ModernGroup._advance,
            "self._owners.setdefault(partition, member.id) == member.id",
            "self._owners.update({partition: member.id}) is None",
        ),
    ),
    "a member confirms what it was not told": (
        "_release",
        edited_function(
            ModernGroup._release, "not member.claim.isdisjoint(member.revoking)", "False"
        ),
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    method, defect = MUTANTS[name]
    sound = getattr(ModernGroup, method)
    setattr(ModernGroup, method, defect)
    try:
        yield
    finally:
        setattr(ModernGroup, method, sound)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_defect_is_found(name: str) -> None:
    with planted(name), pytest.raises(AssertionError):
        run(500, Phase.generate, steps=80)
