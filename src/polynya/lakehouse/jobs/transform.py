"""The user's transform in Spark: rows of ranges in, files of rows out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from polynya.base.transforms import Transform
from polynya.lakehouse.jobs.plan import Job, store_settings
from polynya.lakehouse.jobs.results import Asked, Derived
from polynya.lakehouse.jobs.spark_tasks import read_input
from polynya.lakehouse.jobs.stateful.faults import TransformFailed
from polynya.lakehouse.jobs.stateful.fold import fold, written

VIEW = "input"
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS = "10000"
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_TEXT_CHARACTERS = 300
# PySpark 4.3 wants the zone of timestamps; earlier ones have an option that is UTC by default
_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)
_TRACEBACK = "Traceback (most recent call last):"
_NO_VIEW = "TABLE_OR_VIEW_NOT_FOUND"


def derived(
    session: Any, job: Job, key: str, asked: Asked, shaped: Callable[[pa.Schema], tuple[Job, str]]
) -> Derived:
    """Run a transform over the rows of a job's tasks, in a session for it alone. Return what was
    written. Raises TransformFailed with the transform's fault."""
    store = store_settings(job.plan.store)
    schema = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
    rows = session.range(0, len(job.tasks), 1, max(1, len(job.tasks)))
    session.conf.set(_BATCH, _BATCH_ROWS)
    try:
        frame = rows.mapInArrow(partial(read_input, store, key), from_arrow_schema(schema))
        found = _transformed(session, frame, asked.transform)
        made, plan_key = shaped(to_arrow_schema(found.schema, **_UTC))
        results = written(found, store, plan_key)
        if not asked.transform.key:
            return Derived(made, results)
        return fold(session, asked, made, plan_key, results)
    except (PySparkException, TypeError, ValueError) as fault:
        raise TransformFailed(f"the transform failed: {_reason(fault)}") from fault


def _transformed(session: Any, frame: Any, transform: Transform) -> Any:
    """Return the data frame that the transform makes of the input."""
    from pyspark.sql import DataFrame

    code = transform.code
    if transform.kind == "sql":
        frame.createOrReplaceTempView(VIEW)
        _check_query(session, code)
        return session.sql(code)
    module, _, name = code.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(frame)
    except (PySparkException, Py4JError, ConnectionError):
        raise  # Spark's own, or its JVM is gone
    except Exception as fault:
        text = f"{type(fault).__name__}: {fault}"[:_TEXT_CHARACTERS]
        raise TransformFailed(f"the transform {code} failed: {text}") from fault
    if not isinstance(made, DataFrame):
        raise TransformFailed(
            f"the transform {code} returned a {type(made).__name__}; expected a DataFrame"
        )
    return made


def _reason(fault: Exception) -> str:
    """Return the first line of a fault. Of Python code in a task, whose fault comes with a
    traceback, return the error that the traceback ends with."""
    lines = str(fault).strip().splitlines() or [type(fault).__name__]
    if _TRACEBACK in lines:
        last = len(lines) - lines[::-1].index(_TRACEBACK)
        lines = [line for line in lines[last:] if line.strip() and line[0] != " "] or lines
    text = lines[0][:_TEXT_CHARACTERS]
    return f"{text} The rows are in the view '{VIEW}'." if _NO_VIEW in text else text


def _check_query(session: Any, statement: str) -> None:
    """Raise TransformFailed for a statement that Spark would carry out at once."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    if is_instance_of(session.sparkContext._gateway, plan, _COMMAND):
        raise TransformFailed(
            "the transform is no query; expected one SELECT over the view 'input'"
        )
