"""The producer against a server that keeps sequences by the letter, over a network that loses,
delays, repeats and reorders."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from operations import LOST, NOBODY, no, ok, play, token

from polynya.client import (
    Appended,
    Batching,
    Outcome,
    ProducerFailed,
    ProducerFenced,
    ProducerGap,
    Refused,
    Retry,
    StreamClosed,
)
from polynya.client.messages import Broken, EffectResult, HttpRequest, HttpResponse
from polynya.client.producing import Names, Phase, ProducerCore
from polynya.client.streams import Subject, producer_names

RETRY = Retry(seconds=10.0, pause_seconds=0.1, pause_seconds_max=1.0)
FRESH = Names(stream="s", content_type="application/json", producer_id="p")
NAMED = Names(stream="s", content_type="application/json", producer_id="p", epoch=None, fresh=False)
SMALL = Batching(batch_records=2, linger_seconds=0.0, in_flight=3)


class Server:
    """One stream; producers as the protocol has them (R40 to R46)."""

    def __init__(self) -> None:
        self.records: list[object] = []
        self.states: dict[str, tuple[int, int]] = {}
        self.closed = False
        self.closed_by: tuple[str, ...] = ()

    def answer(self, request: HttpRequest) -> HttpResponse:
        name, epoch, number = (
            request.headers[key] for key in ("producer-id", "producer-epoch", "producer-seq")
        )
        if self.closed and self.closed_by == (name, epoch, number):
            return ok(
                204,
                stream_next_offset=self._offset(),
                producer_epoch=epoch,
                producer_seq=number,
                stream_closed="true",
            )
        if self.closed:
            return no(409, "STREAM_CLOSED", stream_next_offset=self._offset())
        known_epoch, last = self.states.get(name, (int(epoch), -1))
        if int(epoch) < known_epoch:
            return no(403, "PRODUCER_STALE", producer_epoch=str(known_epoch))
        if int(epoch) > known_epoch:
            if int(number):
                return no(400, "PRODUCER_EPOCH_START")
            last = -1
        if int(number) > last + 1:
            return no(
                409,
                "PRODUCER_GAP",
                producer_expected_seq=str(last + 1),
                producer_received_seq=number,
            )
        if int(number) == last + 1:
            self.records += json.loads(request.body or b"[]")
            last += 1
            status = 200 if request.body else 204
            if request.headers.get("stream-closed") == "true":
                self.closed, self.closed_by = True, (name, epoch, number)
        else:
            status = 204
        self.states[name] = (int(epoch), last)
        closed = {"stream_closed": "true"} if self.closed else {}
        return ok(
            status,
            stream_next_offset=self._offset(),
            producer_epoch=epoch,
            producer_seq=str(last),
            **closed,
        )

    def _offset(self) -> str:
        return token(len(self.records), len(self.records))


def run(core: ProducerCore, server: Server, *, seconds: float = 60.0, now: float = 0.0) -> float:
    """Everything due, answered at once and in order."""
    end = now + seconds
    while (request := core.due(now)) is not None or (
        (at := core.wake_at(now)) is not None and at <= end
    ):
        if request is None:
            now = max(now + 0.001, at)
            continue
        core.on_result(request, EffectResult(now, 1.0, server.answer(request)))
    return now


def fill(core: ProducerCore, count: int, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        core.offer(str(number).encode(), 0.0)


def test_records_become_batches_and_batches_receipts() -> None:
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    batches = [core.offer(str(number).encode(), 0.0) for number in range(5)]
    assert [batch.number for batch in batches] == [0, 0, 1, 1, 2]
    run(core, server)
    assert (
        server.records == [0, 1, 2, 3, 4]
        and core.receipts.applied == 5
        and core.is_idle
        and core.batches.buffered_bytes == 0
    )
    assert [settled.result for settled in core.receipts.settled] == [
        Appended(offset=token(end, end)) for end in (2, 4, 5)
    ]


def test_a_batch_waits_for_more_unless_it_is_flushed_or_full() -> None:
    core = ProducerCore(FRESH, Batching(batch_records=2, linger_seconds=1.0), RETRY)
    core.offer(b"1", 10.0)
    assert core.due(10.5) is None and core.wake_at(10.5) == 11.0
    core.offer(b"2", 10.5)
    assert core.due(10.5) is not None
    core.offer(b"3", 10.6)
    assert core.due(10.6) is None
    core.batches.flush()
    assert core.due(10.6) is not None


def test_no_more_requests_are_under_way_than_allowed() -> None:
    core = ProducerCore(FRESH, SMALL, RETRY)
    fill(core, 20)
    under_way = [core.due(0.0) for _ in range(5)]
    assert [request is not None for request in under_way] == [True] * 3 + [
        False
    ] * 2 and core.wake_at(0.0) is None


def test_the_buffer_is_bounded_but_one_record_always_fits() -> None:
    core, server = ProducerCore(FRESH, Batching(buffer_bytes=100), RETRY), Server()
    assert core.has_room(1000)
    core.offer(b"1" * 60, 0.0)
    assert core.has_room(30) and not core.has_room(60)
    run(core, server)
    assert core.has_room(60)


def test_what_overtook_waits_and_is_not_mistaken_for_a_loss() -> None:
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    fill(core, 6)
    first, second, third = (core.due(0.0) for _ in range(3))
    assert first and second and third
    core.on_result(third, EffectResult(0.0, 1.0, server.answer(third)))
    late = server.answer(second)  # refused before the first came, told after it was answered
    core.on_result(first, EffectResult(0.0, 1.0, server.answer(first)))
    core.on_result(second, EffectResult(0.0, 1.0, late))
    run(core, server)
    assert server.records == [0, 1, 2, 3, 4, 5] and core.receipts.failure is None


def test_a_pause_holds_up_what_comes_after() -> None:
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    fill(core, 6)
    first = core.due(0.0)
    assert first
    core.on_result(first, EffectResult(0.0, 1.0, no(503, "UNAVAILABLE", retry_after="2")))
    assert core.due(1.0) is None and 2.0 <= (core.wake_at(1.0) or 0) < 2.5
    run(core, server, now=3.0)
    assert server.records == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "in_between", [LOST, NOBODY, no(500, "INTERNAL", "unknown"), no(503, outcome=""), ok(200)]
)
def test_what_got_no_good_answer_is_sent_again_and_stored_once(
    in_between: HttpResponse | Broken,
) -> None:
    for applied in (True, False):
        core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
        fill(core, 2)
        request = core.due(0.0)
        assert request
        if applied:
            server.answer(request)
        core.on_result(request, EffectResult(0.0, 1.0, in_between))
        run(core, server)
        assert server.records == [0, 1] and core.receipts.applied == 2 and core.repeats == 1


def test_an_answer_to_another_append_is_not_taken_for_ones_own() -> None:
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    fill(core, 4)
    run_first = core.due(0.0)
    second = core.due(0.0)
    assert run_first and second
    of_first = server.answer(run_first)
    core.on_result(second, EffectResult(0.0, 1.0, of_first))
    assert core.receipts.applied == 0
    core.on_result(run_first, EffectResult(0.0, 1.0, of_first))
    run(core, server)
    assert server.records == [0, 1, 2, 3] and core.receipts.applied == 4


def test_a_refusal_ends_it_with_exact_counts() -> None:
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    fill(core, 2)
    run(core, server)
    server.closed = True
    fill(core, 6, begin=2)
    run(core, server)
    error = core.receipts.failure
    assert (
        isinstance(error, ProducerFailed)
        and isinstance(error.cause, StreamClosed)
        and error.outcome is Outcome.REFUSED
    )
    assert (error.applied, error.refused, error.unknown) == (2, 6, 0) and core.phase is Phase.FAILED
    with pytest.raises(ProducerFailed):
        core.offer(b"9", 0.0)
    assert core.due(100.0) is None and core.wake_at(100.0) is None


def test_of_what_was_lost_without_an_answer_nobody_can_tell() -> None:
    core = ProducerCore(FRESH, SMALL, RETRY)
    fill(core, 6)
    first, second = core.due(0.0), core.due(0.0)
    assert first and second
    core.on_result(first, EffectResult(0.0, 1.0, LOST))
    core.on_result(second, EffectResult(0.0, 1.0, NOBODY))
    now = 0.0
    while core.receipts.failure is None:
        now = core.wake_at(now) or now
        if (request := core.due(now)) is not None:
            core.on_result(request, EffectResult(now, 1.0, NOBODY))
    error = core.receipts.failure
    assert (error.applied, error.refused, error.unknown) == (
        0,
        4,
        2,
    ) and error.outcome is Outcome.UNKNOWN
    outcomes = [
        settled.result.outcome
        for settled in core.receipts.settled
        if isinstance(settled.result, ProducerFailed)
    ]
    assert outcomes == [Outcome.UNKNOWN, Outcome.REFUSED, Outcome.REFUSED]
    assert 9.0 < now <= RETRY.seconds


def test_a_later_answer_proves_that_the_earlier_ones_were_applied() -> None:
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    fill(core, 4)
    first, second = core.due(0.0), core.due(0.0)
    assert first and second
    server.answer(first)
    core.on_result(first, EffectResult(0.0, 1.0, LOST))
    core.on_result(second, EffectResult(0.0, 1.0, server.answer(second)))
    assert core.receipts.applied == 4 and core.is_idle


def test_a_server_that_forgot_is_told_apart_from_overtaking() -> None:
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    fill(core, 4)
    run(core, server)
    server.states.clear()
    fill(core, 2, begin=4)
    run(core, server)
    assert (
        core.receipts.failure
        and isinstance(core.receipts.failure.cause, ProducerGap)
        and core.receipts.failure.refused == 2
    )
    assert "deleted and recreated" in str(core.receipts.failure)


def test_a_named_producer_takes_the_next_epoch_and_fences_the_run_before() -> None:
    server = Server()
    runs = [ProducerCore(NAMED, SMALL, RETRY) for _ in range(3)]
    for number, core in enumerate(runs):
        fill(core, 2, begin=10 * number)
        run(core, server)
    assert [core.epoch for core in runs] == [0, 1, 2] and server.records == [0, 1, 10, 11, 20, 21]
    fill(runs[0], 2)
    run(runs[0], server)
    assert (
        runs[0].receipts.failure
        and isinstance(runs[0].receipts.failure.cause, ProducerFenced)
        and runs[0].receipts.failure.cause.epoch == 2
    )
    assert server.records == [0, 1, 10, 11, 20, 21]


def test_an_epoch_that_was_used_is_refused_instead_of_taken_for_repeats() -> None:
    server = Server()
    named = Names(
        stream="s", content_type="application/json", producer_id="p", epoch=3, fresh=False
    )
    for expected in ([0, 1], [0, 1]):
        core = ProducerCore(named, SMALL, RETRY)
        fill(core, 2)
        run(core, server)
        assert server.records == expected
    assert core.receipts.failure and "was already used up to sequence 0" in str(
        core.receipts.failure
    )


def test_two_runs_that_claim_one_epoch_at_the_same_time_do_not_both_believe_it() -> None:
    server = Server()
    one, other = ProducerCore(NAMED, SMALL, RETRY), ProducerCore(NAMED, SMALL, RETRY)
    for core in (one, other):
        fill(core, 2)
        probe = core.due(0.0)
        assert probe
        core.on_result(probe, EffectResult(0.0, 1.0, server.answer(probe)))
    run(one, server)
    run(other, server)
    assert one.receipts.applied == 2 and other.receipts.applied == 0
    assert (
        other.receipts.failure
        and other.receipts.failure.outcome is Outcome.UNKNOWN
        and "another producer with this id" in str(other.receipts.failure)
    )


@pytest.mark.parametrize("names", [FRESH, NAMED])
@pytest.mark.parametrize("last", [[], [b"8", b"9"]])
def test_a_producer_closes_its_stream_after_all_that_it_was_given(
    names: Names, last: list[bytes]
) -> None:
    core, server = ProducerCore(names, SMALL, RETRY), Server()
    fill(core, 5)
    batch = core.close_stream(last)
    batch.receipt = "end"
    run(core, server)
    end = core.receipts.take()[-1]
    assert (
        server.closed
        and server.records == [0, 1, 2, 3, 4, *map(int, last)]
        and core.receipts.applied == 5 + len(last)
    )
    assert (
        end.receipt == "end"
        and end.result == Appended(offset=core.receipts.offset, closed=True)
        and core.is_idle
    )
    assert core.close_stream([]) is batch, "it may be said twice"
    for again in (lambda: core.offer(b"1", 0.0), lambda: core.close_stream([b"1"])):
        with pytest.raises(StreamClosed, match="this producer closed the stream"):
            again()
    assert core.has_room(1 << 30) and core.receipts.failure is None


@pytest.mark.parametrize("last", [[], [b"9"]])
def test_a_close_is_stored_once_and_only_after_what_is_before_it(last: list[bytes]) -> None:
    """A closed stream refuses the repeats of earlier batches: the close does not leave before all
    of those are known to be applied."""
    core, server = ProducerCore(FRESH, SMALL, RETRY), Server()
    fill(core, 2)
    core.close_stream(last)
    first = core.due(0.0)
    assert first is not None and core.due(0.0) is None
    server.answer(first)
    core.on_result(first, EffectResult(0.0, 1.0, LOST))
    core.on_result(again := core.due(1.0), EffectResult(1.0, 1.0, server.answer(again)))
    closing = core.due(1.0)
    assert closing.headers["stream-closed"] == "true" and closing.headers["producer-seq"] == "1"
    server.answer(closing)
    core.on_result(closing, EffectResult(1.0, 1.0, LOST))
    run(core, server, now=2.0)
    assert (
        core.receipts.failure is None
        and core.receipts.applied == 2 + len(last)
        and server.records == [0, 1, *map(int, last)]
        and server.closed
    )


@pytest.mark.parametrize("names", [FRESH, NAMED])
def test_a_stream_that_is_closed_already_needs_no_second_close(names: Names) -> None:
    """Run the program that closed the stream again. New last records are refused: they cannot have
    been stored."""
    server = Server()
    server.closed = True
    core = ProducerCore(names, SMALL, RETRY)
    core.close_stream([])
    run(core, server)
    (end,) = core.receipts.take()
    assert (
        core.receipts.failure is None
        and isinstance(end.result, Appended)
        and end.result.closed
        and end.result.offset == token(0, 0)
    )
    core = ProducerCore(names, SMALL, RETRY)
    core.close_stream([b"1"])
    run(core, server)
    assert (
        core.receipts.failure is not None
        and isinstance(core.receipts.failure.cause, StreamClosed)
        and core.receipts.failure.refused == 1
    )


def test_a_close_that_cannot_be_is_refused_at_once() -> None:
    core = ProducerCore(FRESH, SMALL, RETRY)
    with pytest.raises(ValueError, match="the limit is"):
        core.close_stream([b"1" * (20 << 20), b"1" * (20 << 20)])
    raw = ProducerCore(Names(stream="s", content_type="text/plain", producer_id="p"), SMALL, RETRY)
    with pytest.raises(ValueError, match="empty"):
        raw.close_stream([b"", b""])
    core.close()
    with pytest.raises(ValueError, match="closed"):
        core.close_stream([])


@pytest.mark.parametrize(
    "wrong",
    [{"batch_bytes": 0}, {"batch_records": -1}, {"in_flight": 0}, {"buffer_bytes": -5}, {"linger_seconds": -0.1},
     {"linger_seconds": float("nan")}, {"linger_seconds": float("inf")}],
)  # fmt: skip
def test_a_batching_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        Batching(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [-1, 2**53])
@pytest.mark.parametrize("name", ["", "billing"])
def test_an_epoch_that_no_server_takes_is_refused(epoch: int, name: str) -> None:
    stream = Subject("s", "application/json", RETRY)
    refused = play(producer_names(stream, name, epoch, "drawn"), [])
    assert isinstance(refused.error, ValueError) and "epoch must be between 0 and" in str(
        refused.error
    )
    assert play(producer_names(stream, name, 7, "drawn"), []).result.epoch == 7


def test_a_probe_is_repeated_until_it_is_answered() -> None:
    core, server = ProducerCore(NAMED, SMALL, RETRY), Server()
    fill(core, 2)
    for outcome in (NOBODY, LOST, no(503, "UNAVAILABLE")):
        probe = core.due(100.0)
        assert probe and core.due(100.0) is None and core.wake_at(100.0) is None
        core.on_result(probe, EffectResult(0.0, 1.0, outcome))
    run(core, server)
    assert server.records == [0, 1]


def test_what_is_no_record_is_refused_at_once() -> None:
    core = ProducerCore(FRESH, SMALL, RETRY)
    with pytest.raises(ValueError, match="the limit is"):
        core.offer(b"x" * (33 << 20), 0.0)
    with pytest.raises(ValueError, match="empty"):
        core.offer(b"", 0.0)
    assert core.is_idle


def test_abandoning_leaves_what_was_under_way_unknown() -> None:
    core = ProducerCore(FRESH, SMALL, RETRY)
    fill(core, 6)
    core.due(0.0)
    core.abandon("enough")
    assert core.receipts.failure and (
        core.receipts.failure.unknown,
        core.receipts.failure.refused,
    ) == (2, 4)
    idle = ProducerCore(FRESH, SMALL, RETRY)
    idle.abandon("enough")
    assert idle.receipts.failure and isinstance(idle.receipts.failure.cause, Refused)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_every_record_is_stored_once_and_in_order_or_the_error_counts_exactly(seed: int) -> None:
    chance = random.Random(seed)
    core = ProducerCore(
        FRESH, Batching(batch_records=3, linger_seconds=0.05, in_flight=chance.randint(1, 5)), RETRY
    )
    server, given, now = Server(), 0, 0.0
    total = chance.randint(1, 40)
    on_the_way: list[HttpRequest] = []
    answers: list[tuple[HttpRequest, HttpResponse | Broken]] = []
    close_at = chance.randint(0, 60) if chance.random() < 0.2 else -1
    for step in itertools.count():
        assert step < 10_000, "it must come to an end"
        server.closed |= step == close_at
        act = chance.randint(0, 4)
        if act == 0 and given < total:
            try:
                core.offer(str(given).encode(), now)
                given += 1
            except ProducerFailed:
                total = given
        elif act == 1 and (request := core.due(now)) is not None:
            on_the_way.append(request)
        elif act == 2 and on_the_way:
            request = on_the_way.pop(chance.randrange(len(on_the_way)))
            answers.append((request, arrive(chance, server, request)))
        elif act == 3 and answers:
            request, answer = answers.pop(chance.randrange(len(answers)))
            core.on_result(request, EffectResult(now, chance.random(), answer))
        elif act == 4:
            now += chance.random() / 10
        if given >= total and not on_the_way and not answers:
            core.batches.flush()
            if core.is_idle:
                break
    assert server.records == list(range(len(server.records))), "once each, and in order"
    if core.receipts.failure is None:
        assert len(server.records) == core.receipts.applied == given
    else:
        error = core.receipts.failure
        assert error.applied <= len(server.records) <= error.applied + error.unknown
        assert error.applied + error.refused + error.unknown == given


def arrive(chance: random.Random, server: Server, request: HttpRequest) -> HttpResponse | Broken:
    """A request is lost, or its answer is, or it arrives twice, or all goes well."""
    fate = chance.random()
    if fate < 0.1:
        return chance.choice([LOST, NOBODY])
    answer = server.answer(request)
    if fate < 0.2:
        return LOST
    return server.answer(request) if fate < 0.3 else answer


def test_what_waits_for_room_is_refused_when_the_producer_is_closed() -> None:
    core = ProducerCore(FRESH, Batching(buffer_bytes=100), RETRY)
    core.offer(b'"%s"' % (b"x" * 80), 0.0)
    assert not core.has_room(50) and not core.is_over
    core.close()
    assert core.has_room(50), "nobody waits for what will be refused"
    with pytest.raises(ValueError, match="the producer is closed"):
        core.offer(b"1", 0.0)
    assert not core.is_over, "what was taken before leaves yet"
    run(core, Server())
    assert core.is_over and core.receipts.applied == 1
