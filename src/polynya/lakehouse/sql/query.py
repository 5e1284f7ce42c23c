"""Run SQL queries on tables with DuckDB over their Iceberg metadata. Read only."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from polynya.base.errors import ConfigError
from polynya.lakehouse.jobs.plan import TableRef, store_settings
from polynya.lakehouse.reading.blobs import Blobs, open_blobs, with_credentials
from polynya.lakehouse.sql.as_of import TableVersion, versions
from polynya.lakehouse.sql.policy import BadQuery, Bounds, check_names, lock
from polynya.objectstore import StoreSettings
from polynya.objectstore.settings import s3_config
from polynya.wire.tables import StoreRef

DLQ_SUFFIX = "__dlq"
BLOCK_ROWS = 1000
_EMPTY = {
    "stream": "varchar",
    **dict.fromkeys(("incarnation", "offset", "byte_offset", "batch"), "bigint"),
    **dict.fromkeys(("timestamp", "append_time"), "timestamptz"),
    "key": "blob",
    "headers": 'struct("key" varchar, "value" blob)[]',
    "value": "blob",
    "value_text": "varchar",
}
_EMPTY_DLQ = {
    name: _EMPTY[name]
    for name in ("stream", "incarnation", "offset", "byte_offset", "timestamp", "append_time")
} | {
    **dict.fromkeys(("reason", "field", "message"), "varchar"),
    "value": "blob",
    "value_text": "varchar",
}
_MISSING = re.compile(r"Table with name (\S+) does not exist")


class QueryResult(msgspec.Struct, frozen=True):
    """A complete result. `types` are DuckDB's names of the column types; `rows` hold Python
    values."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


class QueryCursor(msgspec.Struct, frozen=True):
    """A streaming result. `blocks` are lists of at most `BLOCK_ROWS` rows; iterating may raise
    BadQuery."""

    columns: list[str]
    types: list[str]
    blocks: Iterator[list[tuple[Any, ...]]]


def query(
    tables: Sequence[TableRef],
    statement: str,
    environment: Mapping[str, str] = os.environ,
    *,
    as_of: str = "",
) -> QueryResult:
    """Return the whole result at once; otherwise as `ask`."""
    with ask(tables, statement, environment, as_of=as_of) as found:
        return QueryResult(
            found.columns, found.types, [row for block in found.blocks for row in block]
        )


@contextmanager
def ask(
    tables: Sequence[TableRef],
    statement: str,
    environment: Mapping[str, str] = os.environ,
    bounds: Bounds | None = None,
    *,
    explain: bool = False,
    as_of: str = "",
) -> Iterator[QueryCursor]:
    """Run one SELECT over tables (as the coordinator lists them) by their names. Rows stream in
    bounded memory.

    Each table is also available as `NAME__dlq`, and each has the column `value_text` beside
    `value`. `bounds` marks an untrusted query, which may read these tables and nothing else.
    `explain` returns DuckDB's plan instead of the rows; `as_of` is a time, a snapshot or a tag, and
    all tables are as they were then. Raises BadQuery, ConfigError (a DuckDB
    extension is missing, or the tables are on another machine).
    """
    import duckdb

    connection = duckdb.connect(
        config={"allow_unsigned_extensions": "false", "autoinstall_known_extensions": "false"}
    )
    try:
        with _explained(tables, statement):
            _check(connection, statement)
            if bounds is not None:
                check_names(
                    connection,
                    statement,
                    [name for table in tables for name in (table.name, table.name + DLQ_SUFFIX)],
                )
            connection.execute("set TimeZone='UTC'")
            named = _mentioned(tables, statement)
            mentioned = [table for table in named if table.iceberg]
            opened: dict[StoreRef | None, Blobs] = {}
            for store in {table.store for table in mentioned if table.store}:
                # raises ConfigError for a folder of another machine
                opened[store] = open_blobs(store_settings(store), environment)
                _load(connection, with_credentials(store_settings(store), environment), environment)
            for table in mentioned:
                _views(connection, table, as_of, opened.get(table.store))
            for table in named:
                if not table.iceberg:
                    _empty_view(connection, table.name, _EMPTY)
                    _empty_view(connection, table.name + DLQ_SUFFIX, _EMPTY_DLQ)
            if bounds is not None:
                folders = (_folder(table, every=bool(as_of)) for table in mentioned)
                lock(connection, folders, bounds)
            connection.execute(f"explain {statement}" if explain else statement)
        columns = [column[0] for column in connection.description or []]
        types = [str(column[1]) for column in connection.description or []]
        yield QueryCursor(columns, types, _blocks(connection, tables, statement))
    finally:
        connection.close()


def _blocks(
    connection: Any, tables: Sequence[TableRef], statement: str
) -> Iterator[list[tuple[Any, ...]]]:
    while True:
        with _explained(tables, statement):
            rows = connection.fetchmany(BLOCK_ROWS)
        if not rows:
            return
        yield rows


