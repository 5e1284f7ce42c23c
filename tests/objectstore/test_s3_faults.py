"""S3 that is away or says no: a clear StoreUnavailable, never another library's exception."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest
from s3_server import S3Server

from polynya.objectstore import ObjectStore, StoreSettings, StoreUnavailable, open_store
from polynya.objectstore.s3 import S3Store


async def every_call_fails(store: ObjectStore) -> str:
    messages = []
    for call in (
        store.put("k", [b"x", b"y"]),
        store.put("k", b""),
        store.get("k"),
        store.get_range("k", 0, 1),
        store.head("k"),
        store.delete(["k"]),
        store.compare_and_swap("k", b"", None),
        store.compare_and_swap("k", b"", '"etag"'),
    ):
        with pytest.raises(StoreUnavailable) as fault:
            await call
        messages.append(str(fault.value))
    with pytest.raises(StoreUnavailable):
        _ = [info async for info in store.list("")]
    return messages[0]


def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.objectstore.s3._READ_RETRIES", 0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        settings = StoreSettings(
            backend="s3", root="r", s3_bucket="b", s3_endpoint=endpoint, s3_access_key_id="a", s3_secret_access_key="b"
        )  # fmt: skip
        store = open_store(settings)
        assert isinstance(store, S3Store)
        assert "s3://b/r" in asyncio.run(every_call_fails(store))


@pytest.mark.process
def test_wrong_credentials(s3_server: S3Server) -> None:
    settings = StoreSettings(**s3_server.settings())
    store = open_store(msgspec.structs.replace(settings, s3_secret_access_key="wrong"))
    assert store is not None
    assert "s3://tests/" in asyncio.run(every_call_fails(store))
