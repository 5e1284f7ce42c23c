"""`/v1/transactions` over a core in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from worlds.service import World

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.front.http.api.kafka import transactions as transaction_routes
from polynya.front.http.api.kafka.transactions import TransactionRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request

PARTITION = {"topic": "orders", "partition": 0, "stream": "kafka/orders/0"}


class Transactions:
    """The routes, an idle id `a` and an id `b/c` with an open transaction."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.service = world.engine.transactions
        self.routes = TransactionRoutes(self.service)

    async def fill(self) -> None:
        name = "kafka/orders/0"
        reply = await self.world.create(name)
        await self.service.init("a", 1000)
        self.pair = await self.service.init("b/c", 1000)
        streams = [(self.world.service.group_of(name), reply.uid, name)]
        await self.service.add("b/c", self.pair, streams, ["g"], version=2)
        self.world.clock.ms += 700

    async def ask(
        self, method: str, *segments: str, principal: Principal | None = None, **query: str
    ) -> Any:
        asked = Request(method, "", ("", *segments), query, {}, b"", "", principal)
        answer = await self.routes.handle(asked)
        return json.loads(answer.body)

    async def ids(self, **more: Any) -> list[str]:
        return [row["id"] for row in (await self.ask("GET", **more))["transactions"]]

    async def refused(self, *arguments: Any, **more: Any) -> str:
        with pytest.raises(Failure) as refused:
            await self.ask(*arguments, **more)
        return refused.value.code


def play(story: Callable[[Transactions], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World().start()
        transactions = Transactions(world)
        await transactions.fill()
        await story(transactions)
        await world.stop()

    asyncio.run(run())


def test_an_open_transaction_is_described_and_aborted() -> None:
    async def story(transactions: Transactions) -> None:
        shown = await transactions.ask("GET", "b/c")
        assert (shown["state"], shown["open_ms"], shown["timeout_ms"]) == ("Ongoing", 700, 1000)
        assert (shown["producer"], shown["epoch"]) == transactions.pair
        assert (shown["partitions"], shown["groups"]) == ([PARTITION], ["g"])
        aborted = await transactions.ask("POST", "b/c", "abort")
        assert (aborted["state"], aborted["number"]) == ("PrepareAbort", 1)
        assert await transactions.refused("POST", "b/c", "abort") == "TRANSACTION_NOT_OPEN"
        await transactions.world.settle()
        shown = await transactions.ask("GET", "b/c")
        assert (shown["state"], shown["open_ms"]) == ("CompleteAbort", None)
        assert (shown["partitions"], shown["groups"]) == ([], [])

    play(story)


def test_ids_are_listed_by_filters_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(transactions: Transactions) -> None:
        assert await transactions.ids() == ["a", "b/c"]
        assert await transactions.ids(prefix="b") == ["b/c"]
        assert await transactions.ids(state="Ongoing,PrepareAbort") == ["b/c"]
        assert await transactions.ids(producer=str(transactions.pair[0])) == ["b/c"]
        assert await transactions.ids(open_seconds="0") == ["b/c"]
        assert await transactions.ids(open_seconds="1") == []
        monkeypatch.setattr(transaction_routes, "LISTED_MAX", 1)
        assert (await transactions.ask("GET"))["next"] == "a"
        assert await transactions.ids(after="a") == ["b/c"]

    play(story)


def test_wrong_requests_are_refused() -> None:
    async def story(transactions: Transactions) -> None:
        assert await transactions.refused("GET", "x") == "TRANSACTION_NOT_FOUND"
        assert await transactions.refused("POST", "x", "abort") == "TRANSACTION_NOT_FOUND"
        assert await transactions.refused("POST", "a", "abort") == "TRANSACTION_NOT_OPEN"
        assert await transactions.refused("DELETE", "a") == "METHOD_NOT_ALLOWED"
        assert await transactions.refused("POST", "a", "commit") == "METHOD_NOT_ALLOWED"
        for query in ({"state": "ongoing"}, {"producer": "-1"}, {"open_seconds": "x"}):
            assert await transactions.refused("GET", **query) == "INVALID_REQUEST"

    play(story)


def test_a_list_has_the_ids_that_the_caller_may_use() -> None:
    async def story(transactions: Transactions) -> None:
        uses = Grant(frozenset((Verb.APPEND,)), "kafka/a/")
        one = Principal(id="1", name="one", grants=(uses,))
        assert await transactions.ids(principal=one) == ["a"]

    play(story)
