"""Bytes that readers fetch from the object store for one stream or a few days of a large table. A
proxy counts them, metadata included."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from long_tests import long
from s3_server import S3Server
from worlds.lakehouse import DAY_MS, FILE_ROWS, T0, Lake, many_files
from worlds.s3_faults import Faults, S3FaultProxy

from polynya.lakehouse.sql.query import query
from polynya.objectstore import StoreSettings

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SHARE_MAX = 0.05  # of the bytes of all data files
FILES = [100, *long([1000])]


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3FaultProxy]:
    made = S3FaultProxy(s3_server.endpoint, Faults(), seed=1)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def lake(s3_server: S3Server, proxy: S3FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Lake:
    found = StoreSettings(**{**s3_server.settings(), "s3_endpoint": proxy.endpoint})
    monkeypatch.setenv("POLYNYA_COLD_S3_ACCESS_KEY_ID", found.s3_access_key_id)
    monkeypatch.setenv("POLYNYA_COLD_S3_SECRET_ACCESS_KEY", found.s3_secret_access_key)
    return Lake(s3=found)


def delta(lake: Lake, where: Any) -> int:
    uri = lake.blobs.uri(f"{lake.coordinator.table.location}/main")
    table = DeltaTable(uri, storage_options=lake.blobs.storage_options())
    return table.to_pyarrow_dataset().to_table(filter=where).num_rows


def check_shares(
    lake: Lake, proxy: S3FaultProxy, size: int, rows: int, where: str, expression: Any
) -> None:
    """Each reader finds the rows, and fetches at most its share of the bytes."""
    readers: dict[str, Callable[[], int]] = {
        "pyiceberg": lambda: lake.static_table().scan(row_filter=where).to_arrow().num_rows,
        "deltalake": lambda: delta(lake, expression),
        "DuckDB": lambda: len(
            query(lake.coordinator.tables(), f"select * from flights where {where}").rows  # noqa: S608
        ),
    }
    shares = {}
    for name, read in readers.items():
        before = proxy.bytes_read
        assert read() == rows, name
        shares[name] = round((proxy.bytes_read - before) / size, 4)
    assert all(0 < share <= SHARE_MAX for share in shares.values()), shares


@pytest.mark.parametrize("files", FILES)
def test_a_reader_of_one_stream_fetches_its_files(
    lake: Lake, proxy: S3FaultProxy, files: int
) -> None:
    size = many_files(lake, "stream", files, 1)
    name = "fleet/0042"
    check_shares(lake, proxy, size, FILE_ROWS, f"stream = '{name}'", ds.field("stream") == name)


@pytest.mark.parametrize("files", FILES)
def test_a_reader_of_two_days_fetches_their_files(
    lake: Lake, proxy: S3FaultProxy, files: int
) -> None:
    size = many_files(lake, "day(timestamp)", 1, files)
    begin = dt.datetime.fromtimestamp((T0 - T0 % DAY_MS) / 1000, dt.UTC) + dt.timedelta(days=40)
    end = begin + dt.timedelta(days=2)
    where = f"timestamp >= '{begin.isoformat()}' and timestamp < '{end.isoformat()}'"
    column = ds.field("timestamp")
    check_shares(lake, proxy, size, 2 * FILE_ROWS, where, (column >= begin) & (column < end))
