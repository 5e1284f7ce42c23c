"""Exact tables: no value is rounded, and the majority type owns a name. On the files of installed
packages, as their RECORDs list them."""

from __future__ import annotations

import base64
import json
from collections import Counter
from decimal import Decimal
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from worlds.lakehouse import Lake

from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.sql.query import query

PACKAGES = ("pandas", "numpy", "pyarrow", "pip")


def files() -> list[dict[str, Any]]:
    """List the files of the packages with the first 64 bits of their digests, and their sizes,
    which RECORD leaves empty for some."""
    rows = []
    for package in PACKAGES:
        for file in distribution(package).files or ():
            digest = (
                int.from_bytes(base64.urlsafe_b64decode(file.hash.value + "=")[:8], "big")
                if file.hash
                else 0
            )
            rows.append(
                {
                    "path": str(file),
                    "digest": digest,
                    "size": "" if file.size is None else file.size,
                }
            )
    return rows


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def built(lake: Lake, rows: list[dict[str, Any]], stream: str = "files") -> list[str]:
    """Return the schema part of the sync's output."""
    said: list[str] = []
    lake.source.append(stream, [json.dumps(row).encode() for row in rows])
    compact(
        lake.coordinator,
        [],
        lambda: lake.runner,
        lambda step, message: said.append(message) if step == "columns" else None,
    )
    return said


def both(lake: Lake) -> list[list[dict[str, Any]]]:
    """The rows in pyiceberg and deltalake, in order."""
    return [
        sorted(table.to_pylist(), key=lambda row: (row["stream"], row["offset"]))
        for table in (lake.iceberg(), lake.delta())
    ]


def test_integers_beyond_64_bits_keep_every_digit(lake: Lake) -> None:
    rows = [row for row in files() if row["digest"] >= 2**63][:2000]
    assert len({row["digest"] for row in rows}) > 1800
    built(lake, rows)
    assert lake.iceberg()["digest"].type == pa.decimal128(38, 0)
    for found in both(lake):
        assert [row["digest"] for row in found] == [Decimal(row["digest"]) for row in rows]
    (count,) = query(lake.coordinator.tables(), "select count(distinct digest) from flights").rows[
        0
    ]
    assert count == len({row["digest"] for row in rows})
    assert keys_of_dlq(lake) == []


def held(row: dict[str, Any], name: str) -> list[Any]:
    """Return a row's value of a field, from the column that holds it."""
    names = [name, *(f"{name}__{kind}" for kind in ("long", "double", "decimal", "string"))]
    return [row[each] for each in names if row.get(each) is not None]


def test_integers_on_both_sides_of_64_bits_are_in_one_of_two_columns(lake: Lake) -> None:
    rows = files()[:3000]
    built(lake, rows)
    for found in both(lake):
        assert [held(row, "digest") for row in found] == [[row["digest"]] for row in rows]
    assert "digest" not in {field for _, field in keys_of_dlq(lake)}


def test_a_double_column_takes_no_integer_that_it_would_round(lake: Lake) -> None:
    rows = [
        {"n": row["size"] / 7 if number % 2 else row["digest"] >> 1}
        for number, row in enumerate(files()[:1000])
        if row["size"] != ""
    ]
    built(lake, rows)
    for found in both(lake):
        for row, wanted in zip(found, rows, strict=True):
            assert held(row, "n") == [wanted["n"]]
    built(lake, [{"n": 10**400}, {"n": 10**30}], "later")
    assert Counter(keys_of_dlq(lake)) == {("misfit", "n"): 1}
    assert [row["n__decimal"] for row in both(lake)[0] if row["stream"] == "later"] == [
        None,
        Decimal(10**30),
    ]


def test_the_majority_owns_the_name_whatever_comes_first(lake: Lake) -> None:
    odd = [row for row in files() if row["size"] == ""]
    rows = (odd * 21)[:21] + [row for row in files() if row["size"] != ""][:1979]
    (said, *_) = built(lake, rows)
    assert "size long (" in said and "path string (400 of 400)" in said
    types = {field.name: field.type for field in lake.iceberg().schema}
    assert types["size"] == pa.int64()
    for found in both(lake):
        assert sum(row["size"] is not None for row in found) == 1979
    dead = [field for _, field in keys_of_dlq(lake) if field == "size"]
    assert len(dead) + sum(row.get("size__string") is not None for row in both(lake)[0]) == 21


def test_the_majority_is_that_of_all_streams_of_the_sample(lake: Lake) -> None:
    lake.source.append("a", [b'{"id": "first by name"}'])
    lake.source.append(
        "b",
        [json.dumps({"id": row["size"]}).encode() for row in files()[:300] if row["size"] != ""],
    )
    compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
    types = {field.name: field.type for field in lake.iceberg().schema}
    assert (types["id"], types["id__string"]) == (pa.int64(), pa.string())


def test_a_declared_type_comes_before_the_sample(lake: Lake) -> None:
    declared = [("size", "string"), ("digest", "decimal"), ("unseen.deep", "timestamptz")]
    lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, columns=declared)
    rows = files()[:500]
    built(lake, rows)
    types = {field.name: field.type for field in lake.iceberg().schema}
    assert (types["size"], types["size__long"], types["digest"]) == (
        pa.string(),
        pa.int64(),
        pa.decimal128(38, 0),
    )
    assert types["unseen"].field("deep").type == pa.timestamp("us", tz="UTC")
    assert [row["digest"] for row in both(lake)[0]] == [row["digest"] for row in rows]
    assert "digest__long" not in types


def keys_of_dlq(lake: Lake) -> list[tuple[str, str]]:
    table = lake.iceberg("dlq")
    assert sorted(table["reason"].to_pylist()) == sorted(lake.delta("dlq")["reason"].to_pylist())
    return list(zip(table["reason"].to_pylist(), table["field"].to_pylist(), strict=True))


def test_nested_integers_keep_every_digit(lake: Lake) -> None:
    rows = [row["digest"] for row in files() if row["digest"] >= 2**63][:300]
    built(lake, [{"file": {"digest": digest}, "pair": [digest, digest - 1]} for digest in rows])
    for found in both(lake):
        assert [(row["file"]["digest"], row["pair"]) for row in found] == [
            (Decimal(one), [Decimal(one), Decimal(one - 1)]) for one in rows
        ]
    assert query(
        lake.coordinator.tables(), "select count(distinct file.digest) from flights"
    ).rows == [(len(set(rows)),)]
