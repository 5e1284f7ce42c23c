"""Recovery at a start: torn tails, damage, missing files, foreign nodes; and expiry during
downtime."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from e2e_world import JSON, World
from long_tests import long
from polling import wait_until

pytestmark = pytest.mark.process
ONE = ("--cores", "1")


def journal(world: World, core: int = 0) -> Path:
    """Return the newest segment."""
    return max((world.data / f"core-{core}" / "journal").glob("*.journal"))


def end_of(path: Path) -> int:
    """Return the position behind the last non-zero byte."""
    return len(path.read_bytes().rstrip(b"\0"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def written(world: World, count: int = 50, size: int = 100) -> list[list[object]]:
    expected: list[list[object]] = []
    with contextlib.closing(world.connect()) as client:
        assert client.ask("PUT", "/v1/stream/recovery/s", **JSON).status == 201
        for number in range(count):
            record = [number, "x" * size]
            assert (
                client.ask(
                    "POST", "/v1/stream/recovery/s", json.dumps([record]).encode(), **JSON
                ).status
                == 204
            )
            expected.append(record)
    return expected


def marked(world: World) -> None:
    """Wait until the journal rests: then an idle core has noted on the disk how far it synced."""
    path = journal(world)
    seen = -1

    def still() -> bool:
        nonlocal seen
        before, seen = seen, end_of(path)
        return seen == before

    wait_until(still, what="the journal to rest", pause=0.2)


@pytest.mark.parametrize("seed", [2, *long([0, 1])])
def test_a_torn_tail_is_cut_and_told(world: World, seed: int) -> None:
    chance = random.Random(seed)
    world.start(*ONE)
    expected = written(world)
    world.kill_all()
    path = journal(world)
    end = end_of(path) + 8  # a frame may end in a few zeros
    with path.open("r+b") as file:
        if seed == 2:
            file.truncate(end + chance.randrange(1, 7))
        file.seek(end + seed)
        file.write(chance.randbytes(chance.randrange(1, 3000)))
    world.start(*ONE)
    assert "truncated the torn tail of a journal segment" in world.log
    assert world.records("recovery/s") == expected
    assert world.ask("POST", "/v1/stream/recovery/s", b"[1]", **JSON).status == 204
    world.kill_all()
    world.start(*ONE)
    assert "truncated the torn tail of a journal segment" not in world.log
    assert world.records("recovery/s") == [*expected, 1]


def test_a_flipped_bit_in_the_middle_refuses_the_start_and_changes_nothing(world: World) -> None:
    world.start(*ONE)
    expected = written(world)
    marked(world)
    world.kill_all()
    path = journal(world)
    offset = end_of(path) // 2
    flip(path, offset)
    damaged = path.read_bytes()
    for _ in range(2):
        code, said = world.refused(*ONE)
        assert code == 65
        assert f"journal segment {path} is damaged at offset " in said
        assert "Nothing was cut or changed" in said and "Traceback" not in said
        assert path.read_bytes() == damaged
    flip(path, offset)
    world.start(*ONE)
    assert world.records("recovery/s") == expected


@pytest.mark.long
def test_a_damaged_snapshot_refuses_the_start(world: World) -> None:
    world.start(*ONE)
    expected = written(world, count=70, size=1_000_000)
    folder = world.data / "core-0" / "snapshots"
    wait_until(lambda: len(list(folder.glob("*.snap"))) > 16, what="snapshots")
    world.kill_all()
    victim = max(folder.glob("*.snap"), key=lambda path: path.stat().st_size)
    flip(victim, victim.stat().st_size - 10)
    code, said = world.refused(*ONE)
    assert code == 65 and f"snapshot {victim} is damaged" in said and "Traceback" not in said
    flip(victim, victim.stat().st_size - 10)
    world.start(*ONE)
    assert world.records("recovery/s") == expected


def test_a_missing_segment_and_a_missing_identity_refuse_the_start(
    world: World, tmp_path: Path
) -> None:
    world.start("--cores", "2")
    expected = written(world, count=5)
    world.kill_all()
    identity = world.data / "node.json"
    identity.rename(tmp_path / "kept")
    code, said = world.refused()
    assert code == 78 and "node.json" in said and "restore" in said and "Traceback" not in said
    (tmp_path / "kept").rename(identity)
    other = World(tmp_path / "other")
    try:
        other.start("--cores", "2")
        other.kill_all()
        shutil.copy(other.data / "node.json", identity.with_name("copy"))
    finally:
        other.close()
    kept = identity.read_bytes()
    identity.with_name("copy").rename(identity)
    code, said = world.refused()
    assert code == 78 and "belongs to journal" in said and "Traceback" not in said
    identity.write_bytes(kept)
    world.start()
    assert world.records("recovery/s") == expected


@pytest.mark.long
def test_a_second_node_and_a_taken_port_are_refused(world: World, tmp_path: Path) -> None:
    world.start(*ONE)
    code, said = world.refused(*ONE)
    assert code == 78 and "is in use by another node" in said and "Traceback" not in said
    host, port = world.url.removeprefix("http://").split(":")
    other = World(tmp_path / "other")
    try:
        code, said = other.refused("--listen", f"{host}:{port}")
        assert code == 78 and f"port {port} of {host} is in use" in said and "Traceback" not in said
    finally:
        other.close()
    assert world.ask("GET", "/livez").status == 200


def test_starts_that_are_killed_at_any_moment_lose_nothing(world: World) -> None:
    chance = random.Random(7)
    world.start("--cores", "2")
    expected = written(world)
    world.flush()
    expected += [["hot"]]
    assert world.ask("POST", "/v1/stream/recovery/s", b'[["hot"]]', **JSON).status == 204
    world.kill_all()
    for _ in range(3):
        delay = chance.uniform(0.05, 1.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # kills the supervisor, and the cores die with it
            world.refused("--cores", "2", seconds=delay)
        world.wait_gone()
    world.start("--cores", "2")
    assert world.records("recovery/s") == expected


def test_what_expires_while_nothing_runs_is_gone_at_the_start(world: World) -> None:
    world.start(*ONE)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=4)
    at = soon.isoformat(timespec="seconds").replace("+00:00", "Z")
    lives = {
        "ttl/at": {"Stream_Expires_At": at},  # before it is over, however slow the machine is
        "ttl/short": {"Stream_TTL": "2"},
        "ttl/long": {"Stream_TTL": "3600"},
        "ttl/none": {},
    }
    created = {
        name: world.ask("PUT", f"/v1/stream/{name}", b'["old"]', **JSON, **life)
        for name, life in lives.items()
    }
    assert {answer.status for answer in created.values()} == {201}
    world.kill_all()
    wait_until(
        lambda: dt.datetime.now(dt.UTC) > soon + dt.timedelta(seconds=1), what="the time to pass"
    )
    world.start(*ONE)
    for _ in range(2):
        assert world.ask("GET", "/v1/stream/ttl/short?offset=-1").status == 404
        assert world.ask("HEAD", "/v1/stream/ttl/at").status == 404
        assert world.ask("HEAD", "/v1/stream/ttl/long").headers["stream-ttl"] == "3600"
        assert world.records("ttl/none") == ["old"]
        world.stop()
        world.start(*ONE)
    again = world.ask("PUT", "/v1/stream/ttl/short", b'["new"]', **JSON)
    assert again.status == 201
    assert again.headers["stream-incarnation"] != created["ttl/short"].headers["stream-incarnation"]
    assert world.records("ttl/short") == ["new"]


@pytest.mark.long
def test_reading_keeps_a_stream_alive_across_restarts(world: World) -> None:
    """Extend a TTL by reads: they are logged in time, so that a kill shortens a life by a moment
    at most."""
    world.start(*ONE)
    assert world.ask("PUT", "/v1/stream/ttl/slides", b"[1]", **JSON, Stream_TTL="15").status == 201
    with socket.create_connection(
        ("127.0.0.1", int(world.url.rsplit(":", 1)[1])), timeout=30
    ) as reader:
        reader.sendall(
            b"GET /v1/stream/ttl/slides?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        created = dt.datetime.now(dt.UTC)
        assert reader.recv(65536)
        wait_until(
            lambda: dt.datetime.now(dt.UTC) - created > dt.timedelta(seconds=15.5),
            what="more than its life",
        )
        assert world.ask("POST", "/v1/stream/other", b"[1]", **JSON).status == 404
        world.kill_all()
    world.start(*ONE)
    assert world.ask("HEAD", "/v1/stream/ttl/slides").status == 200
