"""The whole pipeline on a real Spark session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lake_world import Lake, quiet

from polynya.lakehouse.commit import run_job

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")


@pytest.mark.timeout(180)
def test_spark_runs_the_job(tmp_path: Path) -> None:
    from polynya.lakehouse.spark import SparkRunner

    lake = Lake(str(tmp_path / "store"))
    runner = SparkRunner("local[2]")
    try:
        for start in (0, 500):
            for stream in ("a/x", "a/y", "b"):
                lake.source.append(stream, [json.dumps({"i": start + i, "s": "v" * (i % 7)}).encode() for i in range(500)])
            lake.source.append("b", [json.dumps({"i": "bad" if i == 3 else i, "late": [start]}).encode() for i in range(500)])
            plan = lake.coordinator.plan("flights")
            assert plan is not None
            assert run_job(plan, lake.coordinator, runner, lake.blobs, quiet).ours
            lake.check_exactly_once()
        assert lake.iceberg()["i"].null_count == 2
        assert lake.iceberg("dlq").num_rows == 2
    finally:
        runner.close()
