"""One group of the consumer protocol with its clock, its log, and the members as clients."""

from __future__ import annotations

from polynya.stream.command import Command
from polynya.stream.features.consumer_groups.assignors import TopicPartition
from polynya.stream.features.consumer_groups.calls import (
    Answer,
    ConsumerHeartbeat,
    HeartbeatAnswer,
    Leave,
    Outcomes,
)
from polynya.stream.features.consumer_groups.commands import CommitOffsets, ConsumerPut, OffsetEntry
from polynya.stream.features.consumer_groups.effects import Log
from polynya.stream.features.consumer_groups.modern import ModernGroup
from polynya.stream.features.consumer_groups.modern_members import numbers_by_topic, positions_of
from polynya.stream.features.consumer_groups.state import ConsumerGroup
from polynya.stream.features.consumer_groups.topic_view import TopicView
from polynya.stream.features.topics.state import Topic, TopicNews, TopicState
from polynya.stream.machine import Machine

REBALANCE_MS = 60_000


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


class Client:
    """A member as a client keeps it: what it was last told it has, and whether it said so."""

    def __init__(
        self,
        group: Coordinated,
        id_: str,
        topics: list[str] | None = None,
        *,
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        reads: list[str] | None = None,
    ) -> None:
        self.group, self.id, self.instance = group, id_, instance
        self.topics = ["t"] if topics is None else topics
        self.regex, self.assignor, self.reads = regex, assignor, reads
        self.epoch = 0
        self.owned: set[TopicPartition] = set()
        self.assigned: set[TopicPartition] = set()
        self.said: set[TopicPartition] | None = None  # None: the next heartbeat says all
        self.heard_ms = group.now

    def ask(self, epoch: int | None = None) -> HeartbeatAnswer:
        """Send a heartbeat, and take over its answer."""
        answer = self.sent(epoch)
        self.take(answer)
        return answer

    def sent(self, epoch: int | None = None) -> HeartbeatAnswer:
        """Send a heartbeat; return the answer without taking it over."""
        answer = self.group.answer(self.group.send(self.call(epoch)))
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    def call(self, epoch: int | None = None) -> ConsumerHeartbeat:
        """Return the next heartbeat. All is said in the first one and after a fault."""
        epoch = self.epoch if epoch is None else epoch
        is_full = self.said is None or epoch == 0
        claim = None
        if is_full or self.said != self.owned:
            claim = sorted(numbers_by_topic(self.owned).items())
            self.said = set(self.owned)
        return ConsumerHeartbeat(
            self.group.group.id,
            self.id,
            epoch,
            self.instance,
            "client",
            "/host",
            None,
            REBALANCE_MS if is_full else -1,
            self.topics if is_full else None,
            self.regex if is_full else None,
            self.reads,
            self.assignor if is_full else None,
            claim,
        )

    def take(self, answer: HeartbeatAnswer, *, is_slow: bool = False) -> None:
        """Take over an answer: a fenced member gives up all and joins again. A slow one has what it
        gives up until `finish`."""
        if answer.error in (25, 69, 82, 110):
            self.forget()
        elif answer.error:
            self.said = None
        else:
            self.epoch, self.heard_ms = answer.epoch, self.group.now
            if answer.assignment is not None:
                self.assigned = positions_of(answer.assignment)
            if not is_slow or self.owned <= self.assigned:
                self.finish()

    def finish(self) -> None:
        """Take over the partitions that it was last told."""
        self.owned = set(self.assigned)

    def lose(self) -> None:
        """Lose an answer: the next heartbeat says all."""
        self.said = None

    def forget(self) -> None:
        self.epoch, self.owned, self.assigned, self.said = 0, set(), set(), None

    @property
    def numbers(self) -> list[int]:
        """Return the partitions that it has, of one topic."""
        return sorted(number for _, number in self.owned)


class Coordinated:
    """A group at its coordinator, over the rules of the log."""

    def __init__(self, **topics: int) -> None:
        self.now, self.tickets, self.revision = 0, 0, 0
        self.view = TopicView()
        self.machine = Machine(1, 4)
        self.answers: dict[int, Answer] = {}
        self.log: list[ConsumerPut] = []
        self.unlogged: list[Log] = []
        self.logs_at_once = True
        self.set_topics(**topics)
        self.group = ModernGroup.load(ConsumerGroup("g"), self.view, self.now)

    def set_topics(self, **topics: int) -> None:
        """Set which topics exist, with their numbers of partitions."""
        self.revision += 1
        listed = [
            Topic(name, topic_id(name), count, [], 0, TopicState.READY)
            for name, count in topics.items()
        ]
        self.view.take(TopicNews(self.revision, True, listed))

    def fail_over(self) -> None:
        """Go on at another coordinator. What was not logged is lost, and so are its answers."""
        self.unlogged, self.answers = [], {}
        stored = self.machine.consumer_groups.get("g") or ConsumerGroup("g")
        self.group = ModernGroup.load(stored, self.view, self.now)

    def send(self, call: ConsumerHeartbeat | Leave) -> int:
        self.tickets += 1
        self.group.call(call, self.tickets, self.now)
        self.settle()
        return self.tickets

    def answer(self, ticket: int) -> Answer:
        return self.answers[ticket]

    def leave(self, *members: tuple[str, str | None]) -> list[int]:
        answer = self.answer(self.send(Leave("g", list(members))))
        assert isinstance(answer, Outcomes)
        return answer.errors

    def settle(self) -> None:
        while effects := self.group.take_effects():
            for effect in effects:
                if isinstance(effect, Log):
                    self.unlogged.append(effect)
                else:
                    assert effect.ticket not in self.answers, "a call is answered once"
                    self.answers[effect.ticket] = effect.answer
            if self.logs_at_once:
                self.commit()

    def commit(self) -> None:
        """Commit the proposals to the log."""
        unlogged, self.unlogged = self.unlogged, []
        for effect in unlogged:
            assert isinstance(effect.put, ConsumerPut)
            assert self.applied(effect.put) == 0
            self.log.append(effect.put)
            for reply in effect.then:
                assert reply.ticket not in self.answers
                self.answers[reply.ticket] = reply.answer
            self.group.logged(effect.put)
        if unlogged:
            self.settle()

    def applied(self, command: Command) -> int:
        """Apply a command; return the code of its reply."""
        return int(self.machine.apply(command).code)

    def commit_code(self, member: str, epoch: int, *numbers: int) -> int:
        entries = [OffsetEntry(topic_id("t"), number, 1, -1, "") for number in numbers]
        return self.applied(CommitOffsets("g", self.now, epoch, member, entries))

    def pass_time(self, span_ms: int) -> None:
        """Let time pass, and wake the group when it asked for that."""
        end = self.now + span_ms
        while (deadline := self.group.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            before = self.group.next_deadline()
            self.group.tick(self.now)
            self.settle()
            assert before != self.group.next_deadline(), "it wakes for nothing"
        self.now = end
