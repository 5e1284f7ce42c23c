"""Parts that the table commands share: paths, locations, the lag in words, and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from polynya.base.errors import ConfigError, OutcomeUnknown, PolynyaError, Unavailable
from polynya.base.names import BadName, canonical_name, canonical_prefixes
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.lakehouse.machine.needs import INSTALL, NotInstalled

if TYPE_CHECKING:
    from polynya.lakehouse.server.coordinator import HttpCoordinator

NEEDS_LAKE = f"tables need additional packages: {INSTALL}"


@click.group("table", cls=CommandGroup)
def table_command() -> None:
    """Create, list, sync and change tables: every stream under a prefix, as rows, in Iceberg and in
    Delta."""


def coordinator_of(client: Client, worker: str = "") -> HttpCoordinator:
    """Return the pipeline's coordinator; the server supplies its admin port. A `worker` takes leases
    of the tables."""
    import httpx

    from polynya.lakehouse.server.coordinator import HttpCoordinator

    pool = httpx.Client(base_url=client.server, **client.options.settings())
    return HttpCoordinator("", client.server, pool, worker=worker)


def location(table: dict[str, Any], key: str) -> str:
    """Return the URI of a table's object or folder."""
    store = table["store"]
    if store["kind"] == "s3":
        return "/".join(
            part for part in (f"s3://{store['bucket']}", store["root"].strip("/"), key) if part
        )
    return f"file://{store['root'].rstrip('/')}/{key}"


def shown(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table as `table ls --json` prints it: with Delta's full URI, and null before the
    first build."""
    built = bool(table["iceberg"])
    own = {
        "iceberg": table["iceberg"] or None,
        "delta": location(table, table["delta"]) if built else None,
        "iceberg_dlq": table["iceberg_dlq"] or None,
        "delta_dlq": location(table, table["delta_dlq"]) if built else None,
    }
    return {**table, **own}


def with_rows_of(tables: list[dict[str, Any]], stream: str) -> list[dict[str, Any]]:
    """Return the tables whose prefix covers a stream, each after those that are derived from it.
    Raises `exits.Misused`."""
    try:
        name = canonical_name(stream)
    except BadName as bad:
        raise exits.Misused(str(bad)) from None
    left = {
        table["name"]: table
        for table in tables
        if name.startswith(tuple(canonical_prefixes(table["prefix"])))
    }
    found: list[dict[str, Any]] = []
    while left:
        free = [each for each in left if not left.keys() & set(left[each].get("derived", ()))]
        found += [left.pop(each) for each in free or list(left)]
    return found


def behind(table: dict[str, Any]) -> str:
    """Return the lag of a table in words, and what it lacks for good until a retry."""
    records, seconds = table["records_behind"], table["behind_seconds"]
    aside = table.get("records_aside", 0)
    lacks = f", without {output.counted(aside, 'record')} set aside" if aside else ""
    if records is None:
        return f"unknown lag{lacks}"
    if not records:
        return f"up to date{lacks}"
    age = "" if seconds is None else f" ({seconds:,.0f} s)"
    kind = "row" if table.get("source") else "record"
    return f"{output.counted(records, kind)}{age} behind{lacks}"


def streams_of(prefix: str) -> str:
    """Return the streams of a prefix in words."""
    return f"the streams under '{prefix}'" if prefix else "every stream"


def none_yet(prefix: str) -> str:
    """Return in words that a prefix has no streams."""
    return f"no stream name starts with '{prefix}' yet" if prefix else "there is no stream yet"


def table_of(table: dict[str, Any]) -> str:
    """Return a table with its streams in words."""
    prefix = table["prefix"]
    streams = f"prefix '{prefix}'" if prefix else "every stream"
    return f"table {table['name']} ({streams})"


def path_of(name: str) -> str:
    return f"/v1/tables/{quote(name, safe='')}"


@contextmanager
def explained() -> Iterator[None]:
    """Convert pipeline errors to exit codes."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] == "polynya":
            raise
        raise exits.Refused(f"{missing.name} is not installed", hint=NEEDS_LAKE) from None
    except NotInstalled as missing:
        raise exits.Refused(str(missing), hint=NEEDS_LAKE) from None
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    except OutcomeUnknown as unknown:
        raise exits.Unknown(str(unknown)) from None
    except Unavailable as unavailable:
        raise exits.Unreachable(str(unavailable)) from None
    except PolynyaError as error:
        raise exits.Refused(str(error)) from None
