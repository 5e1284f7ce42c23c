"""One fetch session, and the table of a core's sessions, without time and I/O."""

from __future__ import annotations

from itertools import count

import pytest

from polynya.front.kafka.errors import Error
from polynya.front.kafka.fetch_sessions import table
from polynya.front.kafka.fetch_sessions.session import FetchSession
from polynya.front.kafka.fetch_sessions.table import EVICTION_SECONDS, FetchSessions
from polynya.wire.kafka.generated.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

EPOCH_MAX = 2**31 - 1
Answer = tuple[str, int, dict[str, object]]  # topic, partition, what differs from an idle one


def topics(names: str) -> list[FetchTopic]:
    """'a0 a1 b0' as the topics of a request; 'a0@7' asks from offset 7."""
    found = []
    for name in names.split():
        partition, _, offset = name.partition("@")
        asked = FetchPartition(int(partition[1:]), fetch_offset=int(offset or 0))
        found.append(FetchTopic(partition[0], partitions=[asked]))
    return found


def forgotten(names: str) -> list[ForgottenTopic]:
    return [ForgottenTopic(each[0], partitions=[int(each[1:])]) for each in names.split()]


def answers(*given: Answer) -> list[FetchableTopicResponse]:
    return [
        FetchableTopicResponse(
            topic,
            partitions=[PartitionData(number, **{"records": [], **more})],  # type: ignore[arg-type]
        )
        for topic, number, more in given
    ]


def shown(found: list[FetchableTopicResponse] | list[FetchTopic]) -> str:
    """The partitions of topics or of answers, neighbours of a topic joined by commas."""
    return " ".join(
        each.topic
        + ",".join(
            str(part.partition_index if isinstance(part, PartitionData) else part.partition)
            for part in each.partitions
        )
        for each in found
    )


def session(names: str) -> FetchSession:
    made = FetchSession(7, by_id=False, now=0.0)
    made.update(topics(names), ())
    made.take(answers(*((topic, number, {}) for topic, number in made.partitions)))  # type: ignore[misc]
    return made


@pytest.mark.parametrize(
    ("answer", "is_included"),
    [
        ({}, False),
        ({"high_watermark": 1}, True),
        ({"last_stable_offset": 1}, True),
        ({"log_start_offset": 1}, True),
        ({"records": [b"x"]}, True),
        ({"error_code": 3}, True),
        ({"preferred_read_replica": 0}, True),
        ({"aborted_transactions": None}, False),
    ],
)
def test_only_news_are_told(answer: dict[str, object], is_included: bool) -> None:
    made = session("a0 a1")
    included = shown(made.take(answers(("a", 0, {}), ("a", 1, answer))))
    assert included == ("a1" if is_included else "")
    is_lasting = "records" in answer or "error_code" in answer or "preferred_read_replica" in answer
    assert bool(made.take(answers(("a", 1, answer)))) == is_lasting, "known ends are told once"


@pytest.mark.parametrize("answer", [{"error_code": 6}, {"preferred_read_replica": 2}])
def test_a_partition_is_told_again_when_its_error_is_over(answer: dict[str, object]) -> None:
    made = session("a0")
    assert shown(made.take(answers(("a", 0, answer)))) == "a0"
    assert shown(made.take(answers(("a", 0, {})))) == "a0"
    assert shown(made.take(answers(("a", 0, {})))) == ""


def test_partitions_with_records_go_behind_the_others() -> None:
    made = session("a0 a1 b0 b1")
    assert shown(made.topics()) == "a0,1 b0,1"
    made.take(answers(("a", 0, {"records": [b"x"]}), ("b", 0, {"high_watermark": 3})))
    assert shown(made.topics()) == "a1 b0,1 a0"
    made.take(answers(("a", 1, {"records": [b"x"]}), ("b", 1, {"records": [b"x"]})))
    assert shown(made.topics()) == "b0 a0,1 b1"


