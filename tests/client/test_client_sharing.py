"""Workers of a group: claims, turns, acknowledgements, and leases that end, played without a
server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from operations import no, ok, play, token

from polynya.client import Retry, StreamExists
from polynya.client.attempts import Attempts
from polynya.client.leases import Job
from polynya.client.messages import Broken, Deliver, EffectResult, HttpRequest, HttpResponse, Pause
from polynya.client.worker_settings import WorkerSettings
from polynya.client.workers import ACK_SECONDS, TURN_SECONDS, Worker, disband

RETRY = Retry(seconds=5.0)
PLAN = WorkerSettings(group="g", sources=("s",), lanes=1)


class Server:
    """A server with one lane and one stream `s` of one-byte records, and a script of faults."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.acked = 0
        self.holder = ""
        self.generation = 0
        self.acks: list[dict[str, Any]] = []
        self.fenced = False
        self.trimmed = 0
        self.gone = False
        self.lost = 0  # answers to claims that are lost from now on
        self.retries: list[dict[str, Any]] = []

    def answer(self, request: HttpRequest) -> HttpResponse | Broken:
        path = urlsplit(request.target).path
        body = msgspec.json.decode(request.body) if request.body else {}
        if path.endswith("/claim"):
            return self._claim(body)
        if path.endswith("/ack"):
            return self._ack(request, body)
        if path.endswith("/retry"):
            return self._retry(request, body)
        if path == "/v1/stream/s":
            return self._read(request)
        if request.method == "GET":
            # the wake stream is quiet
            return ok(204, stream_next_offset=token(0, 0), stream_up_to_date="true")
        return ok(200, stream_next_offset=token(0, 0))

    def _claim(self, body: dict[str, Any]) -> HttpResponse | Broken:
        holder = f"{body['worker']} {body['claim_id']}"
        if self.holder and self.holder != holder:
            return no(409, "ALREADY_CLAIMED", outcome="")
        if self.acked >= self.records or self.gone:
            return no(409, "NO_PENDING_WORK", outcome="")
        self.generation += self.holder != holder
        self.holder = holder
        if self.lost:
            self.lost -= 1
            return Broken(True, "the connection broke")
        link = {
            "path": "s",
            "acked_offset": at(self.acked),
            "tail_offset": at(self.records),
            "has_pending": True,
            "link_type": "glob",
        }
        claim = {
            "wake_id": "w",
            "generation": self.generation,
            "token": f"t{self.generation}",
            "streams": [link],
            "lease_ttl_ms": 30_000,
            "failure": self._failure(),
        }
        return ok(200, msgspec.json.encode(claim))

    def _failure(self) -> dict[str, Any] | None:
        at_cursor = [each for each in self.retries if each["offset"] == at(self.acked + 1)]
        if not at_cursor:
            return None
        return {"stream": "s", "offset": at(self.acked), "attempts": len(at_cursor)}

    def _retry(self, request: HttpRequest, body: dict[str, Any]) -> HttpResponse:
        assert request.headers["authorization"] == f"Bearer t{body['generation']}"
        if self.gone:
            return no(409, "INVALID_OFFSET", outcome="")
        for ack in body["acks"]:
            self.acked = int(ack["offset"][:16])
        self.retries.append(body)
        self.holder = ""
        is_dead = "record" in body
        self.acked += is_dead
        return ok(200, msgspec.json.encode({"retry_after_ms": 0 if is_dead else 1000}))

    def _ack(self, request: HttpRequest, body: dict[str, Any]) -> HttpResponse:
        assert request.headers["authorization"] == f"Bearer t{body['generation']}"
        if self.fenced or body["generation"] != self.generation:
            return no(409, "FENCED", outcome="")
        if self.gone and body["acks"]:
            return no(409, "INVALID_OFFSET", outcome="")
        self.acks.append(body)
        for ack in body["acks"]:
            self.acked = int(ack["offset"][:16])
        if body["done"]:
            self.holder = ""
        return ok(200, b'{"ok":true,"next_wake":false}')

    def _read(self, request: HttpRequest) -> HttpResponse:
        begin = int(parse_qs(urlsplit(request.target).query)["offset"][0][:16])
        if self.gone:
            return no(404, "NOT_FOUND")
        if begin < self.trimmed:
            return no(410, "TRIMMED", stream_retained_offset=at(self.trimmed))
        end = min(begin + 10, self.records)
        body = b"[" + b",".join([b"%d" % (number % 10) for number in range(begin, end)]) + b"]"
        more = {"stream_up_to_date": "true"} if end == self.records else {}
        return ok(200, body, content_type="application/json", stream_next_offset=at(end), **more)


