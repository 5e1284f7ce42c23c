"""Restrict what an untrusted query may read: check DuckDB's syntax tree before the query runs, then
lock DuckDB itself.

Each layer suffices alone; both must fail before a query reads forbidden data. The tree check allows
the given tables, the query's own WITH clauses, and a few table functions that only generate rows.
DuckDB's lock allows only the files and the network hosts of the tables that the query names. It
forbids extensions and changes of settings.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from polynya.base.errors import PolynyaError

TABLE_FUNCTIONS = frozenset(["range", "generate_series", "unnest", "repeat"])
FUNCTIONS_REFUSED = frozenset(
    [
        "current_setting",
        "getenv",
        "getvariable",
        "write_log",
        "nextval",
        "currval",
        "sleep_ms",
        "pg_sleep",
        "json_serialize_plan",
    ]
)
Scope = frozenset[str]
"""Names of the WITH clauses that are visible to a part of the statement, folded by `_fold`."""
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class BadQuery(PolynyaError):
    """The query cannot be answered; the message has the reason."""


class Bounds(msgspec.Struct, frozen=True):
    """Resource limits of one query."""

    memory_bytes: int
    threads: int = 2


def check_names(connection: Any, statement: str, tables: Collection[str]) -> None:
    """Raise BadQuery if the statement, one SELECT, names anything but `tables` (in any case) and
    its own names."""
    # No bound parameter: for binding, DuckDB imports pandas and pyarrow, which takes longer than
    # most queries.
    text = statement.replace("'", "''")
    try:
        parsed = msgspec.json.decode(
            connection.execute(f"select json_serialize_sql('{text}')").fetchone()[0]
        )
    except RecursionError:
        raise BadQuery("the query is nested too deeply: use fewer nested expressions") from None
    if parsed["error"]:
        raise BadQuery(str(parsed.get("error_message", "the query cannot be parsed")))
    allowed = frozenset(map(_fold, tables))
    for node, scope in _nodes(parsed):
        _check(node, allowed, scope, tables)


def lock(connection: Any, folders: Iterable[str], bounds: Bounds) -> None:
    """Restrict the connection to files below `folders` (paths or URIs), irrevocably."""
    listed = ", ".join("'" + folder.replace("'", "''") + "'" for folder in folders)
    for setting in (
        "temp_directory = ''",  # no spilling to disk
        f"memory_limit = '{bounds.memory_bytes}B'",
        f"threads = {bounds.threads}",
        "allow_community_extensions = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        f"allowed_directories = [{listed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"set {setting}")


def _check(node: dict[str, Any], allowed: Scope, scope: Scope, tables: Collection[str]) -> None:
    kind = node.get("type")
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).casefold()
        if name not in TABLE_FUNCTIONS:
            raise BadQuery(
                f"the table function {name} is not allowed here; allowed are "
                f"{', '.join(sorted(TABLE_FUNCTIONS))}"
            )
    elif kind == "SHOW_REF":
        if not node.get("query"):
            raise BadQuery(
                "use DESCRIBE TABLE_NAME for the columns of a table; GET /v1/tables lists the "
                "tables"
            )
    elif node.get("table_name") and "column_name_alias" in node:
        name = str(node["table_name"])
        if (
            node.get("schema_name")
            or node.get("catalog_name")
            or (_fold(name) not in allowed and _fold(name) not in scope)
        ):
            raise BadQuery(
                f"there is no table '{name}'. The tables are: "
                f"{', '.join(sorted(tables)) or 'none yet'}"
            )
    elif str(node.get("function_name", "")).casefold() in FUNCTIONS_REFUSED:
        raise BadQuery(f"the function {node['function_name']} is not allowed here")


def _nodes(value: Any) -> Iterator[tuple[dict[str, Any], Scope]]:
    """Yield every object of the tree with its scope. Iterative, because a query may nest deeper
    than Python's recursion limit."""
    left: list[tuple[Any, Scope]] = [(value, frozenset())]
    while left:
        found, scope = left.pop()
        if isinstance(found, dict):
            yield found, scope
            left += _children(found, scope)
        elif isinstance(found, list):
            left += [(each, scope) for each in found]


def _children(node: dict[str, Any], scope: Scope) -> Iterator[tuple[Any, Scope]]:
    """Scope each part of a node as DuckDB does: a WITH clause sees those before it, and the query
    after them sees all.

    A recursive clause sees its own name only in the repeated part, the right side of its UNION.
    """
    for entry in _ctes(node):
        yield entry, scope
        scope |= {_fold(str(entry["key"]))}
    repeated = (
        {_fold(str(node["cte_name"]))} if node.get("type") == "RECURSIVE_CTE_NODE" else frozenset()
    )
    for name, child in node.items():
        if name != "cte_map":
            yield child, scope | repeated if name == "right" else scope


def _ctes(node: dict[str, Any]) -> list[dict[str, Any]]:
    ctes = node.get("cte_map")
    return ctes.get("map", []) if isinstance(ctes, dict) else []


def _fold(name: str) -> str:
    """Fold case as DuckDB compares names: ASCII letters only. `str.casefold` equates names that
    DuckDB distinguishes."""
    return name.translate(_LOWER)
