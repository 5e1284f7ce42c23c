"""The demo's query, computed in independent ways: from the original file, the streams (over HTTP and
by Spark), the Iceberg table (by its files and by the catalog) and the Delta table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from polynya.cli.demo import flights
from polynya.cli.demo.flights import Sums, Tally
from polynya.cli.remote.client import Client, stream_path

QUESTION = (
    "select carrier, count(*) as flights, count(arr_delay) as landed, sum(arr_delay) as delay "
    "from {table} group by carrier"
)
_KEYS = {"s3.access-key-id": "S3_ACCESS_KEY_ID", "s3.secret-access-key": "S3_SECRET_ACCESS_KEY"}
Answer = Callable[[], list[Sums]]


class _Flight(msgspec.Struct):
    carrier: str
    arr_delay: int | None


def from_file() -> list[Sums]:
    """Compute it from the CSV file of the package."""
    tally = Tally()
    for row in flights.rows():
        delay = row["arr_delay"]
        tally.add(row["carrier"], None if delay == flights.MISSING else int(delay))
    return tally.sums()


def from_streams(client: Client, streams: Iterable[str]) -> list[Sums]:
    """Compute it from the streams, read page by page over HTTP."""
    tally = Tally()
    decoder = msgspec.json.Decoder(list[_Flight])
    for stream in streams:
        offset, ended = "-1", False
        while not ended:
            page = client.call("GET", stream_path(stream), params={"offset": offset})
            for flight in decoder.decode(page.content):
                tally.add(flight.carrier, flight.arr_delay)
            offset = page.headers["stream-next-offset"]
            ended = page.headers.get("stream-up-to-date", "").lower() == "true"
    return tally.sums()


def from_iceberg(server: str, table: str) -> list[Sums]:
    """Query the Iceberg table with DuckDB."""
    from polynya.lakehouse.server.coordinator import HttpCoordinator
    from polynya.lakehouse.sql.query import query

    return _sums(query(HttpCoordinator("", server).tables(), QUESTION.format(table=table)).rows)


def from_delta(location: str, store: dict[str, Any]) -> list[Sums]:
    """Query the Delta table at a URI of a store, read through its log by deltalake."""
    import duckdb
    from deltalake import DeltaTable

    from polynya.lakehouse.jobs.plan import store_settings
    from polynya.lakehouse.reading.blobs import open_blobs
    from polynya.wire.tables import StoreRef

    blobs = open_blobs(store_settings(msgspec.convert(store, StoreRef)))
    table = DeltaTable(location, storage_options=blobs.storage_options() or None)
    found = table.to_pyarrow_table(columns=["carrier", "arr_delay"])
    connection = duckdb.connect()
    connection.register("found", found)
    return _sums(connection.execute(QUESTION.format(table="found")).fetchall())


def from_catalog(server: str, table: str) -> list[Sums]:
    """Query the Iceberg table by its name in the server's REST catalog, read by pyiceberg."""
    import duckdb
    from pyiceberg.catalog.rest import RestCatalog

    # of a bucket; the catalog gives a reader no keys unless it is configured to
    keys = {
        name: os.environ[f"POLYNYA_COLD_{variable}"]
        for name, variable in _KEYS.items()
        if f"POLYNYA_COLD_{variable}" in os.environ
    }
    catalog = RestCatalog("polynya", uri=f"{server}/iceberg", **keys)
    scan = catalog.load_table(("polynya", table)).scan(selected_fields=("carrier", "arr_delay"))
    connection = duckdb.connect()
    connection.register("found", scan.to_arrow())
    return _sums(connection.execute(QUESTION.format(table="found")).fetchall())


def from_spark(spark: Any, server: str, prefix: str) -> list[Sums]:
    """Query the streams in Spark, which reads them from the object store."""
    reader = spark.read.format("polynya").option("server", server).option("prefix", prefix)
    flat = (
        reader.schema("value binary")
        .load()
        .selectExpr("from_json(cast(value as string), 'carrier string, arr_delay int') as flight")
    )
    flat.selectExpr("flight.*").createOrReplaceTempView("found")
    return _sums(map(tuple, spark.sql(QUESTION.format(table="found")).collect()))


def _sums(rows: Iterable[tuple[Any, ...]]) -> list[Sums]:
    return sorted(
        Sums(carrier, int(count), int(landed), int(delay)) for carrier, count, landed, delay in rows
    )
