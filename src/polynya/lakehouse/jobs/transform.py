"""The user's transform in Spark: rows of ranges in, files of rows out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from py4j.java_gateway import is_instance_of
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from polynya.lakehouse.jobs.derive import TransformFailed
from polynya.lakehouse.jobs.plan import Job, store_settings
from polynya.lakehouse.jobs.spark_tasks import read_input, write_output
from polynya.lakehouse.jobs.task import TaskResult

VIEW = "input"
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS = "10000"
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_TOLD_CHARACTERS = 300


def derived(
    session: Any, job: Job, key: str, transform: str, shaped: Callable[[pa.Schema], tuple[Job, str]]
) -> tuple[Job, list[TaskResult]]:
    """Run a transform over the rows of a job's tasks, in a session for it alone. Return the job that
    wrote its rows, and the results of its tasks. Raises TransformFailed with the transform's fault."""
    store = store_settings(job.plan.store)
    schema = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
    rows = session.range(0, len(job.tasks), 1, len(job.tasks))
    session.conf.set(_BATCH, _BATCH_ROWS)
    try:
        frame = rows.mapInArrow(partial(read_input, store, key), from_arrow_schema(schema))
        found = _transformed(session, frame, transform)
        made, place = shaped(to_arrow_schema(found.schema))
        taken = found.mapInArrow(partial(write_output, store, place), "result binary").collect()
    except (PySparkException, ImportError, AttributeError, TypeError, ValueError) as fault:
        raise _failed(fault) from fault
    return made, [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in taken]


def _failed(fault: Exception, kind: str = "") -> TransformFailed:
    """Return the failure with the line that says why: of a Python worker, below its traceback."""
    _, traced, text = str(fault).rpartition("Traceback (most recent call last):")
    lines = [line for line in text.splitlines() if line.strip()]
    if traced:
        lines = [line for line in lines if not line.startswith(" ")]
    told = lines[0].strip().rstrip(";") if lines else type(fault).__name__
    return TransformFailed(f"the transform failed: {kind}{told[:_TOLD_CHARACTERS]}")


def _transformed(session: Any, frame: Any, transform: str) -> Any:
    """Return the data frame that the transform makes of the input."""
    from pyspark.sql import DataFrame

    kind, _, code = transform.partition(":")
    if kind == "sql":
        frame.createOrReplaceTempView(VIEW)
        _check_query(session, code)
        return session.sql(code)
    module, _, name = code.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(frame)
    except (PySparkException, ImportError, AttributeError):
        raise
    except Exception as fault:  # the function is the user's
        raise _failed(fault, f"{type(fault).__name__}: ") from fault
    if not isinstance(made, DataFrame):
        raise TransformFailed(
            f"the transform {code} returned a {type(made).__name__}; expected a DataFrame"
        )
    return made


def _check_query(session: Any, statement: str) -> None:
    """Raise TransformFailed for a statement that Spark would carry out at once."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    if is_instance_of(session.sparkContext._gateway, plan, _COMMAND):
        raise TransformFailed(
            "the transform is no query; expected one SELECT over the view 'input'"
        )