def test_changes_of_partitions() -> None:
    made = session("a0 a1 b0")
    made.update(topics("a1@5 c0 b0@6"), forgotten("a0 d9"))
    assert shown(made.topics()) == "a1 b0 c0"
    assert [each.partitions[0].fetch_offset for each in made.topics()] == [5, 6, 0]
    responses = answers(("a", 1, {}), ("b", 0, {}), ("c", 0, {"high_watermark": 0}))
    assert shown(made.take(responses)) == "c0", "the client knows the ends of the others"
    made.update(topics("a1@9"), forgotten("a1"))
    assert shown(made.topics()) == "b0 c0", "forgotten last"
    made.update(topics("a1"), ())
    assert shown(made.topics()) == "b0 c0 a1"
    assert shown(made.take(answers(("a", 1, {"high_watermark": 0})))) == "a1"


def test_topics_by_id() -> None:
    made = FetchSession(7, by_id=True, now=0.0)
    one, two = b"1" * 16, b"2" * 16
    made.update([FetchTopic("", each, [FetchPartition(0)]) for each in (one, two)], ())
    assert [each.topic_id for each in made.topics()] == [one, two]
    made.update((), [ForgottenTopic("", one, [0])])
    assert [each.topic_id for each in made.topics()] == [two]
    answer = FetchableTopicResponse("", two, [PartitionData(0, high_watermark=4)])
    assert made.take([answer])[0].topic_id == two
    assert not made.take([answer])


