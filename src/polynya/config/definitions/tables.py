"""The settings of tables, their catalog and SQL."""

from __future__ import annotations

from polynya.base.limits import MIB
from polynya.config.setting import (
    Setting,
    parse_count,
    parse_seconds,
    parse_size,
    parse_switch,
    parse_text,
)

TABLES = (
    Setting(
        "lake.interval",
        parse_seconds,
        0.0,
        "The interval at which the node updates all tables with `polynya lake run` as a child "
        "process; 0 disables it.",
        low=0,
    ),
    Setting("lake.master", parse_text, "local[*]", "The Spark master of that process."),
    Setting(
        "lake.merge_files",
        parse_count,
        10,
        "The number of files of a similar size that a table's jobs merge into one; 0 disables "
        "merges.",
        low=0,
        high=1000,
    ),
    Setting(
        "lake.merge_size",
        parse_size,
        128 * MIB,
        "Files of tables from this size on are not merged again; merged ones have up to twice as "
        "much.",
        low=MIB,
        high=512 * MIB,
    ),
    Setting(
        "catalog.s3_access_key_id",
        parse_text,
        "",
        "The S3 access key that the Iceberg catalog gives to clients that may read a table; it "
        "needs to read only objects under `tables/`. Default: clients use their own.",
    ),
    Setting("catalog.s3_secret_access_key", parse_text, "", "The secret of that key.", secret=True),
    Setting(
        "sql.enabled",
        parse_switch,
        True,
        "Answer SQL queries on tables (`POST /v1/sql`, the console). Requires the packages of "
        "`polynya[lake]`.",
    ),
    Setting("sql.timeout", parse_seconds, 30.0, "The timeout of one query.", low=0.1, high=600),
    Setting(
        "sql.memory",
        parse_size,
        512 * MIB,
        "The memory limit of DuckDB for one query.",
        low=64 * MIB,
    ),
)
