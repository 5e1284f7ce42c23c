"""Questions to tables, answered by DuckDB over their Iceberg metadata. Read only."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from polynya.base.errors import ConfigError, PolynyaError
from polynya.lakehouse.blobs import open_blobs, with_credentials
from polynya.lakehouse.plan import TableRef
from polynya.objectstore import StoreSettings
from polynya.objectstore.settings import s3_config

DLQ_SUFFIX = "__dlq"


class BadQuestion(PolynyaError):
    """The statement cannot be answered; the message says why."""


class Answer(msgspec.Struct, frozen=True):
    """`types` are DuckDB's names of the columns' types; values in `rows` are Python's."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


def query(tables: Sequence[TableRef], statement: str, environment: Mapping[str, str] = os.environ) -> Answer:
    """Answer one SELECT over tables (as the coordinator lists them) by their names.

    Each is there also as `NAME__dlq`, and each has the column `value_text` beside `value`. Raises BadQuestion, ConfigError (a reader
    of DuckDB is missing, or the tables are on another machine)."""
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "false", "autoinstall_known_extensions": "false"})
    try:
        _check(connection, statement)
        connection.execute("set TimeZone='UTC'")
        mentioned = _mentioned(tables, statement)
        for store in {table.store for table in mentioned if table.store}:
            open_blobs(store.settings(), environment)  # a folder of another machine is told as such
            _load(connection, with_credentials(store.settings(), environment), environment)
        for table in mentioned:
            _view(connection, table.name, table.iceberg, table.name)
            _view(connection, table.name + DLQ_SUFFIX, table.iceberg_dlq, table.name)
        found = connection.execute(statement)
        columns = [column[0] for column in found.description or []]
        types = [str(column[1]) for column in found.description or []]
        return Answer(columns, types, found.fetchall())
    except duckdb.Error as fault:
        raise BadQuestion(_explained(str(fault), tables)) from None
    finally:
        connection.close()


def _check(connection: Any, statement: str) -> None:
    import duckdb

    statements = connection.extract_statements(statement)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise BadQuestion("tables are asked with one SELECT statement; what is in them comes from the streams alone")


def _mentioned(tables: Sequence[TableRef], statement: str) -> list[TableRef]:
    """Tables whose names are words of the statement. One too many only costs a view."""
    words = {word.casefold().removesuffix(DLQ_SUFFIX) for word in re.findall(r"\w+", statement)}
    return [table for table in tables if table.name.casefold() in words]


def _load(connection: Any, store: StoreSettings, environment: Mapping[str, str]) -> None:
    """DuckDB's readers, from their Python packages: nothing is fetched from elsewhere."""
    wanted = ("avro", "iceberg") if store.backend == "local" else ("httpfs", "avro", "iceberg")
    for name in wanted:
        connection.execute(f"load '{_quoted(_extension(name))}'")
    if store.backend == "s3":
        connection.execute(_secret(store, s3_config(store, environment), environment))


def _extension(name: str) -> str:
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    places = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    found = [path for place in places for path in Path(place).glob(f"extensions/*/{name}.duckdb_extension")]
    if not found:
        import duckdb

        raise ConfigError(f"DuckDB's reader '{name}' is missing: pip install 'duckdb-extension-{name}=={duckdb.__version__}'")
    return str(found[0])


def _secret(store: StoreSettings, config: dict[str, str], environment: Mapping[str, str]) -> str:
    options = {
        "KEY_ID": config.get("access_key_id") or environment.get("AWS_ACCESS_KEY_ID", ""),
        "SECRET": config.get("secret_access_key") or environment.get("AWS_SECRET_ACCESS_KEY", ""),
        "SESSION_TOKEN": config.get("session_token") or environment.get("AWS_SESSION_TOKEN", ""),
        "REGION": config.get("region") or environment.get("AWS_REGION", "us-east-1"),
        "ENDPOINT": store.s3_endpoint.removeprefix("https://").removeprefix("http://").rstrip("/"),
    }
    given = ", ".join(f"{name} '{_quoted(value)}'" for name, value in options.items() if value)
    style = ", URL_STYLE 'path'" if store.s3_endpoint else ""
    plain = ", USE_SSL false" if store.s3_endpoint.startswith("http://") else ""
    return f"create secret (type s3, {given}{style}{plain})"


def _view(connection: Any, name: str, pointer: str, table: str) -> None:
    if not pointer:
        raise BadQuestion(f"the table '{table}' was never built: run polynya compact {table}")
    connection.execute(f'create view "{name}" as select *, try(decode("value")) as value_text from iceberg_scan(\'{_quoted(pointer)}\')')  # noqa: S608


def _explained(fault: str, tables: Sequence[TableRef]) -> str:
    if "does not exist" in fault and "Table with name" in fault:
        names = ", ".join(table.name for table in tables) or "none yet: polynya table create NAME --prefix PREFIX"
        return f"{fault.splitlines()[0]} The tables are: {names}"
    return fault


def _quoted(text: str) -> str:
    return text.replace("'", "''")
