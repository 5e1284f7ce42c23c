"""The same on a real S3 server."""

from __future__ import annotations

import os
from typing import Any

import pytest
from s3_server import ACCESS_KEY
from worlds.lakehouse import Lake

from polynya.base.errors import ConfigError
from polynya.lakehouse.jobs.worker import compact, merge
from polynya.lakehouse.machine.store import check_store
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.sql.policy import BadQuery, Bounds
from polynya.lakehouse.sql.query import ask, query
from polynya.objectstore import AlreadyExists, NotFound, StoreSettings, StoreUnavailable

pytestmark = pytest.mark.process


@pytest.fixture
def settings(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> StoreSettings:
    found = StoreSettings(**s3_server.settings())
    monkeypatch.setenv("POLYNYA_COLD_S3_ACCESS_KEY_ID", found.s3_access_key_id)
    monkeypatch.setenv("POLYNYA_COLD_S3_SECRET_ACCESS_KEY", found.s3_secret_access_key)
    return found


def test_blobs(settings: StoreSettings) -> None:
    blobs = open_blobs(settings)
    blobs.put("a/b", b"one")
    blobs.put("a/b", b"one")
    with pytest.raises(AlreadyExists):
        blobs.put("a/b", b"two")
    with pytest.raises(NotFound):
        blobs.get("a/c")
    upload = blobs.open_upload("a/large")
    for _ in range(20):
        upload.write(b"x" * 1_000_000)
    upload.close()
    assert len(blobs.get("a/large")) == 20_000_000
    assert blobs.get_range("a/large", 5, 3) == b"xxx"
    assert blobs.list_keys("a") == ["a/b", "a/large"]
    assert blobs.key(blobs.uri("a/b")) == "a/b"


def test_a_check_of_the_store_names_the_key_that_is_refused(settings: StoreSettings) -> None:
    open_blobs(settings).put("a", b"one")
    check_store(settings)
    for name, message in (
        ("POLYNYA_COLD_S3_ACCESS_KEY_ID", "refused the access key 'wrong'"),
        ("POLYNYA_COLD_S3_SECRET_ACCESS_KEY", f"refused the access key '{ACCESS_KEY}'"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_store(settings, {**os.environ, name: "wrong"})


def test_a_refused_read_is_told_in_one_line(settings: StoreSettings) -> None:
    wrong = {**os.environ, "POLYNYA_COLD_S3_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(StoreUnavailable) as refused:
        open_blobs(settings, wrong).get_range("a", 0, 1)
    assert "SignatureDoesNotMatch: " in str(refused.value) and "\n" not in str(refused.value)


def test_tables_in_a_bucket(settings: StoreSettings) -> None:
    lake = Lake(s3=settings)
    for number in range(3):
        lake.source.append(
            "s", [b'{"n":%d,"c%d":{"x":[1]}}' % (i, number) for i in range(50)], [b"7"]
        )
        compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
        lake.check_exactly_once()
    (merged,) = merge(lake.coordinator, "flights", lambda: lake.runner, lambda step, message: None)
    assert merged.replaced == 6
    lake.check_exactly_once()
    answer = query(lake.coordinator.tables(), "select count(*), sum(n) from flights")
    assert answer.rows == [(153, 3 * 1225)]


def test_a_stranger_reads_the_tables_of_a_question_and_no_other_key(
    settings: StoreSettings,
) -> None:
    lake = Lake(s3=settings)
    lake.source.append("s", [b'{"n":%d}' % i for i in range(50)])
    compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
    bounds = Bounds(memory_bytes=256 << 20)
    with ask(
        lake.coordinator.tables(), "select count(*), sum(n) from flights", bounds=bounds
    ) as found:
        assert next(found.blocks) == [(50, 1225)]
    packs = lake.blobs.uri("c1/packs")
    for statement in (
        f"from read_text('{packs}/**')",
        f"select * from flights, glob('{packs}/**')",
        "from 's3://other/x.parquet'",
    ):
        with (
            pytest.raises(BadQuery),
            ask(lake.coordinator.tables(), statement, bounds=bounds) as found,
        ):
            list(found.blocks)
