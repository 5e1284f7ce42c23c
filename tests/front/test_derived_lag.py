"""Lag of a derived table behind its input, from the positions in its last job's result object."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from polynya.base.transforms import Transform
from polynya.front.http.api.derived_lag import DerivedLag, records_after, trimmed_after
from polynya.local.api import StreamInfo
from polynya.objectstore import NotFound
from polynya.service.tables import Tables
from polynya.stream.features.tables.state import Table


def stream(name: str, uid: int, records: int, first: int = 0) -> StreamInfo:
    return StreamInfo(uid, name, "application/json", 1, 0, records, 0, first)


@pytest.mark.parametrize(
    ("facts", "behind"),
    [
        (stream("shop/a", 7, 10), 6),  # from its position
        (stream("shop/a", 7, 4), 0),
        (stream("shop/a", 7, 10, first=8), 2),  # the others were trimmed
        (stream("shop/a", 9, 10), 10),  # created again: all of it is new
        (stream("shop/a", 9, 10, first=3), 7),
        (stream("shop/new", 8, 5), 5),
        (stream("default/plain", 3, 9), 1),  # positions have the names of URLs
    ],
)
def test_records_after_the_places(facts: StreamInfo, behind: int) -> None:
    positions = {"shop/a": (7, 4), "shop/gone": (1, 1), "plain": (3, 8)}
    assert records_after(positions, [facts]) == behind
    assert records_after(positions, [facts, stream("shop/b", 5, 100)]) == behind + 100


def test_only_records_that_no_job_had_are_told_as_trimmed() -> None:
    positions = {"shop/a": (7, 4)}
    for facts, trimmed in (
        (stream("shop/a", 7, 10, first=4), 0),  # a job had them
        (stream("shop/a", 7, 10, first=6), 2),
        (stream("shop/a", 9, 10, first=3), 3),  # of another incarnation
        (stream("shop/new", 8, 5, first=5), 5),
    ):
        assert trimmed_after(positions, [facts]) == trimmed


class Listed:
    """Tables whose input are these streams."""

    def __init__(self, *streams: StreamInfo) -> None:
        self.streams = list(streams)

    async def covered(self, table: Table, limit: int) -> list[StreamInfo]:
        return self.streams[:limit]

    async def source_of(self, table: Table) -> Table | None:
        return SOURCE if "derive:" in table.transform else None


SOURCE = Table(6, "rides", "shop/", 1, committed=9, rows=50)


def table(result: str) -> Table:
    return Table(5, "fares", "shop/", 1, transform="sql:select 1", result=result)


def test_places_are_read_once_a_job() -> None:
    objects: dict[str, Any] = {"1.json": {"taken": {"shop/a": [7, 4]}, "rows": 4}}
    read: list[str] = []

    async def read_object(key: str) -> bytes:
        read.append(key)
        if key not in objects:
            raise NotFound(key)
        return json.dumps(objects[key]).encode()

    listed = Listed(stream("shop/a", 7, 10))
    lag = DerivedLag(cast(Tables, listed), read_object)

    def records(result: str) -> int | None:
        return asyncio.run(lag.records(table(result)))

    assert records("") == 10  # no job yet
    assert [records("1.json") for _ in range(3)] == [6, 6, 6]
    listed.streams.append(stream("shop/b", 8, 3))
    assert records("1.json") == 9
    assert read == ["1.json"]
    assert records("2.json") is None, "it cannot be read now"
    objects["2.json"] = {"taken": {"shop/a": [7, 10], "shop/b": [8, 3]}}
    assert records("2.json") == 0
    assert asyncio.run(DerivedLag(cast(Tables, listed), None).records(table("2.json"))) is None


@pytest.mark.parametrize(
    ("position", "whole", "behind", "current"),
    [
        (None, False, 50, False),  # no job yet
        ({"job": 9, "rows": 40}, False, 0, True),
        ({"job": 8, "rows": 40}, False, 10, False),
        ({"job": 8, "rows": 50}, False, 0, False),  # a merge: its position is still to be noted
        ({"job": 8, "rows": 40}, True, 50, False),  # the next job reads all rows
    ],
)
def test_the_lag_behind_a_table_is_what_the_next_job_reads(
    position: dict[str, int] | None, whole: bool, behind: int, current: bool
) -> None:
    async def read_object(key: str) -> bytes:
        return json.dumps({"source": {"uid": "6", **(position or {})}}).encode()

    lag = DerivedLag(cast(Tables, Listed(stream("shop/a", 7, 100, first=60))), read_object)
    made = table("1.json" if position else "")
    made.transform = str(Transform("sql:select 1", table="6", whole=whole))
    assert asyncio.run(lag.records(made)) == behind
    assert asyncio.run(lag.is_current(made)) is current
    assert asyncio.run(lag.trimmed(made)) == 0
