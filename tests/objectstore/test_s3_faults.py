"""S3 that is away or says no: a clear StoreUnavailable, never another library's exception."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from missing import left_out
from s3_server import S3Server

from polynya.objectstore import (
    AlreadyExists,
    Conflict,
    ObjectStore,
    StoreSettings,
    StoreUnavailable,
    open_store,
)
from polynya.objectstore.s3 import S3Store
from polynya.objectstore.s3_refusals import describe, reason

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos import shim  # noqa: E402  (not a part of the package)

AWS_SKEWED = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is too large.</Message>\
<RequestTime>20261122T010000Z</RequestTime><ServerTime>2026-11-22T00:00:01Z</ServerTime><MaxAllowedSkewMilliseconds>900000\
</MaxAllowedSkewMilliseconds><RequestId>9A0B</RequestId><HostId>x</HostId></Error>"""
MINIO_SKEWED = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the server&#39;s time is too large.</Message>\
<Key>k</Key><BucketName>b</BucketName><Resource>/b/r/k</Resource><RequestId>18EA</RequestId><HostId>dd</HostId></Error>"""
AWS_DENIED = """<Error><Code>AccessDenied</Code><Message>User: arn:aws:iam::1:user/x is not authorized to perform: s3:PutObject</Message>\
<RequestId>1</RequestId></Error>"""
A_PAGE = "<html>an answer of a proxy\n\nof two parts</html>"
SKEWED = """
import asyncio, json, os, sys
from polynya.objectstore import StoreSettings, StoreUnavailable, open_store
store = open_store(StoreSettings(**json.loads(sys.argv[1])))
async def main():
    for call in (store.put("k", b"x"), store.head("k")):
        try:
            await call
            print("done")
        except StoreUnavailable as fault:
            print(fault)
asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # the library's threads may not be done
"""


def store_at(port: int) -> ObjectStore:
    settings = StoreSettings(
        backend="s3", root="r", s3_bucket="b", s3_endpoint=f"http://127.0.0.1:{port}", s3_access_key_id="a", s3_secret_access_key="b"
    )  # fmt: skip
    store = open_store(settings)
    assert isinstance(store, S3Store)
    return store


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
        assert "s3://b/r" in asyncio.run(every_call_fails(store_at(closed.getsockname()[1])))


@asynccontextmanager
async def answering(status: str, body: str = "") -> AsyncIterator[ObjectStore]:
    """The store of a service that answers all with this, HEAD without the body."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: "
            f"{len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write((head + ("" if request.startswith(b"HEAD") else body)).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield store_at(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def refused(status: str, body: str) -> tuple[str, str]:
    """Return the errors of a put and a head."""
    said = []
    async with answering(status, body) as store:
        for call in (store.put("k", b""), store.head("k")):
            with pytest.raises(StoreUnavailable) as fault:
                await call
            said.append(str(fault.value))
    return said[0], said[1]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("412 Precondition Failed", "PreconditionFailed"),
        ("409 Conflict", "ConditionalRequestConflict"),  # to conditional writes that race
        ("404 Not Found", "NoSuchKey"),  # to If-Match on a key that is gone
    ],
)
def test_each_no_of_s3_to_a_conditional_write_is_one(status: str, code: str) -> None:
    """Report a refused conditional write as a conflict, never as "unavailable". A retry would
    mistake its answer for its own success."""

    async def story() -> None:
        async with answering(
            status, f"<Error><Code>{code}</Code><Message>No.</Message></Error>"
        ) as store:
            with pytest.raises(Conflict):
                await store.compare_and_swap("k", b"new", '"old"')
            if not status.startswith("404"):
                with pytest.raises(AlreadyExists):
                    await store.put("k", b"new")
                with pytest.raises(Conflict):
                    await store.compare_and_swap("k", b"new", None)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            "403 Forbidden",
            AWS_SKEWED,
            (
                "RequestTimeTooSkewed",
                "current time is too large",
                "2026-11-22T00:00:01Z at the store",
                "by NTP",
            ),
        ),
        (
            "403 Forbidden",
            MINIO_SKEWED,
            ("RequestTimeTooSkewed", "server's time is too large", "by NTP"),
        ),
        (
            "403 Forbidden",
            AWS_DENIED,
            ("AccessDenied", "s3:PutObject", "these credentials must be allowed"),
        ),
        ("403 Forbidden", A_PAGE, ("/b/r/k: 403 Forbidden",)),
        (
            "400 Bad Request",
            "<Error><Code>ExpiredToken</Code><Message>It is over.</Message></Error>",
            ("It is over", "renew the token"),
        ),
    ],
)
def test_a_refusal_says_why_and_what_to_do(status: str, body: str, words: tuple[str, ...]) -> None:
    for said in asyncio.run(refused(status, body)):
        assert said.startswith("s3://b/r: ")
        assert "\n" not in said
        assert len(said) < 700
        for word in words:
            assert word in said


@pytest.mark.parametrize(
    "end",
    [
        "1ms - Server returned non-2xx status code: 403 Forbidden: ",
        "10.2s, after 3 retries - HTTP error: connect",
    ],
)
def test_that_no_credentials_are_set_is_said(end: str) -> None:
    fault = OSError(
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in "
        f"{end}\n\nDebug source:\nx"
    )
    for said in (describe(fault), reason(fault)):
        assert (
            said.startswith(
                "no credentials are set (cold.s3_access_key_id and its secret, or AWS_ACCESS_KEY_ID"
            )
            and "\n" not in said
        )
    assert "169.254.169.254" in describe(fault) and "169.254.169.254" not in reason(fault)


@pytest.mark.process
def test_a_clock_that_is_wrong(s3_server: S3Server, tmp_path: Path) -> None:
    library, why = shim.build(tmp_path)
    if library is None:
        left_out(why)
    orders = shim.Orders(tmp_path / "orders")
    orders.give(real_ms=3_600_000)
    variables = os.environ | orders.variables(library) | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SKEWED, json.dumps(s3_server.settings())]
    said = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert len(said) == 2
    for line in said:
        assert "RequestTimeTooSkewed" in line
        assert "the clocks of this machine and of the object store differ" in line


@pytest.mark.process
def test_wrong_credentials(s3_server: S3Server) -> None:
    settings = StoreSettings(**s3_server.settings())
    store = open_store(msgspec.structs.replace(settings, s3_secret_access_key="wrong"))
    assert store is not None
    said = asyncio.run(every_call_fails(store))
    assert "s3://tests/" in said
    assert "SignatureDoesNotMatch" in said
    assert "check that the secret access key belongs to the access key id" in said
