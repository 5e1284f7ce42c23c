"""The handlers of the Iceberg catalog without a server: rights, vended keys, and metadata that a
job replaces while it is read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from front_world import World as Front
from front_world import play

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.base.errors import Unavailable
from polynya.front.http.api.iceberg_catalog import MOUNT, IcebergCatalog, S3Keys
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response
from polynya.service.tables import TableRefused
from polynya.stream.features.tables.state import Table
from polynya.wire.tables import StoreRef

NO_KEYS = S3Keys()
BUCKET = StoreRef("s3", "root", "lake", "eu-west-1", "http://127.0.0.1:9000")


class FakeTables:
    """Tables that a job may change between two requests."""

    def __init__(self) -> None:
        base = "s3://lake/root/tables"
        self.tables = [
            Table(7, "air", "air/", 0, main=f"{base}/7/main/_iceberg/1.metadata.json", dlq=f"{base}/7/dlq/_iceberg/1.metadata.json"),
            Table(8, "sea", "sea/", 0, main=f"{base}/8/main/_iceberg/1.metadata.json", dlq=f"{base}/8/dlq/_iceberg/1.metadata.json"),
            Table(9, "new", "new/", 0),
        ]  # fmt: skip

    async def all(self) -> list[Table]:
        return self.tables

    async def find(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise TableRefused(404, "TABLE_NOT_FOUND", f"there is no table '{name}'")


class World:
    def __init__(self, keys: S3Keys = NO_KEYS) -> None:
        self.tables = FakeTables()
        self.read: list[str] = []
        self.gone: set[str] = set()
        self.catalog = IcebergCatalog(self.tables, BUCKET, keys, self.object)  # type: ignore[arg-type]

    async def object(self, key: str) -> bytes:
        self.read.append(key)
        if key in self.gone:
            self.tables.tables[0].main = self.tables.tables[0].main.replace("/1.", "/2.")
            raise Unavailable(f"the object {key} cannot be read")
        return b'{"format-version":2}'

    def ask(self, *segments: str, principal: Principal | None = None, **headers: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        path = "/iceberg/v1/" + "/".join(segments)
        request = Request("GET", path, segments, {}, named, b"", "http://x", principal)
        return asyncio.run(self.catalog.handle(request))

    def json(self, *segments: str, principal: Principal | None = None) -> Any:
        return json.loads(self.ask(*segments, principal=principal).body)


TABLES = ("namespaces", "polynya", "tables")


def reader(prefix: str) -> Principal:
    return Principal(id="1", name="reader", grants=(Grant(frozenset([Verb.READ]), prefix),))


def test_a_table_of_another_namespace_is_missing_as_a_table() -> None:
    """Spark asks for the table `snapshots` of the namespace `polynya.air` before the table `air`."""
    world = World()
    answer = world.ask("namespaces", "polynya\x1fair", "tables", "snapshots")
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["type"] == "NoSuchTableException"
    assert (
        world.json("namespaces", "other", "tables")["error"]["type"] == "NoSuchNamespaceException"
    )


def test_a_caller_sees_the_tables_that_it_may_read() -> None:
    world = World()
    own = reader("air/")
    names = [each["name"] for each in world.json(*TABLES, principal=own)["identifiers"]]
    assert names == ["air", "air__dlq"]
    refused = world.ask(*TABLES, "sea", principal=own)
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["type"], error["code"]) == (403, "ForbiddenException", 403)
    assert world.ask(*TABLES, "sea", "credentials", principal=own).status == 403
    assert world.ask(*TABLES, "air__dlq", principal=own).status == 200
    assert world.read == ["tables/7/dlq/_iceberg/1.metadata.json"]


def test_keys_for_readers_are_given_only_with_the_settings() -> None:
    plain = {"client.region", "s3.region", "s3.endpoint", "s3.path-style-access"}
    answer = World().json(*TABLES, "air")
    assert set(answer["config"]) == plain and answer["storage-credentials"] == []
    answer = World(S3Keys("reader", "secret")).json(*TABLES, "air")
    assert set(answer["config"]) == plain | {"s3.access-key-id", "s3.secret-access-key"}
    (given,) = answer["storage-credentials"]
    assert given["prefix"] == "s3://lake/" and given["config"] == answer["config"]
    credentials = World(S3Keys("reader", "secret")).json(*TABLES, "air", "credentials")
    assert credentials["storage-credentials"] == [given]


def test_metadata_that_is_deleted_while_it_is_read_is_found_again() -> None:
    world = World()
    world.gone = {"tables/7/main/_iceberg/1.metadata.json"}
    answer = world.json(*TABLES, "air")
    assert answer["metadata-location"].endswith("/2.metadata.json")
    world.gone.add("tables/7/main/_iceberg/2.metadata.json")
    with pytest.raises(Unavailable):
        world.ask(*TABLES, "air")


def test_missing_things_are_named_in_icebergs_format() -> None:
    world = World()
    for segments, kind in (
        (("namespaces", "other"), "NoSuchNamespaceException"),
        ((*TABLES, "absent"), "NoSuchTableException"),
        ((*TABLES, "new"), "NoSuchTableException"),
        (("nothing",), "NotFoundException"),
    ):
        answer = world.ask(*segments)
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["type"], error["code"]) == (404, kind, 404)


def test_errors_before_the_catalog_have_icebergs_format() -> None:
    """Clients cannot parse another one, and would not show the reason."""

    async def refuse(request: Request) -> Response:
        raise Failure("TOKEN_REFUSED", "the token is not known here")

    async def story(front: Front) -> None:
        answer = await front.ask("GET", f"{MOUNT}config")
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"], error["type"]) == (401, 401, "TOKEN_REFUSED")
        assert error["message"] == "the token is not known here"

    play(story, mounts={MOUNT: refuse})
