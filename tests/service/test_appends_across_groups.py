"""Appends to streams of several groups, all or nothing, on one core."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from worlds.service import Listener, World

from polynya.base.errors import Unavailable, UpgradePending
from polynya.base.limits import APPEND_ALL_IDS, APPEND_ALL_TIMEOUT_MS
from polynya.local.api import Page, ReadQuery
from polynya.service.transactions.appends import Part
from polynya.service.transactions.calls import TransactionRefused
from polynya.stream.features.appends.commands import AppendIf, TxnAppend
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.features.transactions.commands import TxnHold
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.parts import Producer, SegmentLimits
from polynya.stream.replies import Code, Reply
from polynya.stream.state.tails import is_stable

JSON = "application/json"


class Shop:
    """A core with streams `a`, `b` and `c` of three groups."""

    def __init__(self) -> None:
        self.world = World().start()
        names = [f"s{number}" for number in range(40)]
        by_group = {self.world.service.group_of(name): name for name in reversed(names)}
        self.a, self.b, self.c, *_ = (by_group[group] for group in sorted(by_group))

    async def begin(self) -> Shop:
        for name in (self.a, self.b, self.c):
            await self.world.create(name, json=True)
        return self

    def part(self, name: str, value: bytes, record: int = -1, **more: Any) -> Part:
        """An append of one record, on a condition if `record` is given."""
        made = self.world.append_of(name, value, json=True, **more)
        if record < 0:
            return made
        fields = (made.name, made.now_ms, made.content_type, made.batch, made.producer)
        return AppendIf(*fields, record=record)

    def condition(self, name: str, record: int) -> AppendIf:
        return AppendIf(name, self.world.clock.ms, "", None, record=record)

    async def append(self, *parts: Part) -> Reply:
        return await self.world.engine.appends_across.append(parts)

    async def refused(self, *parts: Part) -> tuple[int, Code]:
        """Append, and return the number and the code of the part that is refused."""
        reply = await self.append(*parts)
        assert reply.code == Code.NONE_APPENDED, reply
        await self.world.settle()
        return reply.detail[0], Code(reply.detail[1][0])

    async def contents(self) -> list[bytes]:
        return [await self.read(name) for name in (self.a, self.b, self.c)]

    async def read(self, name: str, *, raw: bool = False) -> bytes:
        found, page = [], await self.world.page(name, raw=raw)
        while True:
            found += [bytes(span.payload) for span in page.spans]
            if page.up_to_date:
                return b"".join(found)
            page = await self.world.page(name, page.record, page.byte, raw=raw)

    def hold_markers(self) -> None:
        """Lose what the coordinators send: what is decided stays undecided in the streams."""
        self.world.engine.outbox_sender.markers.send = lambda *message: None  # type: ignore[method-assign]

    def open(self) -> int:
        machines = self.world.local.machines.values()
        return sum(
            not is_stable(stream)
            for machine in machines
            for stream in machine.directory.streams.values()
        )


def play(story: Callable[[Shop], Awaitable[None]]) -> None:
    async def run() -> None:
        shop = await Shop().begin()
        await story(shop)
        await shop.world.stop()

    asyncio.run(run())


def test_all_are_appended() -> None:
    async def story(shop: Shop) -> None:
        reply = await shop.append(
            shop.part(shop.a, b"1", 0), shop.part(shop.b, b"2"), shop.condition(shop.c, 0)
        )
        assert reply.code == Code.OK
        assert [row[1:] for row in reply.detail] == [[1, 2, False], [1, 2, False], [0, 0, False]]
        assert await shop.contents() == [b"1,", b"2,", b""], "at once, without waiting"
        assert shop.open() == 0
        counters = shop.world.engine.appends_across.counters
        assert (counters.committed, counters.aborted) == (1, 0)
        for number in range(3):
            await shop.append(shop.part(shop.a, b"%d" % number), shop.part(shop.b, b"7"))
        assert (await shop.contents())[0] == b"1,0,1,2,"
        ids = await shop.world.engine.transactions.list_transactions()
        assert len(ids) == 1, "one after the other takes one id"

    play(story)


def test_one_refusal_refuses_all() -> None:
    async def story(shop: Shop) -> None:
        await shop.world.append(shop.c, b"9", json=True)
        first = shop.part(shop.a, b"1", producer=Producer("p", 0, 0))
        text = shop.world.append_of(shop.b, b"1")
        for wrong, code in (
            (shop.part(shop.b, b"2", 7), Code.PRECONDITION),
            (shop.condition(shop.c, 0), Code.PRECONDITION),
            (shop.part("nowhere", b"2"), Code.NOT_FOUND),
            (text, Code.CONTENT_TYPE),
            (shop.part(shop.b, b"2", producer=Producer("q", 0, 3)), Code.PRODUCER_GAP),
            (shop.part(shop.b, b"2", incarnation=9), Code.INCARNATION),
        ):
            assert await shop.refused(first, wrong) == (1, code)
            assert await shop.refused(wrong, first) == (0, code)
        assert await shop.contents() == [b"", b"", b"9,"]
        assert shop.open() == 0
        assert (await shop.append(first, shop.part(shop.b, b"2"))).code == Code.OK
        assert await shop.contents() == [b"1,", b"2,", b"9,"], "the producer was not moved"

    play(story)


def test_a_repeat_by_one_producer_is_a_repeat_of_all() -> None:
    async def story(shop: Shop) -> None:
        producer = Producer("p", 0, 0)
        parts = (shop.part(shop.a, b"1", producer=producer), shop.part(shop.b, b"2", 0))
        first = await shop.append(*parts)
        again = await shop.append(*parts)
        assert (again.code, again.detail) == (Code.DUPLICATE, first.detail)
        assert await shop.contents() == [b"1,", b"2,", b""]
        other = shop.part(shop.c, b"3", producer=producer)
        assert await shop.refused(other, parts[0]) == (1, Code.DUPLICATE)
        changed = shop.part(shop.a, b"8", producer=producer)
        assert await shop.refused(changed, shop.part(shop.b, b"2")) == (0, Code.PRODUCER_CONFLICT)
        assert await shop.contents() == [b"1,", b"2,", b""]
        assert shop.open() == 0

    play(story)


def test_what_is_undecided_is_seen_by_nobody_and_aborted_after_its_timeout() -> None:
    async def story(shop: Shop) -> None:
        transactions, service = shop.world.engine.transactions, shop.world.service
        pair = await transactions.init("dead", APPEND_ALL_TIMEOUT_MS)
        info = await shop.world.info(shop.a)
        added = [(service.group_of(shop.a), info.uid, shop.a)]
        number = await transactions.add("dead", pair, added, [], version=2)
        lost = shop.part(shop.a, b"1", producer=Producer("p", 0, 0), incarnation=info.uid)
        command = TxnAppend([lost], *pair, number)
        assert (await service.call(service.group_of(shop.a), command)).code == Code.OK
        assert await shop.read(shop.a) == b"" and shop.open() == 1
        behind = await shop.world.append(shop.a, b"2", json=True)
        assert behind.code == Code.OK and await shop.read(shop.a) == b""
        retry = (shop.part(shop.a, b"1", producer=Producer("p", 0, 0)), shop.part(shop.b, b"3"))
        assert await shop.refused(*retry) == (0, Code.UNSTABLE)
        alone = await shop.world.append(shop.a, b"1", json=True, producer=Producer("p", 0, 0))
        assert alone.code == Code.UNSTABLE
        assert await shop.refused(shop.part(shop.a, b"4", 2), retry[1]) == (0, Code.UNSTABLE)
        shop.world.clock.ms += APPEND_ALL_TIMEOUT_MS
        await shop.world.engine.transaction_jobs.run_once()
        await shop.world.settle()
        assert shop.open() == 0 and await shop.read(shop.a) == b"2,"
        late = await service.call(service.group_of(shop.a), command)
        assert (late.code, late.detail[1][0]) == (Code.NONE_APPENDED, Code.TXN_ENDED)
        assert (await shop.append(*retry)).code == Code.OK
        assert await shop.contents() == [b"2,1,", b"3,", b""]

    play(story)


def test_of_two_that_append_to_what_the_other_compares_one_wins_at_most() -> None:
    async def story(shop: Shop) -> None:
        one = shop.append(shop.part(shop.a, b"1"), shop.condition(shop.b, 0))
        two = shop.append(shop.part(shop.b, b"2"), shop.condition(shop.a, 0))
        codes = [reply.code for reply in await asyncio.gather(one, two)]
        await shop.world.settle()
        assert codes.count(Code.OK) <= 1
        found = await shop.contents()
        assert found[:2] in ([b"1,", b""], [b"", b"2,"], [b"", b""])
        assert codes.count(Code.OK) == sum(map(bool, found))

    play(story)


def test_many_at_once_take_the_ids_in_turn() -> None:
    async def story(shop: Shop) -> None:
        count = APPEND_ALL_IDS + 20
        replies = await asyncio.gather(
            *(
                shop.append(shop.part(shop.a, b"%d" % number), shop.part(shop.b, b"%d" % number))
                for number in range(count)
            )
        )
        assert {reply.code for reply in replies} == {Code.OK}
        first, second, _ = await shop.contents()
        assert sorted(first.split(b",")) == sorted(second.split(b","))
        assert first.count(b",") == count
        ids = await shop.world.engine.transactions.list_transactions()
        assert len(ids) == APPEND_ALL_IDS

    play(story)


def test_a_fenced_id_begins_again() -> None:
    async def story(shop: Shop) -> None:
        parts = (shop.part(shop.a, b"1"), shop.part(shop.b, b"2"))
        await shop.append(*parts)
        (used,) = await shop.world.engine.transactions.list_transactions()
        await shop.world.engine.transactions.init(used.id, 1000)
        assert (await shop.append(*parts)).code == Code.OK
        assert await shop.contents() == [b"1,1,", b"2,2,", b""]

    play(story)


def test_a_transaction_that_was_aborted_before_its_end_is_an_error() -> None:
    async def story(shop: Shop) -> None:
        transactions = shop.world.engine.transactions
        end = transactions.end

        async def aborted(id_: str, pair: tuple[int, int], **more: Any) -> tuple[int, int]:
            with pytest.raises(TransactionRefused):
                await transactions.abort("nobody")
            await transactions.abort(id_)
            return await end(id_, pair, **more)

        transactions.end = aborted  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="aborted"):
            await shop.append(shop.part(shop.a, b"1"), shop.part(shop.b, b"2"))
        transactions.end = end  # type: ignore[method-assign]
        await shop.world.settle()
        assert await shop.contents() == [b"", b"", b""] and shop.open() == 0
        assert (await shop.append(shop.part(shop.a, b"1"), shop.part(shop.b, b"2"))).code == Code.OK

    play(story)


def test_a_lost_answer_of_the_decision_is_asked_for() -> None:
    async def story(shop: Shop) -> None:
        transactions = shop.world.engine.transactions
        end = transactions.end

        async def lost(id_: str, pair: tuple[int, int], **more: Any) -> tuple[int, int]:
            await end(id_, pair, **more)
            raise Unavailable("the answer is lost")

        transactions.end = lost  # type: ignore[method-assign]
        assert (await shop.append(shop.part(shop.a, b"1"), shop.part(shop.b, b"2"))).code == Code.OK
        transactions.end = end  # type: ignore[method-assign]
        assert (await shop.append(shop.part(shop.a, b"3"), shop.part(shop.b, b"4"))).code == Code.OK
        assert await shop.contents() == [b"1,3,", b"2,4,", b""]

    play(story)


def test_other_streams_are_refused() -> None:
    async def story(shop: Shop) -> None:
        names = [f"x{number}" for number in range(20)]
        away = [name for name in names if shop.world.service.group_of(name) != shop.world.service.group_of(shop.a)]  # fmt: skip
        diskless, leased, closed = away[:3]
        await shop.world.create(diskless, json=True, profile=Profile.DISKLESS)
        await shop.world.create(leased, json=True, segments=SegmentLimits(2, 0))
        await shop.world.create(closed, json=True, closed=True)
        first = shop.part(shop.a, b"1")
        for name, code in (
            (diskless, Code.WRONG_PROFILE),
            (leased, Code.WRONG_PROFILE),
            (closed, Code.CLOSED),
        ):
            assert await shop.refused(first, shop.part(name, b"2")) == (1, code)
        assert await shop.read(shop.a) == b"" and shop.open() == 0

    play(story)


def test_aborted_records_stay_hidden_in_packs_and_after_restarts() -> None:
    async def story(shop: Shop) -> None:
        await shop.world.append(shop.a, b"1", json=True)
        assert await shop.refused(shop.part(shop.a, b"2"), shop.part(shop.b, b"3", 9)) == (
            1,
            Code.PRECONDITION,
        )
        await shop.world.append(shop.a, b"4", json=True)
        assert await shop.read(shop.a) == b"1,4,"
        assert await shop.read(shop.a, raw=True) == b"1,4,", "as a Kafka client, of its topic"
        now = shop.world.service.read_nowait(ReadQuery(shop.a, raw=True))
        assert isinstance(now, Page) and [span.record for span in now.spans] == [0, 2]
        await shop.world.snapshot()
        shop.world.kill()
        assert await shop.read(shop.a) == b"1,4,"
        await shop.world.flusher.flush_now()
        assert shop.world.hot_bytes == 0 and await shop.read(shop.a) == b"1,4,"
        assert await shop.read(shop.a, raw=True) == b"1,4,"
        shop.world.kill()
        assert await shop.read(shop.a) == b"1,4,"
        ids = await shop.world.engine.transactions.list_transactions()
        assert {each.state for each in ids} == {TransactionState.COMPLETE_ABORT}

    play(story)


def test_nothing_undecided_is_flushed_and_a_restart_finds_it_again() -> None:
    async def story(shop: Shop) -> None:
        shop.hold_markers()
        task = asyncio.ensure_future(shop.append(shop.part(shop.a, b"1"), shop.part(shop.b, b"2")))
        while shop.open() < 2 or not any(
            machine.outbox.messages for machine in shop.world.local.machines.values()
        ):
            await asyncio.sleep(0)
        task.cancel()
        await shop.world.flusher.flush_now(whole=True)
        assert shop.world.hot_bytes == 4 and shop.open() == 2
        await shop.world.snapshot()
        shop.world.kill()
        assert shop.open() == 2
        await shop.world.settle()
        assert await shop.contents() == [b"1,", b"2,", b""], "it was decided"
        await shop.world.flusher.flush_now()
        assert shop.world.hot_bytes == 0 and await shop.contents() == [b"1,", b"2,", b""]

    play(story)


def test_a_group_that_is_not_upgraded_says_so() -> None:
    async def story(shop: Shop) -> None:
        transactions, add = shop.world.engine.transactions, shop.world.engine.transactions.add

        async def pending(*given: Any, **more: Any) -> int:
            raise UpgradePending("the coordinator's group is older")

        transactions.add = pending  # type: ignore[method-assign]
        with pytest.raises(UpgradePending):
            await shop.append(shop.part(shop.a, b"1"), shop.part(shop.b, b"2"))
        transactions.add = add  # type: ignore[method-assign]
        assert (await shop.append(shop.part(shop.a, b"1"), shop.part(shop.b, b"2"))).code == Code.OK

    play(story)


def test_evicted_streams_come_back() -> None:
    async def story(shop: Shop) -> None:
        for name in (shop.a, shop.b):
            await shop.world.append(name, b"0", json=True)
        await shop.world.evict()
        assert {shop.a, shop.b} <= shop.world.evicted
        reply = await shop.append(shop.part(shop.a, b"1", 1), shop.part(shop.b, b"2"))
        assert reply.code == Code.OK
        assert await shop.contents() == [b"0,1,", b"0,2,", b""]
        assert not {shop.a, shop.b} & shop.world.evicted
        await shop.world.evict()
        assert {shop.a, shop.b} <= shop.world.evicted, "what has ended here does not keep them"
        assert await shop.contents() == [b"0,1,", b"0,2,", b""]

    play(story)


def test_a_commit_waits_for_a_backup() -> None:
    async def story(shop: Shop) -> None:
        service, transactions = shop.world.service, shop.world.engine.transactions
        end, refused = transactions.end, asyncio.Event()

        async def noted(id_: str, pair: tuple[int, int], **more: Any) -> tuple[int, int]:
            try:
                return await end(id_, pair, **more)
            except TransactionRefused as fault:
                if fault.code == Code.TXN_HELD:
                    refused.set()
                raise

        async def hold(until_ms: int) -> None:
            now_ms = service.now_ms()
            for group in range(1, shop.world.groups + 1):
                await service.call(group, TxnHold("round", until_ms, now_ms))

        transactions.end = noted  # type: ignore[method-assign]
        await hold(service.now_ms() + 5000)
        work = asyncio.ensure_future(shop.append(shop.part(shop.a, b"1"), shop.part(shop.b, b"2")))
        await refused.wait()
        assert await shop.contents() == [b"", b"", b""]
        await hold(0)
        assert (await work).code == Code.OK
        assert await shop.contents() == [b"1,", b"2,", b""]

    play(story)


def test_a_live_reader_hears_of_a_commit_alone() -> None:
    async def story(shop: Shop) -> None:
        listener = Listener()
        await shop.world.service.open(shop.a).attach(listener)
        assert await shop.refused(shop.part(shop.a, b"1"), shop.condition(shop.b, 7)) == (
            1,
            Code.PRECONDITION,
        )
        assert listener.payload == b""
        await shop.append(shop.part(shop.a, b"2"), shop.part(shop.b, b"3"))
        assert listener.events[-1].record == 2
        assert await shop.read(shop.a) == b"2,"

    play(story)
