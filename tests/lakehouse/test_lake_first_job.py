"""The first job: from packs to both tables, and a second time with more."""

from __future__ import annotations

import json
from pathlib import Path

from worlds.lakehouse import Lake, quiet

from polynya.lakehouse.jobs.commit import run_job


def test_packs_become_both_tables(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    rows = [
        {
            "n": i,
            "name": f"x{i}",
            "at": "2013-01-01T10:00:00Z",
            "inner": {"a": i / 2, "tags": ["p", "q"]},
        }
        for i in range(50)
    ]
    lake.source.append("air/ua", *[[json.dumps(row).encode()] for row in rows[:25]])
    lake.source.append(
        "air/aa",
        [json.dumps(row).encode() for row in rows[25:]],
        [b"17", b'{"n": "seven", "offset": 5}'],
    )
    for _ in range(2):
        plan = lake.coordinator.plan("flights")
        assert plan is not None
        outcome = run_job(plan, lake.coordinator, lake.runner, lake.blobs, quiet)
        assert outcome.ours
        lake.check_exactly_once()
        lake.source.append("air/ua", [b'{"n": 5, "new": true, "inner": {"b": 1}}', b'{"n": 0.5}'])
    table = lake.iceberg().sort_by([("stream", "ascending"), ("offset", "ascending")])
    assert [row for row in table["new"].to_pylist() if row is not None] == [True]
    assert table["name"].to_pylist()[0] == "x25"
    assert [row for row in table["n__string"].to_pylist() if row] == ["seven"]
    assert lake.iceberg("dlq")["reason"].to_pylist() == ["not_object"]
    assert table.schema.names == lake.delta().schema.names
