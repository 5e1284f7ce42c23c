"""`/iceberg/v1/…`: the tables as an Iceberg REST catalog, read only, in one namespace (`NAMESPACE`).

A request sees a table's current state, so that readers need no path. Jobs of Polynya alone commit;
other commits are refused with the reason (docs/formats/tables.md, section "Catalog").
"""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.access import Principal
from polynya.base.errors import Unavailable
from polynya.front.http.api.table_views import ReadObject, metadata_key
from polynya.front.http.api.tables import readable
from polynya.front.http.protocol.extension import Request, Response
from polynya.service.tables import TableRefused, Tables
from polynya.stream.features.tables.state import Table
from polynya.wire.tables import StoreRef

MOUNT = "/iceberg/v1/"
NAMESPACE = "polynya"
DLQ_SUFFIX = "__dlq"
_NAMESPACES = "/v1/{prefix}/namespaces"
_TABLE = f"{_NAMESPACES}/{{namespace}}/tables/{{table}}"
_READS = (
    f"GET {_NAMESPACES}",
    f"GET {_NAMESPACES}/{{namespace}}",
    f"HEAD {_NAMESPACES}/{{namespace}}",
    f"GET {_NAMESPACES}/{{namespace}}/tables",
    f"GET {_TABLE}",
    f"HEAD {_TABLE}",
    f"GET {_TABLE}/credentials",
    f"POST {_TABLE}/metrics",
)
# Clients do not send a request whose endpoint is not listed. These are refused with `_READ_ONLY`.
_WRITES = (
    f"POST {_NAMESPACES}",
    f"DELETE {_NAMESPACES}/{{namespace}}",
    f"POST {_NAMESPACES}/{{namespace}}/tables",
    f"POST {_TABLE}",
    f"DELETE {_TABLE}",
)
ENDPOINTS = (*_READS, *_WRITES)
_READ_ONLY = (
    "tables get their rows from streams, and only Polynya's jobs commit to them: append to a "
    "stream of the table instead, and create tables with 'polynya table create'"
)
_TRIES = 3  # a job may commit, and old metadata be deleted, while a table is loaded


class S3Keys(msgspec.Struct, frozen=True):
    """The keys that the catalog gives to readers; empty: readers have their own."""

    access_key_id: str = ""
    secret_access_key: str = ""