def _check(connection: Any, statement: str) -> None:
    import duckdb

    statements = connection.extract_statements(statement)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise BadQuery(
            "a query is one SELECT statement; tables are read only and get their rows from streams"
        )


def _mentioned(tables: Sequence[TableRef], statement: str) -> list[TableRef]:
    """Return the tables whose names are words of the statement; an extra match costs only a view.

    DuckDB's names are case-insensitive. Of two tables that differ only in case, the one with the
    exact spelling is meant.
    """
    words = {word.removesuffix(DLQ_SUFFIX) for word in re.findall(r"\w+", statement)}
    folded = {word.casefold().removesuffix(DLQ_SUFFIX) for word in words}
    found: dict[str, TableRef] = {}
    for table in sorted(tables, key=lambda table: table.name not in words):
        other = found.setdefault(table.name.casefold(), table)
        if other is not table and table.name in words:
            raise BadQuery(
                f"the tables '{other.name}' and '{table.name}' differ only in case: one query "
                "cannot use both"
            )
    return [table for name, table in found.items() if name in folded]


def _folder(table: TableRef, *, every: bool) -> str:
    """Return the folder of all files of a table, as DuckDB spells it; with `every` that of its
    earlier folders, too."""
    before, location, _ = table.iceberg.partition(f"/{table.location}/")
    location = f"/tables/{table.uid}/" if every and location else location
    if not location:
        raise BadQuery(
            f"the table '{table.name}' has its metadata outside its folder: {table.iceberg}"
        )
    return (before + location).removeprefix("file://")


def _load(connection: Any, store: StoreSettings, environment: Mapping[str, str]) -> None:
    """Load DuckDB's extensions from their Python packages; nothing is downloaded."""
    wanted = ("avro", "iceberg") if store.backend == "local" else ("httpfs", "avro", "iceberg")
    for name in wanted:
        connection.execute(f"load '{_quoted(_extension(name))}'")
    if store.backend == "s3":
        connection.execute(_secret(store, s3_config(store, environment), environment))


def _extension(name: str) -> str:
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    found = [
        path
        for folder in folders
        for path in Path(folder).glob(f"extensions/*/{name}.duckdb_extension")
    ]
    if not found:
        import duckdb

        raise ConfigError(
            f"the DuckDB extension '{name}' is missing: pip install "
            f"'duckdb-extension-{name}=={duckdb.__version__}'"
        )
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


def _views(connection: Any, table: TableRef, as_of: str, blobs: Blobs | None) -> None:
    """Make the views of a table and of its dead letters, as of a time, a snapshot or a tag."""
    dead = table.name + DLQ_SUFFIX
    if not as_of:
        _view(connection, table.name, TableVersion(table.iceberg))
        _view(connection, dead, TableVersion(table.iceberg_dlq))
        return
    if blobs is None:
        raise BadQuery(f"the store of the table '{table.name}' is not known")
    rows, letters = versions(lambda uri: blobs.get(blobs.key(uri)), table, as_of)
    _view(connection, table.name, rows)
    if letters.snapshot:
        _view(connection, dead, letters)
    else:
        _empty_view(connection, dead, _EMPTY_DLQ)


def _view(connection: Any, name: str, version: TableVersion) -> None:
    """Make a view of a table, with its values as text. A derived table may have no values."""
    import duckdb

    at = f", snapshot_from_id = {version.snapshot}" if version.snapshot else ""
    rows = f"from iceberg_scan('{_quoted(version.pointer)}'{at})"
    try:
        connection.execute(
            f'create view "{name}" as select *, try(decode("value")) as value_text {rows}'
        )
    except duckdb.BinderException:
        connection.execute(f'create view "{name}" as select * {rows}')


def _empty_view(connection: Any, name: str, columns: Mapping[str, str]) -> None:
    """Make a view without rows, for a table before its first job."""
    nulls = ", ".join(f'cast(null as {kind}) as "{column}"' for column, kind in columns.items())
    connection.execute(f'create view "{name}" as select {nulls} where false')


@contextmanager
def _explained(tables: Sequence[TableRef], statement: str) -> Iterator[None]:
    """Convert DuckDB's errors to BadQuery. For a missing table, list the existing ones."""
    import duckdb

    try:
        yield
    except duckdb.Error as fault:
        message = str(fault)
        missing = _MISSING.search(message)
        if missing is None:
            empty = [table.name for table in _mentioned(tables, statement) if not table.iceberg]
            if empty and isinstance(fault, duckdb.BinderException):
                message += (
                    "\nA table has no typed columns before its first rows: run polynya table "
                    f"sync {' '.join(empty)}"
                )
            if isinstance(fault, duckdb.ParserException):
                message += (
                    "\nA column whose name is a keyword of SQL, such as offset or at, needs double "
                    'quotes: "offset"'
                )
            raise BadQuery(message) from None
        names = (
            ", ".join(table.name for table in tables)
            or "none yet: polynya table create NAME --prefix PREFIX"
        )
        raise BadQuery(f"{message.splitlines()[0]} The tables are: {names}") from None


def _quoted(text: str) -> str:
    return text.replace("'", "''")
