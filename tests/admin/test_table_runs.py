"""The runs of a node's tables, with children that a test plays: their queue, their states, and what ends
them. And the refusals of a node that cannot run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from polynya.admin.workers.node_table_runs import NodeTableRuns, run_command
from polynya.admin.workers.table_runs import LogTail, TableRuns
from polynya.base.errors import ConfigError, PolynyaError
from polynya.base.limits import (
    TABLE_RUN_LINE_CHARACTERS_MAX,
    TABLE_RUN_LINES_MAX,
    TABLE_RUNS_KEPT_MAX,
    TABLE_RUNS_WAITING_MAX,
)
from polynya.config.model import Config
from polynya.config.sections import ColdConfig, LakeConfig
from polynya.front.http.api.table_runs import Run, Wanted
from polynya.front.http.protocol.errors import Failure

Story = Callable[[TableRuns, "Children"], Awaitable[None]]


class FakeChild:
    """A child that prints and ends when the test says so."""

    def __init__(self) -> None:
        self._printed: asyncio.Queue[bytes] = asyncio.Queue()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.signals: list[str] = []

    def say(self, text: str) -> None:
        self._printed.put_nowait(text.encode())

    def end(self, code: int = 0) -> None:
        if not self._code.done():
            self._code.set_result(code)
            self._printed.put_nowait(b"")

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := await self._printed.get():
            yield piece

    async def wait(self) -> int:
        return await self._code

    def terminate(self) -> None:
        self.signals.append("TERM")

    def kill(self) -> None:
        self.signals.append("KILL")
        self.end(-9)


class Children:
    """The children that were launched, in order."""

    def __init__(self) -> None:
        self.all: list[FakeChild] = []
        self.fault: Exception | None = None

    async def launch(self, wanted: Wanted) -> FakeChild:
        if self.fault is not None:
            raise self.fault
        self.all.append(FakeChild())
        return self.all[-1]


def wanted(table: str = "sales", verb: str = "sync", *arguments: str) -> Wanted:
    return Wanted(verb, table, hash(table), arguments, "shop")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def play(story: Story, seconds: float = 3600.0) -> None:
    async def main() -> None:
        children = Children()
        runs = TableRuns(children.launch, seconds, lambda: 7.0)
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(runs.run())
            await story(runs, children)
            worker.cancel()

    asyncio.run(main())


def test_one_run_after_the_other_with_what_it_says() -> None:
    async def story(runs: TableRuns, children: Children) -> None:
        first = await runs.start(wanted())
        await settle()
        second = await runs.start(wanted("rides"))
        await settle()
        assert (first.state, second.state, len(children.all)) == ("running", "queued", 1)
        child = children.all[0]
        child.say("  planned       12 records\n  conv")
        await settle()
        assert first.message == "conv" and first.log == ["  planned       12 records", "  conv"]
        child.say("erted\nsales: job 1 added 12 rows\n")
        child.end()
        await settle()
        assert (first.state, first.message) == ("done", "sales: job 1 added 12 rows")
        assert child.signals == ["KILL"], "what is left of its group"
        assert second.state == "running" and len(children.all) == 2
        assert await runs.found(hash("sales")) == [first]

    play(story)


def test_a_failure_has_the_refusal_and_its_hint() -> None:
    async def story(runs: TableRuns, children: Children) -> None:
        run = await runs.start(wanted())
        await settle()
        children.all[0].say("starting Spark\npolynya: no such table\n  create it\n")
        children.all[0].end(1)
        await settle()
        assert (run.state, run.message) == ("failed", "polynya: no such table create it")
        children.fault = PolynyaError("it is another one now")
        run = await runs.start(wanted())
        await settle()
        assert (run.state, run.message) == ("failed", "it did not start: it is another one now")

    play(story)


def test_a_run_that_waits_is_not_queued_twice_and_the_queue_is_bounded() -> None:
    async def story(runs: TableRuns, children: Children) -> None:
        await runs.start(wanted())
        await settle()
        waits = await runs.start(wanted())  # has what is appended from now on
        assert await runs.start(wanted()) is waits
        assert await runs.start(wanted("sales", "rebuild", "--column=a:long")) is not waits
        for number in range(TABLE_RUNS_WAITING_MAX - 2):
            await runs.start(wanted(f"t{number}"))
        with pytest.raises(Failure) as full:
            await runs.start(wanted("one_more"))
        assert full.value.code == "TABLE_RUNS_FULL"
        assert await runs.start(wanted()) is waits

    play(story)


def test_a_cancelled_run_ends_and_the_next_begins() -> None:
    async def story(runs: TableRuns, children: Children) -> None:
        first, second, third = [await runs.start(wanted(name)) for name in "abc"]
        await settle()
        await runs.cancel(hash("b"), second.id)
        assert (second.state, second.message) == ("cancelled", "cancelled before it began")
        for _ in range(2):  # a repeat changes nothing
            await runs.cancel(hash("a"), first.id)
        assert (first.state, children.all[0].signals) == ("running", ["TERM"])
        children.all[0].say("starting Spark\nstopped: the job was released\n")
        children.all[0].end(130)
        await settle()
        assert (first.state, first.message) == ("cancelled", "stopped: the job was released")
        assert third.state == "running"
        for uid, run in ((hash("a"), "none"), (hash("a"), third.id)):
            with pytest.raises(Failure) as unknown:
                await runs.cancel(uid, run)
            assert unknown.value.code == "TABLE_RUN_NOT_FOUND"

    play(story)


def test_a_run_past_its_time_is_killed() -> None:
    async def story(runs: TableRuns, children: Children) -> None:
        run = await runs.start(wanted())
        await settle()
        assert run.state == "failed" and "lake.run_timeout" in run.message
        assert children.all[0].signals == ["KILL"]

    play(story, seconds=0.0)


def test_the_end_of_the_node_kills_the_child() -> None:
    run: list[Run] = []
    child: list[FakeChild] = []

    async def story(runs: TableRuns, children: Children) -> None:
        run.append(await runs.start(wanted()))
        await settle()
        child.append(children.all[0])

    play(story)
    assert child[0].signals == ["KILL"] and run[0].state == "cancelled"


def test_the_runs_that_are_kept_are_bounded() -> None:
    async def story(runs: TableRuns, children: Children) -> None:
        for number in range(TABLE_RUNS_KEPT_MAX + 5):
            run = await runs.start(wanted())
            await settle()
            children.all[number].end()
            await settle()
        kept = await runs.found(hash("sales"))
        assert len(kept) == TABLE_RUNS_KEPT_MAX and kept[0] is run

    play(story)


def test_the_log_is_bounded() -> None:
    lines: list[str] = []
    tail = LogTail(lines)
    for number in range(TABLE_RUN_LINES_MAX + 9):
        tail.add(b"%d " % number + b"x" * TABLE_RUN_LINE_CHARACTERS_MAX)
        tail.add(b"x" * 9 + b"\r\n\n")
    assert len(lines) == TABLE_RUN_LINES_MAX and lines[0].startswith("9 ")
    assert {len(line) for line in lines} == {TABLE_RUN_LINE_CHARACTERS_MAX}


def test_a_node_without_spark_refuses_with_the_command_that_installs_it() -> None:
    def check(config: Config) -> None:
        raise ConfigError("tables cannot be built here, as pyspark is not installed: pip install x")

    async def main() -> None:
        node = NodeTableRuns(Config(), 0, None, TableRuns(Children().launch, 1, lambda: 0), check)
        with pytest.raises(Failure) as refused:
            await node.start(wanted())
        assert refused.value.code == "TABLE_RUNS_OFF" and "pip install x" in refused.value.message
        for config, word in (
            (Config(lake=LakeConfig(run_timeout=0)), "lake.run_timeout"),
            (Config(cold=ColdConfig(backend="memory")), "cold.backend"),
        ):
            node = NodeTableRuns(config, 0, None, TableRuns(Children().launch, 1, lambda: 0), check)
            with pytest.raises(Failure, match=word):
                await node.start(wanted())

    asyncio.run(main())


def test_the_command_has_no_secret_and_names_one_table() -> None:
    config = Config(cold=ColdConfig(backend="s3", s3_bucket="b"))
    asked = Wanted("replay", "sales", 1, ("--column=a:long",), "shop")
    command = run_command(config, "http://127.0.0.1:9", asked)
    at = command.index("table")
    assert command[at : at + 2] == ["table", "replay-dlq"]
    assert command[-3:] == ["--column=a:long", "--", "sales"]
