"""A whole node on S3: appends, packs, restarts, cold reads, and objects that go when their streams
do."""

from __future__ import annotations

import contextlib
import json

import obstore
import pytest
from e2e_crashes import Flushes, LongPollTail, PlainWriter, Producer, SseTail, Worker, at_work
from e2e_world import JSON, World
from obstore.store import S3Store
from s3_server import S3Server, s3_server

__all__ = ["s3_server"]
pytestmark = pytest.mark.process


def variables(server: S3Server) -> dict[str, str]:
    """Return the settings of a node with a root of its own, as environment variables."""
    return {f"POLYNYA_COLD_{name.upper()}": value for name, value in server.settings().items()}


def keys(settings: dict[str, str]) -> list[str]:
    """List the packs under the node's root."""
    named = {name.removeprefix("POLYNYA_COLD_").lower(): value for name, value in settings.items()}
    store = S3Store(
        named["s3_bucket"],
        endpoint=named["s3_endpoint"],
        region=named["s3_region"],
        access_key_id=named["s3_access_key_id"],
        secret_access_key=named["s3_secret_access_key"],
        client_options={"allow_http": True},
    )
    return [
        entry["path"]
        for page in obstore.list(store, prefix=named["root"])
        for entry in page
        if "/packs/" in entry["path"]
    ]


def test_a_node_on_s3_reads_back_what_it_flushed_and_releases_it(
    world: World, s3_server: S3Server
) -> None:
    settings = variables(s3_server)
    world.start("--cores", "2", **settings)
    expected = {
        f"s3/s{number}": [[number, turn, "x" * 1000] for turn in range(30)] for number in range(6)
    }
    with contextlib.closing(world.connect()) as client:
        for name, records in expected.items():
            assert client.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
            for record in records:
                assert (
                    client.ask(
                        "POST", f"/v1/stream/{name}", json.dumps([record]).encode(), **JSON
                    ).status
                    == 204
                )
    assert world.flush().status == 200
    packs = keys(settings)
    assert packs
    world.kill_all()
    world.start("--cores", "2", **settings)
    for name, records in expected.items():
        assert world.records(name) == records
        assert world.ask("DELETE", f"/v1/stream/{name}").status == 204


@pytest.mark.long
def test_nothing_acknowledged_is_lost_by_kill_9_on_s3(world: World, s3_server: S3Server) -> None:
    settings = variables(s3_server)
    flags = ("--cores", "2", "--long-poll-timeout", "0.5")
    world.start(*flags, **settings)
    workers: list[Worker] = [
        PlainWriter(world, "s3/plain"),
        Producer(world, "s3/once"),
        SseTail(world, "s3/once"),
        LongPollTail(world, "s3/plain"),
        Flushes(world),
    ]
    with at_work(workers) as progress:
        for _ in range(2):
            progress(100)
            world.kill_all()
            world.start(*flags, **settings)
        progress(100)
    assert world.flush().status == 200
    for worker in workers[:-1]:
        worker.check()  # type: ignore[attr-defined]


def test_s3_that_does_not_answer_refuses_the_start_and_says_so(world: World) -> None:
    settings = {
        "POLYNYA_COLD_BACKEND": "s3",
        "POLYNYA_COLD_S3_BUCKET": "nowhere",
        "POLYNYA_COLD_S3_ENDPOINT": "http://127.0.0.1:9",
        "POLYNYA_COLD_S3_ACCESS_KEY_ID": "a",
        "POLYNYA_COLD_S3_SECRET_ACCESS_KEY": "secret-word",
    }
    code, said = world.refused("--cores", "1", seconds=120, **settings)
    assert code == 78 and "the object store cannot be reached" in said
    assert "Traceback" not in said and "secret-word" not in said
