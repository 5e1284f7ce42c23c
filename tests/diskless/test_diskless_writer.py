"""The writer of diskless streams: when a pack closes, its content, and the clients' responses."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from worlds.diskless import LOG_SECONDS, PUT_SECONDS, DisklessWorld, diskless_story

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.diskless import buffer
from polynya.stream.replies import Code, Reply

INTERVAL = 0.25


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_append_leaves_at_once_and_later_ones_after_the_interval() -> None:
    async def work(world: DisklessWorld) -> None:
        began = now()
        first = [world.append("a", b"1"), world.append("b", b"2")]
        await asyncio.gather(*first)
        assert now() - began == pytest.approx(PUT_SECONDS + LOG_SECONDS)
        second = world.append("a", b"3")
        await asyncio.sleep(0.1)
        third = world.append("a", b"4")
        await asyncio.gather(second, third)
        assert [round(at - began, 3) for at, _ in world.store.puts] == [0.0, 0.25]
        assert now() - began == pytest.approx(0.25 + PUT_SECONDS + LOG_SECONDS)
        await asyncio.sleep(5)
        idle = now()
        await world.append("a", b"5")
        assert now() - idle == pytest.approx(PUT_SECONDS + LOG_SECONDS), "idle: at once again"
        assert world.log.applied == {"a": [b"1", b"3", b"4", b"5"], "b": [b"2"]}
        assert world.footer(0) == [("a", 1), ("b", 1)]
        assert world.footer(1) == [("a", 2)]

    diskless_story(work)


def test_a_pack_closes_at_its_size_and_at_most_four_are_stored_at_once() -> None:
    async def work(world: DisklessWorld) -> None:
        world.store.seconds = lambda number: 1.0
        began = now()
        payload = b"x" * 1000
        outcomes = [world.append("a", payload + b"%d" % number) for number in range(12)]
        await asyncio.sleep(0.5)
        assert len(world.store.puts) == 4, "the others wait for a put to end"
        await asyncio.gather(*outcomes)
        assert world.store.open_most == 4
        assert now() - began < 3.1
        assert world.log.applied["a"] == [payload + b"%d" % number for number in range(12)]

    diskless_story(work, pack_bytes=2000)


@pytest.mark.parametrize("streams", [1, 10_000])
def test_an_interval_takes_one_put_for_any_number_of_streams(streams: int) -> None:
    intervals = 8

    async def work(world: DisklessWorld) -> None:
        began = now()
        for number in range(intervals * 2):
            names = range(number, streams, intervals * 2) if streams > 1 else range(1)
            for name in names:
                world.append(f"s{name}", b"x", group=1 + name % 16)
            await asyncio.sleep(INTERVAL / 2)
        while world.writer.counters.waiting_now:
            await asyncio.sleep(INTERVAL)
        assert set(world.codes.values()) == {Code.OK}
        assert len(world.outcomes) == max(streams, 2 * intervals)
        assert len(world.store.puts) <= 1.2 * intervals
        last = max(time for time, _, _ in world.outcomes)
        assert last <= began + (intervals + 0.5) * INTERVAL + PUT_SECONDS + LOG_SECONDS + 0.001

    diskless_story(work)


def test_replies_keep_the_order_of_packs_whatever_put_ends_first() -> None:
    async def work(world: DisklessWorld) -> None:
        world.store.seconds = lambda number: 1.0 if number == 1 else 0.01
        world.append("a", b"1")
        world.append("b", b"1", group=2)
        await asyncio.sleep(0.3)
        world.append("a", b"2")
        await world.append("c", b"2", group=3)
        assert now() < 1000.8, "the third group is in no pack before"
        await asyncio.sleep(2)
        assert world.log.applied["a"] == [b"1", b"2"]
        assert [what for _, what, _ in world.outcomes] == ["c 2", "a 1", "b 1", "a 2"]

    diskless_story(work)


def test_a_slow_group_delays_only_its_own_answers() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.seconds = lambda group: 3.0 if group == 2 else LOG_SECONDS
        began = now()
        slow, more = world.append("b", b"1", group=2), world.append("b", b"2", group=2)
        times = []
        for number in range(8):
            await world.append("a", b"%d" % number)
            times.append(round(now() - began, 2))
            await asyncio.sleep(0.25)
        assert times[0] == 0.05
        assert times[-1] < 8 * 0.35
        await asyncio.gather(slow, more)
        assert set(world.codes.values()) == {Code.OK}

    diskless_story(work)


def test_a_group_without_a_leader_owns_no_pack_and_delays_only_its_own_answers() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.leaderless = {1, 3}
        began = now()
        waiting = world.append("a", b"1")
        await world.append("b", b"1", group=2)
        assert now() - began == pytest.approx(PUT_SECONDS + LOG_SECONDS)
        assert not waiting.done()
        alone = world.append("c", b"1", group=3)
        await asyncio.sleep(1)
        assert [owner_group for owner_group, _ in world.log.intents] == [2, 2], (
            "also of a pack of group 3 alone"
        )
        world.log.leaderless = set()
        await asyncio.gather(waiting, alone)
        assert world.log.applied == {"a": [b"1"], "b": [b"1"], "c": [b"1"]}

    diskless_story(work)


def test_a_pack_whose_owner_does_not_answer_goes_to_another_owner_after_a_second() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.seconds = lambda group: 20.0 if group == 1 else LOG_SECONDS
        began = now()
        slow = world.append("a", b"1")
        await world.append("b", b"1", group=2)
        assert now() - began == pytest.approx(1 + PUT_SECONDS + LOG_SECONDS)
        assert len(world.in_flight) == 1, "the first object is left to the collector"
        later = now()
        again = world.append("a", b"2")
        await world.append("b", b"2", group=2)
        assert now() - later < 0.4, "the slow group is avoided for a while"
        await asyncio.gather(slow, again)
        assert world.log.applied == {"a": [b"1", b"2"], "b": [b"1", b"2"]}
        assert [owner_group for owner_group, _ in world.log.intents] == [2, 2]

    diskless_story(work)


def test_without_a_better_owner_an_intent_waits_for_its_group() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.seconds = lambda group: 4.0
        world.log.leaderless = {2, 3, 4, 5}
        assert isinstance(await world.append("a", b"1"), Reply)
        assert len(world.store.puts) == 1
        world.log.leaderless = set()
        began = now()
        assert isinstance(await world.append("a", b"2"), Reply), "all are slow"
        assert now() - began < 2 + 4 + 4 + 1
        assert len(world.store.puts) == 4, "three homes are tried at most"

    diskless_story(work)


def test_an_unknown_outcome_is_repeated_and_applied_once() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.how = lambda number: {1: "after", 2: "lost", 3: "before"}.get(number, "")
        first = world.append("a", b"1")
        await asyncio.sleep(0.3)
        second = world.append("a", b"2")
        outcomes = await asyncio.gather(first, second)
        assert [(each.record, each.byte) for each in outcomes if isinstance(each, Reply)] == [
            (1, 1),
            (2, 2),
        ]
        assert world.log.applied["a"] == [b"1", b"2"]
        numbers = [command.sequence for _, _, command in world.log.commits]
        assert numbers == [1, 1, 1, 1, 2], "a repeat has the same number"
        assert len({command.writer for _, _, command in world.log.commits}) == 1

    diskless_story(work)


@pytest.mark.parametrize(
    ("how", "fault"), [("before", Unavailable), ("lost", OutcomeUnknown), ("after", OutcomeUnknown)]
)
def test_a_log_that_fails_for_half_a_minute_is_given_up(how: str, fault: type[Exception]) -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.how = lambda number: how if now() < 1060 else ""
        began = now()
        outcome = await world.append("a", b"1")
        assert type(outcome) is fault
        assert 28 < now() - began <= 31
        await asyncio.sleep(40)
        assert isinstance(await world.append("a", b"2"), Reply), "later appends go on"

    diskless_story(work)


def test_a_store_that_fails_refuses_after_half_a_minute_and_recovers_alone() -> None:
    async def work(world: DisklessWorld) -> None:
        world.store.how = lambda number: "before" if now() < 1040 else ""
        lost = world.append("a", b"1")
        await asyncio.sleep(15)
        later = world.append("a", b"2")
        outcome = await lost
        assert isinstance(outcome, Unavailable)
        assert "503 Slow Down" in str(outcome)
        assert isinstance(await later, Reply)
        assert world.log.applied == {"a": [b"2"]}
        assert world.writer.counters.failures == 1

    diskless_story(work)


def test_a_put_that_happened_untold_is_repeated_with_its_key() -> None:
    async def work(world: DisklessWorld) -> None:
        world.store.how = lambda number: "after" if number == 1 else ""
        assert isinstance(await world.append("a", b"1"), Reply)
        assert len(world.store.objects) == 1
        assert len({key for _, key in world.store.puts}) == 1
        assert len(world.store.puts) == 2

    diskless_story(work)


def test_beyond_the_limit_of_memory_appends_are_refused_until_there_is_room() -> None:
    async def work(world: DisklessWorld) -> None:
        world.store.seconds = lambda number: 2.0
        taken = [world.append("a", b"x" * 1000) for _ in range(7)]
        refused = await world.append("a", b"y" * 1000)
        assert isinstance(refused, Reply)
        assert refused.code == Code.MEMORY_PRESSURE
        assert refused.detail is None
        world.writer._store_is_full = lambda: True
        full = await world.append("a", b"y" * 1000)
        assert isinstance(full, Reply)
        assert full.detail is True
        too_large = await world.append("a", b"z" * 10_001)
        assert isinstance(too_large, Reply)
        assert (too_large.code, too_large.byte) == (Code.APPEND_EXCEEDS_MEMORY_LIMIT, 10_000)
        await asyncio.gather(*taken)
        assert isinstance(await world.append("a", b"y" * 1000), Reply)
        assert world.writer.counters.refused == 2

    diskless_story(work, bytes_max=10_000)


def test_appends_that_the_group_is_not_ready_for_wait_in_order_and_others_do_not() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.judge = lambda command, at: (
            Code.NOT_YET if command.name == "a" and at < 1001 else Code.OK
        )
        held = [world.append("a", b"1"), world.append("a", b"2")]
        other = world.append("b", b"1")
        await asyncio.sleep(0.3)
        held.append(world.append("a", b"3"))
        beside = world.append("b", b"2")
        await asyncio.gather(other, beside)
        assert now() < 1000.5
        await asyncio.gather(*held)
        assert now() == pytest.approx(1001, abs=0.1)
        assert world.log.applied == {"a": [b"1", b"2", b"3"], "b": [b"1", b"2"]}
        assert len(world.store.puts) == 2, "again from the same packs"

    diskless_story(work)


def test_a_stream_that_never_gets_ready_is_refused_after_five_seconds() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.judge = lambda command, at: (
            Code.EVICTED if command.name == "a" else Code.CLOSED if command.close else Code.OK
        )
        outcome = await world.append("a", b"1")
        assert isinstance(outcome, Unavailable)
        assert 5 <= now() - 1000 < 5.3
        assert isinstance(await world.append("b", b"1"), Reply)

    diskless_story(work)


def test_refusals_and_closes_are_answered_one_by_one() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.judge = lambda command, at: (
            Code.SEQ_REGRESSION if command.stream_seq == "0" else Code.OK
        )
        world.append("a", b"1")
        world.append("a", b"2", stream_seq="0")
        world.append("a", b"", close=True)
        await world.append("a", b"3", close=True)
        assert world.codes == {
            "a 1": Code.OK,
            "a 2": Code.SEQ_REGRESSION,
            "a ": Code.OK,
            "a 3": Code.OK,
        }
        assert world.footer(0) == [("a", 3)]
        await asyncio.sleep(1)
        await world.append("a", b"", close=True)
        assert len(world.store.puts) == 1, "a close needs no object"
        assert [list(groups) for groups in world.log.packs.values()] == [[1]]

    diskless_story(work)


def test_a_damaged_payload_fails_alone_with_what_follows_in_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "SLICE_BYTES_MAX", 2)

    async def work(world: DisklessWorld) -> None:
        outcomes = [world.append("a", b"1"), world.append("b", b"1")]
        taken = world.writer._buffer.slices[0].taken[0]
        batch = taken.command.batch
        assert batch is not None
        taken.command = structs.replace(taken.command, batch=structs.replace(batch, crc=1))
        outcomes += [world.append("a", b"22"), world.append("b", b"22")]
        await asyncio.gather(*outcomes)
        assert world.log.applied == {"b": [b"1", b"22"]}
        codes = world.codes
        assert codes["b 1"] == codes["b 22"] == Code.OK
        assert codes["a 22"] is Unavailable

    diskless_story(work)


def test_a_stop_stores_what_was_taken() -> None:
    async def work(world: DisklessWorld) -> None:
        await world.append("a", b"1")
        late = world.append("a", b"2")
        await world.writer.close()
        assert isinstance(await late, Reply)
        assert now() - 1000 < 0.2, "without waiting for the interval"
        assert isinstance(await world.append("a", b"3"), Unavailable)
        assert world.log.applied == {"a": [b"1", b"2"]}

    diskless_story(work)


def test_a_stop_ends_when_the_store_or_the_log_does_not() -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.how = lambda number: "never"
        unknown = world.append("a", b"1")
        await asyncio.sleep(1)
        queued = world.append("a", b"2")
        await asyncio.sleep(1)
        world.store.seconds = lambda number: 1000.0
        stored = [world.append("b", b"%d" % number) for number in range(6)]
        began = now()
        await world.writer.close()
        assert now() - began == pytest.approx(5.0, abs=0.01)
        assert isinstance(await unknown, OutcomeUnknown)
        assert isinstance(await queued, Unavailable)
        assert {type(await each) for each in stored} == {Unavailable}

    diskless_story(work)


@pytest.mark.parametrize("ahead_ms", [7_200_000, -7_200_000])
def test_a_group_whose_log_time_is_hours_away_takes_commits(ahead_ms: int) -> None:
    async def work(world: DisklessWorld) -> None:
        world.log.ahead_ms = ahead_ms
        for number in range(2):
            assert isinstance(await world.append("a", b"%d" % number), Reply)
        assert set(world.codes.values()) == {Code.OK}
        assert [command.sequence for _, _, command in world.log.commits] == [1, 1, 2, 2]
        ages = {world.log.now + ahead_ms - each.intent_ms for _, _, each in world.log.commits[1::2]}
        assert ages == {0}, "the intent is as old as it is, by another clock"

    diskless_story(work)


def test_a_commit_whose_group_forgot_the_writer_is_not_applied_again() -> None:
    """Seed 20261530 of the swarm: the log time of the next leader is an hour ahead."""

    async def work(world: DisklessWorld) -> None:
        def how(number: int) -> str:
            world.log.ahead_ms = 0 if number == 1 else 3_600_000
            return "after" if number == 1 else ""

        world.log.how = how
        assert isinstance(await world.append("a", b"1"), OutcomeUnknown)
        assert isinstance(await world.append("a", b"2"), Reply), "later appends go on"
        assert world.log.applied["a"] == [b"1", b"2"]

    diskless_story(work)


def test_a_commit_that_is_really_late_is_refused() -> None:
    async def work(world: DisklessWorld) -> None:
        def how(number: int) -> str:
            world.log.now += 200_000  # the machine slept
            return "before" if number < 3 else ""

        world.log.how = how
        outcome = await world.append("a", b"1")
        assert isinstance(outcome, Unavailable)
        assert "too late" in str(outcome)
        assert not world.log.applied

    diskless_story(work)


def test_packs_are_compressed_once_all_nodes_can_read_that() -> None:
    async def work(world: DisklessWorld) -> None:
        payload = b"one and the same " * 200
        for level in (3, 4):
            world.log.level = level
            await world.append("a", payload)
            await asyncio.sleep(1)
        (_, _, raw), (_, _, small) = world.log.commits
        assert [each.slices[0].is_compressed for each in (raw, small)] == [False, True]
        assert raw.slices[0].stored > len(payload) > 10 * small.slices[0].stored
        assert small.slices[0].of_batches == raw.slices[0].encoding == 0
        assert world.log.applied == {"a": [payload, payload]}
        counters = world.writer.counters
        assert counters.payload_bytes == 2 * len(payload)
        assert counters.bytes == sum(len(data) for data, *_ in world.store.objects.values())
        ((_, _, kept),) = world.kept[1:]
        assert bytes(kept.payload) == payload, "a reader at the tail need not decompress it"

    diskless_story(work, zstd_level=1)
