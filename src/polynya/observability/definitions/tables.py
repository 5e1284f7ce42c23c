"""Metrics of tables and SQL."""

from __future__ import annotations

from polynya.observability.metric import Metric


def _of_table(name: str, meaning: str) -> Metric:
    """Return a gauge of each table; every core that knows it has the same."""
    return Metric(name, "gauge", meaning, ("table",), "max")


TABLES = (
    _of_table("polynya_table_rows", "Rows of a table."),
    _of_table(
        "polynya_table_dead_rows",
        "Rows of its NAME__dlq: records of which some value fits no column.",
    ),
    _of_table("polynya_table_files", "Live data files of a table."),
    _of_table("polynya_table_merges", "Merges of a table's files."),
    _of_table("polynya_table_files_merged", "Files of a table that merges replaced."),
    _of_table(
        "polynya_table_failing_ranges",
        "Ranges that the last jobs could not read and that will be retried.",
    ),
    _of_table("polynya_table_job_failed", "1 if the last job of a table failed, else 0."),
    _of_table("polynya_table_ranges_aside", "Ranges that were set aside after three failures."),
    _of_table("polynya_table_records_aside", "Records in these ranges."),
    _of_table("polynya_table_records_behind", "Records that are not in the table yet."),
    _of_table("polynya_table_behind_seconds", "Age of the oldest of them; not of derived tables."),
    _of_table(
        "polynya_table_records_trimmed", "Records that were trimmed before the table took them."
    ),
    _of_table(
        "polynya_table_records_ended", "Records of streams that ended before the table took them."
    ),
    _of_table("polynya_table_job_seconds", "Duration of the last job, from its plan to its files."),
    _of_table(
        "polynya_table_fields_without_column",
        "Fields without a column: the table had no room for more.",
    ),
    _of_table(
        "polynya_table_unframed_values",
        "Values without a schema's id, in a table with --payload registry.",
    ),
    _of_table(
        "polynya_table_commit_time_seconds", "Time of the last commit, in seconds since 1970."
    ),
    Metric("polynya_sql_queries_total", "counter", "SQL queries accepted."),
)