def at(record: int) -> str:
    return token(record, 2 * record)


def jobs(
    worker: Worker, server: Server, *, seconds_each: float = 0.0, paused: list[float] | None = None
) -> Iterator[Job]:
    """Yield the jobs of a worker, as a shell would. Each takes `seconds_each` to handle."""
    operation, now = worker.work(wait=False), 0.0
    effect = next(operation)
    while True:
        try:
            if isinstance(effect, Deliver):
                assert isinstance(effect.value, Job)
                yield effect.value
                now += seconds_each
                effect = operation.send(EffectResult(now, 0.0))
            else:
                if paused is not None and isinstance(effect, Pause):
                    paused.append(effect.seconds)
                effect = operation.send(
                    EffectResult(
                        now,
                        0.0,
                        server.answer(effect.request) if hasattr(effect, "request") else None,
                    )
                )
        except StopIteration:
            return


def test_a_record_whose_handler_raises_waits_longer_each_time() -> None:
    server, attempts = Server(3), Attempts()
    paused: list[float] = []
    for attempt in range(1, 8):
        worker = Worker(PLAN, f"w{attempt}", RETRY, attempts=attempts)
        given = jobs(worker, server, paused=paused)
        job = next(given)
        assert (job.attempt, job.data) == (attempt, b"0")
        server.holder = ""  # the handler raises, and the worker leaves
    assert paused == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    del given
    worker = Worker(PLAN, "last", RETRY, attempts=attempts)
    assert [job.attempt for job in jobs(worker, server)] == [8, 1, 1]
    assert Attempts().begin(("g", "s", 0)) == 1 and attempts.begin(("g", "s", 0)) == 1


def test_a_job_that_is_given_back_ends_the_turn_and_comes_again_until_its_last_attempt() -> None:
    plan = WorkerSettings(group="g", sources=("s",), lanes=1, max_attempts=3)
    server, done = Server(5), []
    seen: list[tuple[int, bool]] = []
    for _ in range(3):
        # each worker is in a process of its own, and ends because its lane pauses
        for job in jobs(Worker(plan, "w", RETRY, attempts=Attempts()), server):
            if job.data == b"2":
                seen.append((job.attempt, job.is_last_attempt))
                job.retry(error="boom", after=5.0)
            else:
                done.append(job.data)
    assert seen == [(1, False), (2, False), (3, True)] and done == [b"0", b"1", b"3", b"4"]
    assert [each["acks"] for each in server.retries] == [[{"stream": "s", "offset": at(2)}], [], []]
    assert [each.get("record") for each in server.retries] == [None, None, 2]
    assert {(each["error"], each["after_ms"], each["offset"]) for each in server.retries} == {
        ("boom", 5000, at(3))
    }


def test_a_job_whose_stream_was_deleted_is_not_given_back() -> None:
    server = Server(3)
    given = jobs(Worker(PLAN, "me", RETRY, attempts=Attempts()), server)
    next(given).ack()
    next(given).retry()
    server.gone = True
    assert list(given) == [] and server.holder == "" and not server.retries