@pytest.mark.parametrize(
    ("id_", "epoch", "by_id", "error"),
    [
        (7, 1, False, Error.NONE),
        (8, 1, False, Error.FETCH_SESSION_ID_NOT_FOUND),
        (0, 1, False, Error.FETCH_SESSION_ID_NOT_FOUND),
        (7, 2, False, Error.INVALID_FETCH_SESSION_EPOCH),
        (7, -2, False, Error.INVALID_FETCH_SESSION_EPOCH),
        (7, 1, True, Error.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_which_request_is_the_next(id_: int, epoch: int, by_id: bool, error: Error) -> None:
    assert session("a0").refusal(id_, epoch, by_id=by_id) == error


def test_epochs_wrap_to_one() -> None:
    made = session("a0")
    made.advance()
    assert made.epoch == 2
    made.epoch = EPOCH_MAX
    made.advance()
    assert made.epoch == 1


class Table:
    """The table with ids 1, 2, …"""

    def __init__(self) -> None:
        numbers = count(1)
        self.sessions = FetchSessions(lambda: next(numbers))

    def create(self, names: str, now: float = 0.0) -> FetchSession | None:
        return self.sessions.create(topics(names), [], by_id=False, now=now)

    def made(self, names: str, now: float = 0.0) -> FetchSession:
        found = self.create(names, now)
        assert found is not None
        return found

    def resume(
        self,
        held: FetchSession | None,
        id_: int,
        epoch: int,
        add: str = "",
        forget: str = "",
        now: float = 0.0,
    ) -> str:
        request = FetchRequest(session_id=id_, session_epoch=epoch, topics=topics(add))
        request.forgotten_topics_data = forgotten(forget)
        found, error = self.sessions.resume(held, request, by_id=False, now=now)
        return "full" if found is None and not error else error.name if error else "next"

    @property
    def state(self) -> tuple[int, int, int, int]:
        """Sessions, their partitions, evictions, and sessions that were declined."""
        found = self.sessions
        return found.sessions, found.partitions, found.evictions, found.declined


def test_requests_of_a_connection() -> None:
    all_ = Table()
    assert all_.resume(None, 0, 0, "a0") == all_.resume(None, 0, -1, "a0") == "full"
    assert all_.resume(None, 1, 1) == "FETCH_SESSION_ID_NOT_FOUND"
    held = all_.made("a0 a1")
    assert all_.state == (1, 2, 0, 0)
    assert all_.resume(held, 1, 2) == "INVALID_FETCH_SESSION_EPOCH"
    assert all_.resume(held, 1, 1) == "next"
    assert all_.resume(held, 1, 1) == "INVALID_FETCH_SESSION_EPOCH", "a request is not taken twice"
    assert all_.resume(held, 1, 2, "b0", "a0") == "next"
    assert all_.state == (1, 2, 0, 0)
    assert all_.resume(held, 0, -1, "a0") == "full"
    assert all_.resume(held, 1, 3) == "next", "a fetch without a session changes nothing"
    assert all_.resume(held, 1, -1) == "full"
    assert all_.resume(held, 1, 4) == "FETCH_SESSION_ID_NOT_FOUND", "it is closed"
    assert all_.state == (0, 0, 0, 0)


@pytest.mark.parametrize("id_", [0, 1, 9])
def test_a_new_session_replaces_the_one_of_the_connection(id_: int) -> None:
    all_ = Table()
    held = all_.made("a0")
    assert all_.resume(held, id_, 0) == "full"
    assert not held.is_open and all_.state == (0, 0, 0, 0)


def test_a_session_without_partitions_ends() -> None:
    all_ = Table()
    held = all_.made("a0")
    assert all_.resume(held, 1, 1, "", "a0") == "full"
    assert all_.state == (0, 0, 0, 0) and not held.is_open
    assert all_.create("") is None and all_.state == (0, 0, 0, 0), "nothing to keep"


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "KAFKA_FETCH_SESSIONS_PER_CORE_MAX", 2)
    all_, late = Table(), EVICTION_SECONDS + 1
    one, two = all_.made("a0 a1"), all_.made("b0 b1 b2")
    assert all_.create("c0 c1 c2 c3") is None, "the others are new"
    assert all_.resume(one, 1, 1, now=late) == all_.resume(two, 2, 1, now=late) == "next"
    assert all_.create("c0 c1", now=late) is None, "none is smaller"
    assert all_.state == (2, 5, 0, 2)
    assert all_.create("c0 c1 c2", now=late) is not None
    assert (one.is_open, two.is_open, all_.state) == (False, True, (2, 6, 1, 2))
    assert all_.resume(one, 1, 2) == "FETCH_SESSION_ID_NOT_FOUND"
    assert all_.resume(two, 2, 2, now=2 * late) == "next"
    assert all_.create("d0", now=2 * late) is not None, "the unused one makes room"
    assert two.is_open and all_.state == (2, 4, 2, 2)


def test_the_budget_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "KAFKA_FETCH_SESSION_PARTITIONS_PER_CORE", 5)
    monkeypatch.setattr(table, "KAFKA_FETCH_SESSION_PARTITIONS_MAX", 4)
    all_, late = Table(), EVICTION_SECONDS + 1
    assert all_.create("a0 a1 a2 a3 a4") is None, "too large"
    one, two = all_.made("a0 a1"), all_.made("b0 b1")
    assert all_.create("c0 c1") is None
    assert all_.resume(one, 1, 1, "a2") == "next"
    assert all_.resume(two, 2, 1, "b2") == "FETCH_SESSION_ID_NOT_FOUND"
    assert (two.is_open, all_.state) == (False, (1, 3, 0, 2))
    assert all_.resume(one, 1, 2, "a3 a4") == "FETCH_SESSION_ID_NOT_FOUND"
    assert all_.state == (0, 0, 0, 2)
    one, two = all_.made("a0 a1"), all_.made("b0 b1")
    assert all_.resume(two, two.id, 1, now=1.0) == "next"
    assert all_.create("c0 c1 c2", now=late) is not None
    assert (one.is_open, two.is_open, all_.state) == (False, True, (2, 5, 1, 2))


def test_the_answers_of_a_closed_session_are_told_in_full() -> None:
    all_ = Table()
    held = all_.made("a0")
    all_.sessions.close(held)
    assert shown(held.take(answers(("a", 0, {"records": [b"x"]}), ("a", 1, {})))) == "a0 a1"
