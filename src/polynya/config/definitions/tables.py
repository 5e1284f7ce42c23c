"""The settings of tables, their catalog and SQL."""

from __future__ import annotations

from polynya.base import limits
from polynya.config import setting

TABLES = (
    setting.seconds(
        "lake.interval",
        0.0,
        "The interval at which the node updates all tables with `polynya lake run` as a child "
        "process; 0 disables it.",
        low=0,
    ),
    setting.text(
        "lake.master", "local[*]", "The Spark master of that process, and of runs of tables."
    ),
    setting.count(
        "lake.merge_files",
        10,
        "The number of files of a similar size that a table's jobs merge into one; 0 disables "
        "merges.",
        low=0,
        high=1000,
    ),
    setting.size(
        "lake.merge_size",
        128 * limits.MIB,
        "Files of tables from this size on are not merged again; merged ones have up to twice as "
        "much.",
        low=limits.MIB,
        high=512 * limits.MIB,
    ),
    setting.seconds(
        "lake.run_timeout",
        3600.0,
        "The timeout of a run: a sync, rebuild or replay of a table that a client, such as the web "
        "console, starts on the node; 0 disables runs.",
        low=0,
    ),
    setting.count(
        "reduce.workers",
        0,
        "The workers of reducers (`polynya reduce run`) that the node runs as child processes.",
        low=0,
        high=16,
    ),
    setting.text(
        "reduce.token_file",
        "",
        "The file with their access token, which needs the verb `admin`; required with access "
        "control.",
    ),
    setting.text(
        "catalog.s3_access_key_id",
        "",
        "The S3 access key that the Iceberg catalog gives to clients that may read a table; it "
        "needs to read only objects under `tables/`. Default: clients use their own.",
    ),
    setting.text("catalog.s3_secret_access_key", "", "The secret of that key.", secret=True),
    setting.switch(
        "sql.enabled",
        True,
        "Answer SQL queries on tables (`POST /v1/sql`, the console). Requires the packages of "
        "`polynya[lake]`.",
    ),
    setting.seconds("sql.timeout", 30.0, "The timeout of one query.", low=0.1, high=600),
    setting.size(
        "sql.memory",
        512 * limits.MIB,
        "The memory limit of DuckDB for one query.",
        low=64 * limits.MIB,
    ),
)