def test_an_exception_in_the_block_gives_the_job_back() -> None:
    server, attempts = Server(2), Attempts()
    for number in range(1, 3):
        worker = Worker(PLAN, "me", RETRY, attempts=attempts)
        paused: list[float] = []
        job = next(jobs(worker, server, paused=paused))
        assert job.attempt == number and paused == [], "the server pauses, not the client"
        closing_request = worker.closing_request(ValueError("no address"))
        assert (
            closing_request and server.answer(closing_request).status == 200 and server.holder == ""
        )
        assert server.retries[-1]["error"] == "ValueError: no address"
        assert "after_ms" not in server.retries[-1]
    worker = Worker(PLAN, "me", RETRY, attempts=attempts)
    next(jobs(worker, server))
    closing_request = worker.closing_request(KeyboardInterrupt())
    assert closing_request and closing_request.target.endswith("/ack"), "a stop is no failure"


def test_a_job_is_given_back_or_acknowledged() -> None:
    worker = Worker(PLAN, "me", RETRY, attempts=Attempts())
    job = next(jobs(worker, Server(2)))
    with pytest.raises(ValueError, match=r"after=-1 is invalid; expected 0 to 86400 seconds"):
        job.retry(after=-1)
    job.retry()
    job.ack()
    with pytest.raises(ValueError, match="the job was acknowledged"):
        job.retry()
    closing_request = worker.closing_request(ValueError("later"))
    assert closing_request and closing_request.target.endswith("/ack")
    with pytest.raises(ValueError, match="max_attempts= must be 1 to 1000"):
        WorkerSettings(group="g", sources=("s",), max_attempts=0)


def test_every_record_is_given_and_acknowledged_at_the_end_of_the_turn() -> None:
    server = Server(25)
    given = list(jobs(Worker(PLAN, "me", RETRY), server))
    assert [job.offset for job in given] == [at(number + 1) for number in range(25)] and given[
        3
    ].value == 3
    assert [(ack["acks"], ack["done"]) for ack in server.acks] == [
        ([{"stream": "s", "offset": at(25)}], True)
    ]


def test_cursors_move_from_time_to_time_and_a_turn_ends() -> None:
    server = Server(60)
    given = list(jobs(Worker(PLAN, "me", RETRY), server, seconds_each=0.3))
    assert [job.offset for job in given] == [at(number + 1) for number in range(60)], (
        "over several turns, once each"
    )
    turns = sum(ack["done"] for ack in server.acks)
    assert turns == pytest.approx(60 * 0.3 / TURN_SECONDS, abs=1)
    assert len(server.acks) >= 60 * 0.3 / ACK_SECONDS / 2


def test_a_claim_whose_answer_is_lost_is_repeated() -> None:
    server = Server(5)
    server.lost = 1
    worker = Worker(PLAN, "me", RETRY)
    assert [job.offset for job in jobs(worker, server)] == [at(number + 1) for number in range(5)]
    assert server.generation == 1


def test_a_worker_that_dies_leaves_what_it_did_not_acknowledge_to_the_next() -> None:
    server = Server(10)
    worker = Worker(PLAN, "dies", RETRY)
    dead = jobs(worker, server, seconds_each=0.3)
    done = [next(dead).offset for _ in range(6)]
    assert server.acked == 4, "once a second"
    assert list(jobs(Worker(PLAN, "waits", RETRY), server)) == [], "the lease still runs"
    server.holder = ""
    again = [job.offset for job in jobs(Worker(PLAN, "next", RETRY), server)]
    assert again[0] == at(5) and set(done) | set(again) == {at(number + 1) for number in range(10)}


def test_a_lease_is_kept_while_a_record_is_handled_and_not_for_too_long() -> None:
    worker = Worker(PLAN, "me", RETRY, handle_seconds=10.0)
    given = jobs(worker, Server(2), seconds_each=2.0)
    assert worker.lease_to_keep(0.0) is None, "nothing is in hand"
    first = next(given)
    assert worker.lease_to_keep(9.9) is first.lease and worker.lease_to_keep(10.0) is None
    assert next(given).lease is first.lease
    assert worker.lease_to_keep(11.9) is first.lease and worker.lease_to_keep(12.0) is None, (
        "each record has its own time"
    )
    assert list(given) == [] and worker.lease_to_keep(4.0) is None


