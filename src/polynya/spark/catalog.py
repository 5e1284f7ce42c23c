"""Streams by name in Spark SQL: views in Spark's own catalog.

A Python source cannot be a catalog (`TableCatalog` is Java), and Spark passes the options of a table
(`create table … using polynya options (…)`) to no Python source. But it passes those of a query:
`select * from t with ('stream'='shop/orders')`. So a view has such a query, over one table of
this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from polynya.base.errors import ConfigError
from polynya.spark.options import source_options
from polynya.spark.selection import find
from polynya.spark.server import Server
from polynya.spark.source import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "polynya.records"
_CATALOG, _BUILTIN = "spark.sql.catalog.spark_catalog", "builtin"
VIEWS_MAX = 1000  # each is several statements of Spark
_SECRETS = ("token", "s3AccessKeyId", "s3SecretAccessKey", "s3SessionToken")
_NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)


def create_view(spark: SparkSession, name: str, options: Mapping[str, str]) -> None:
    """Create or replace the view `name` or `database.name` of the streams that options of a read
    select. Each query reads up to the tails of then. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the view is '{name}'; expected NAME or DATABASE.NAME of letters, digits and '_'"
        )
    source_options(options)
    _check(options)
    catalog = spark.conf.get(_CATALOG, _BUILTIN)
    if catalog != _BUILTIN:
        raise ConfigError(
            f"{_CATALOG} is {catalog}, with which Spark reads no table of a Python source; use a "
            f"session with '{_BUILTIN}', or create temporary view ... using polynya options (...)"
        )
    spark.sql("create database if not exists polynya")
    spark.sql(f"create table if not exists {TABLE} ({SCHEMA}) using polynya")
    database, dot, _ = name.rpartition(".")
    if dot:
        spark.sql(f"create database if not exists {database}")
    given = ", ".join(f"{_quoted(key)}={_quoted(value)}" for key, value in options.items())
    spark.sql(f"create or replace view {name} as select * from {TABLE} with ({given})")


def create_views(spark: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """Create a view of each stream that options of a read select now, and return the streams by
    view. `shop/orders` is `shop.orders`. Raises ConfigError."""
    wanted = source_options(options)
    with Server(wanted.connection) as server:
        streams = sorted(find(server, wanted).tails)
    if len(streams) > VIEWS_MAX:
        raise ConfigError(
            f"{len(streams)} streams are selected, and {VIEWS_MAX} views are created at a time: "
            "select fewer, or make one view of them with create_view"
        )
    names = _names(streams)
    selecting = {"stream", "prefix", "subscribe", "subscribepattern", "assign"}
    rest = {key: value for key, value in options.items() if key.lower() not in selecting}
    for name, stream in names.items():
        create_view(spark, name, {**rest, "stream": stream})
    return names


def _names(streams: list[str]) -> dict[str, str]:
    """Return the stream of each view. Raises ConfigError for two of one name."""
    found: dict[str, str] = {}
    for stream in streams:
        database, slash, rest = stream.partition("/")
        parts = [database, rest] if slash else ["default", stream]
        name = ".".join(re.sub(r"\W", "_", part, flags=re.ASCII).lower() for part in parts)
        if name in found:
            raise ConfigError(
                f"the streams '{found[name]}' and '{stream}' would both be {name}: name their views "
                "yourself with create_view"
            )
        found[name] = stream
    return found


def _check(options: Mapping[str, str]) -> None:
    """Raise ConfigError for options that a view cannot have."""
    given = {name.lower() for name in options}
    for name in _SECRETS:
        if name.lower() in given:
            raise ConfigError(
                f"a view shows its text to everybody: leave the option '{name}' out, and set "
                "POLYNYA_TOKEN or the keys of the store in the driver's environment"
            )
    for name in ("columns", "pushdown"):
        if name in given:
            raise ConfigError(f"a view reads whole records: leave the option '{name}' out")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
