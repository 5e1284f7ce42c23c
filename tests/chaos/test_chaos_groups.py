"""The checker of a Kafka consumer group: it believes a true history, and finds each lie."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.group_history import Commit, Committed, Delivery, GroupHistory, check_group  # noqa: E402  (not a part of the package)
from chaos.history import FAIL, OK  # noqa: E402

S = "kafka/chaos/0"
FINAL = {S: [f"k.{number}.0" for number in range(40)]}


def true_history() -> GroupHistory:
    """Two members have the partition in turn; the second gets some records again."""
    history = GroupHistory()
    for member, begin, end in (("m0", 0, 17), ("m1", 8, 40)):
        start = 1.0 + begin
        history.committed.append(Committed(S, member, begin, start, start + 0.1))
        for offset in range(begin, end):
            history.deliveries.append(Delivery(S, member, 1, offset, FINAL[S][offset]))
            if offset % 8 == 7:
                at = start + offset - begin
                history.commits.append(Commit(S, member, offset + 1, at, at + 0.5, OK))
    late = history.commits[1]  # that of the member that lost the partition
    assert (late.member, late.offset) == ("m0", 16)
    late.outcome = FAIL
    return history


def check(history: GroupHistory) -> list[str]:
    return [each.removeprefix(f"{S}: ").partition(":")[0] for each in check_group(history, FINAL)]


def of_m1(history: GroupHistory) -> list[Delivery]:
    return [each for each in history.deliveries if each.member == "m1"]


def another_record(history: GroupHistory) -> None:
    history.deliveries[3].record = "k.9.0"


def beyond_the_end(history: GroupHistory) -> None:
    history.deliveries.append(Delivery(S, "m1", 1, 40, "k.40.0"))


def a_step_is_missing(history: GroupHistory) -> None:
    history.deliveries.remove(of_m1(history)[3])


def twice(history: GroupHistory) -> None:
    history.deliveries.append(of_m1(history)[-1])


def out_of_order(history: GroupHistory) -> None:
    history.deliveries.reverse()


def nobody_got(history: GroupHistory) -> None:
    history.deliveries = [each for each in history.deliveries if not 17 <= each.offset < 20]
    for each in of_m1(history):
        each.assignment = each.offset  # no step is missing


def lost_at_failover(history: GroupHistory) -> None:
    history.committed.append(Committed(S, "the end", 32, 99.0, 99.1))


def a_late_commit_is_taken(history: GroupHistory) -> None:
    history.commits.append(Commit(S, "m0", 16, 50.0, 50.1, OK))


def a_read_offset_goes_back(history: GroupHistory) -> None:
    history.committed += [Committed(S, "a", 40, 60.0, 60.1), Committed(S, "b", 39, 61.0, 61.1)]


LIES: list[tuple[Callable[[GroupHistory], None], str]] = [
    (another_record, "group"),
    (beyond_the_end, "group"),
    (a_step_is_missing, "step"),
    (twice, "step"),
    (out_of_order, "step"),
    (nobody_got, "skipped"),
    (lost_at_failover, "back"),
    (a_late_commit_is_taken, "back"),
    (a_read_offset_goes_back, "back"),
]


def test_a_true_history_is_believed() -> None:
    assert check(true_history()) == []


@pytest.mark.parametrize(("lie", "kind"), LIES)
def test_each_lie_is_found(lie: Callable[[GroupHistory], None], kind: str) -> None:
    history = true_history()
    lie(history)
    assert kind in check(history)


def test_a_commit_without_an_answer_may_or_may_not_count() -> None:
    history = true_history()
    history.commits.append(Commit(S, "m0", 40, 70.0))
    assert check(history) == []
    history.committed.append(Committed(S, "the end", 40, 90.0, 90.1))
    assert check(history) == []