def test_a_farewell_acknowledges_what_was_handled_and_gives_the_lease_back() -> None:
    server = Server(10)
    worker = Worker(PLAN, "me", RETRY)
    given = jobs(worker, server)
    for _ in range(3):
        job = next(given)
    closing_request = worker.closing_request()
    assert closing_request and server.answer(closing_request).status == 200
    assert server.acked == 2 and server.holder == "" and worker.closing_request() is None, (
        "the third was not come back from"
    )
    worker = Worker(PLAN, "me", RETRY)
    job = next(jobs(worker, server))
    assert job.offset == at(3)
    job.ack()
    closing_request = worker.closing_request()
    assert closing_request and server.answer(closing_request).status == 200 and server.acked == 3


def test_a_lost_lease_ends_the_turn_and_not_the_worker() -> None:
    server = Server(10)
    worker = Worker(PLAN, "me", RETRY)
    given = jobs(worker, server)
    job = next(given)
    job.lease.beaten(no(409, "FENCED"))
    server.holder = ""
    assert next(given).offset == at(1), "given again: it was not acknowledged"
    assert worker.turns_lost == 1
    server.fenced = True
    assert worker.lease is not None
    worker.lease.beaten(ok(200))
    assert not worker.lease.lost


def test_records_are_divided_between_lanes_and_none_is_left_over() -> None:
    for by in ("record", "stream"):
        plan = WorkerSettings(group="g", sources=("a/*",), lanes=5, by=by)  # type: ignore[arg-type]
        lanes = [
            plan.lane_of(stream, number)
            for stream in ("a/1", "a/2", "a/3")
            for number in range(100)
        ]
        assert set(lanes) <= set(range(5))
        assert len({plan.lane_of("a/1", number) for number in range(100)}) == (
            5 if by == "record" else 1
        )


def test_a_lane_passes_over_the_records_of_the_others() -> None:
    plan = WorkerSettings(group="g", sources=("s",), lanes=2)
    server = Server(9)
    worker = Worker(plan, "me", RETRY)
    mine = [job.offset for job in jobs(worker, server)]
    # the one server stands for both lanes here, so the first to claim takes all and passes over
    # half
    first = plan.lanes
    assert first == 2 and len(mine) in (4, 5) and server.acked == 9


def test_what_was_trimmed_or_deleted_does_not_hold_up_a_worker() -> None:
    server = Server(10)
    server.trimmed = 7
    assert [job.offset for job in jobs(Worker(PLAN, "me", RETRY), server)] == [at(8), at(9), at(10)]
    server = Server(10)
    given = jobs(Worker(PLAN, "me", RETRY), server)
    next(given)
    server.gone = True
    assert len(list(given)) == 9, "the page was there already"
    assert server.holder == ""


def test_a_group_with_other_sources_is_refused() -> None:
    exists = [
        ok(201, stream_next_offset=token(0, 0)),
        ok(200, stream_next_offset=token(0, 0)),
        no(409, "SUBSCRIPTION_ALREADY_EXISTS"),
    ]
    assert isinstance(play(Worker(PLAN, "me", RETRY).join(), exists).error, StreamExists)


def test_a_group_is_disbanded_lane_by_lane() -> None:
    played = play(
        disband("g", RETRY),
        [ok(200), ok(204), ok(200), ok(204), no(404, "SUBSCRIPTION_NOT_FOUND"), ok(204)],
    )
    assert played.result == 2 and played.targets[-1] == "/v1/stream/groups/g"


@pytest.mark.parametrize(
    "plan",
    [
        {"group": ""}, {"group": "a/b"}, {"sources": ()}, {"sources": ("a/*", "b/*")}, {"lanes": 0}, {"lanes": 65}, {"by": "day"},
        {"sources": tuple(map(str, range(1001)))},
    ],
)  # fmt: skip
def test_what_is_no_group_is_said(plan: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"group|lanes|by="):
        WorkerSettings(**{"group": "g", "sources": ("s",), **plan})