class CatalogRefused(Exception):
    """A refusal in the catalog's own error format: `kind` is the name of Iceberg's exception."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class IcebergCatalog:
    """The handler of `MOUNT`. A caller sees the tables whose streams it may read."""

    def __init__(
        self, tables: Tables, store: StoreRef, keys: S3Keys, read_object: ReadObject | None
    ) -> None:
        self._tables = tables
        self._read_object = read_object
        self._file_config = file_config(store, keys)
        self._base = f"s3://{store.bucket}/" if store.kind == "s3" else ""

    async def handle(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except CatalogRefused as refused:
            status, kind, message = refused.status, refused.kind, str(refused)
        except TableRefused as refused:
            status, kind, message = refused.status, "NoSuchTableException", str(refused)
        error = {"message": message, "type": kind, "code": status}
        return _json({"error": error}, status=status)

    async def _answer(self, request: Request) -> Response:
        method, principal = request.method, request.principal
        head = method == "HEAD"
        reads = head or method == "GET"
        match request.segments:
            case ("config",) if reads:
                return _json({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})
            case ("namespaces",) if reads:
                inner = [] if request.query.get("parent") else [[NAMESPACE]]
                return _json({"namespaces": inner, "next-page-token": None})
            case ("namespaces", namespace, *rest):
                if namespace != NAMESPACE and reads and rest[:1] == ["tables"] and rest[1:]:
                    # Spark asks for `polynya.NAME.snapshots`, and for the table NAME after this
                    raise CatalogRefused(
                        404, "NoSuchTableException", f"there is no table in '{namespace}'"
                    )
                if namespace != NAMESPACE:
                    raise _missing_namespace(namespace)
                match rest:
                    case [] if reads:
                        return _found(head, {"namespace": [NAMESPACE], "properties": {}})
                    case ["tables"] if reads:
                        names = [_identifier(name) for name in await self._names(principal)]
                        return _json({"identifiers": names, "next-page-token": None})
                    case ["tables", name] if reads:
                        return await self._load(request, name, head=head)
                    case ["tables", name, "credentials"] if reads:
                        _, pointer = await self._find(name, principal)
                        return _json({"storage-credentials": self._credentials(pointer)})
                    case ["tables", name, "metrics"] if method == "POST":
                        await self._find(name, principal)
                        return Response(204)
        if reads:
            raise CatalogRefused(404, "NotFoundException", f"there is no {request.path}")
        raise CatalogRefused(403, "ForbiddenException", _READ_ONLY)

    async def _names(self, principal: Principal | None) -> list[str]:
        """Return the names of the tables with a first job, and of their dead letters."""
        found = [
            table for table in await self._tables.all() if table.main and readable(table, principal)
        ]
        return [name for table in found for name in (table.name, table.name + DLQ_SUFFIX)]

    async def _find(self, name: str, principal: Principal | None) -> tuple[Table, str]:
        """Return a table and the URI of its current metadata. Raises CatalogRefused,
        TableRefused."""
        table = await self._tables.find(name.removesuffix(DLQ_SUFFIX))
        if not readable(table, principal):
            raise CatalogRefused(
                403,
                "ForbiddenException",
                f"the token does not allow 'read' on all streams of table '{table.name}'",
            )
        pointer = table.dlq if name.endswith(DLQ_SUFFIX) else table.main
        if not pointer or self._read_object is None:
            raise CatalogRefused(
                404,
                "NoSuchTableException",
                f"table '{name}' has no rows yet: run 'polynya table sync {table.name}'",
            )
        return table, pointer

    async def _load(self, request: Request, name: str, *, head: bool) -> Response:
        """Return the current metadata, or 304 if the client has it."""
        for left in reversed(range(_TRIES)):
            table, pointer = await self._find(name, request.principal)
            tag = f'"{table.uid}-{pointer.rpartition("/")[2]}"'
            headers = (("ETag", tag), ("Cache-Control", "no-cache"))
            if head:
                return Response(204, headers=headers)
            if request.headers.get("if-none-match", "") == tag:
                return Response(304, headers=headers)
            assert self._read_object is not None
            try:
                metadata = await self._read_object(metadata_key(table, pointer))
                break
            except Unavailable:
                if not left:
                    raise
        value = {
            "metadata-location": pointer,
            "metadata": msgspec.Raw(metadata),
            "config": self._file_config,
            "storage-credentials": self._credentials(pointer),
        }
        return _json(value, headers=headers)

    def _credentials(self, pointer: str) -> list[dict[str, Any]]:
        """Return the keys for a table's files, if the server has some for readers."""
        if not self._file_config.get("s3.access-key-id"):
            return []
        return [{"prefix": self._base, "config": self._file_config}]


def file_config(store: StoreRef, keys: S3Keys) -> dict[str, str]:
    """Return the settings with which Iceberg's readers open a table's files."""
    if store.kind != "s3":
        return {}
    config = {
        "client.region": store.region,
        "s3.region": store.region,
        "s3.endpoint": store.endpoint,
        "s3.path-style-access": "true" if store.endpoint else "",
        "s3.access-key-id": keys.access_key_id,
        "s3.secret-access-key": keys.secret_access_key,
    }
    return {name: value for name, value in config.items() if value}


def _identifier(name: str) -> dict[str, Any]:
    return {"namespace": [NAMESPACE], "name": name}


def _missing_namespace(name: str) -> CatalogRefused:
    return CatalogRefused(
        404,
        "NoSuchNamespaceException",
        f"there is no namespace '{name}'; all tables are in the namespace '{NAMESPACE}'",
    )


def _found(head: bool, value: Any) -> Response:
    return Response(204) if head else _json(value)


def _json(value: Any, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(status, msgspec.json.encode(value), headers=headers)
