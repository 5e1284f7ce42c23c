"""A full disk, a disk whose fsync fails, an object store that is gone: writes are refused with a
reason, reads go on, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_crashes import PlainWriter, Producer, at_work
from e2e_world import JSON, Answer, Client, Lost, World, is_root, metric, raw, read_until
from long_tests import long
from missing import left_out, needed_program
from polling import wait_until
from worlds.disk_faults import DiskOrders

pytestmark = pytest.mark.process


@pytest.fixture
def orders(tmp_path: Path) -> DiskOrders:
    return DiskOrders(tmp_path)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of this size until `with` ends, so that it can be full."""
    if not is_root():
        left_out("mounting a small file system needs root")
    mount = needed_program("mount")
    folder.mkdir()
    done = subprocess.run(
        [
            mount,
            "-t",
            "tmpfs",
            "-o",
            f"size={megabytes}m,nr_inodes=1000",
            "polynya-e2e",
            str(folder),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        left_out(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, how: str) -> None:
    """Repeat the remount: `ro` is refused ("busy") while the server has a file open for writing."""
    said = [""]

    def granted() -> bool:
        done = subprocess.run(
            ["mount", "-o", f"remount,{how}", str(folder)],
            check=False,
            capture_output=True,
            text=True,
        )
        said[0] = done.stderr.strip()
        return done.returncode == 0

    try:
        wait_until(granted, what=f"{folder} to be remounted {how}", pause=0.01)
    except AssertionError as error:
        raise AssertionError(f"{error}; mount said: {said[0]}") from None


def fill(path: Path, *, leave: int = 0) -> None:
    """Take the room that is left in the file system, but for some bytes."""
    with path.open("ab") as file, contextlib.suppress(OSError):
        free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
        while free > leave:
            file.write(b"x" * min(1 << 20, free - leave))
            file.flush()
            free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize


def fill_names(folder: Path) -> list[Path]:
    """Take all that the file system has for names of files; the files made."""
    made = []
    with contextlib.suppress(OSError):
        while True:
            path = folder / f"name-{len(made)}"
            path.touch()
            made.append(path)
    return made


@pytest.mark.parametrize("cores", [2, *long([1])])
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(tmp_path: Path, cores: int) -> None:
    with small_disk(tmp_path / "disk", 80 + 130 * cores) as disk:
        world = World(disk / "data")
        try:
            world.start("--cores", str(cores))
            names = [f"full/s{number}" for number in range(8)]  # on every core
            acknowledged: dict[str, list[int]] = {name: [] for name in names}
            with contextlib.closing(world.connect()) as client:
                for name in names:
                    assert client.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
                assert append_until(client, acknowledged, 507, count=40) == 0, "there is room"
                ballast = disk / "ballast"
                fill(ballast)
                fill_up(client, acknowledged)
                fill(ballast)
                for name in names:  # writes of every kind say so; reads go on
                    assert json.loads(client.ask("GET", f"/v1/stream/{name}?offset=-1").body)
                large = json.dumps("x" * 10_000).encode()
                refused(
                    client.ask(
                        "POST", f"/v1/stream/{names[0]}", large, Stream_Closed="true", **JSON
                    )
                )
                refused(client.ask("PUT", "/v1/stream/full/new", large, **JSON))
                refused(
                    client.ask(
                        "PUT",
                        "/v1/stream/full/fork",
                        large,
                        Stream_Forked_From=f"/v1/stream/{names[1]}",
                    )
                )
                assert client.ask("GET", "/livez").status == 200
                ballast.unlink()
                wait_until(
                    lambda: client.ask("PUT", "/v1/stream/full/new", **JSON).status == 201,
                    what="writes to be taken again",
                )
                wait_until(
                    lambda: append_until(client, acknowledged, 507, count=40) == 0,
                    what="each core to have room again",
                )
            holds(world, acknowledged)
            assert "died" not in world.log, world.log
            world.kill_all()
            world.start("--cores", str(cores))
            holds(world, acknowledged)
        finally:
            world.close()


def refused(answer: Answer) -> None:
    assert (answer.status, answer.code) == (507, "DISK_FULL"), answer
    assert answer.headers["stream-outcome"] == "refused"


def fill_up(client: Client, acknowledged: dict[str, list[int]]) -> None:
    """Append until every core refuses even small appends."""
    for size in (1_000_000, 10_000, 100, 0):
        for name, numbers in acknowledged.items():
            assert append_until(client, {name: numbers}, 507, count=400, size=size) == 507


def append_until(
    client: Client,
    acknowledged: dict[str, list[int]],
    status: int,
    *,
    count: int,
    size: int = 100_000,
    passing: str = "",
) -> int:
    """Append until the status is met; return it, that of a `passing` error, or 0 when all was
    taken."""
    names = list(acknowledged)
    for turn in range(count):
        name = names[turn % len(names)]
        number = len(acknowledged[name])
        body = json.dumps([{"n": number, "pad": "x" * size}]).encode()
        answer = client.ask("POST", f"/v1/stream/{name}", body, **JSON)
        if answer.status == 204:
            acknowledged[name].append(number)
            continue
        assert answer.status == status or answer.code == passing, answer
        return answer.status
    return 0


def holds(world: World, acknowledged: dict[str, list[int]]) -> None:
    for name, expected in acknowledged.items():
        assert [record["n"] for record in world.records(name)] == expected, name


def test_a_disk_without_room_for_a_journal_refuses_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 20) as disk:
        world = World(disk / "data")
        try:
            code, said = world.refused("--cores", "1")
        finally:
            world.close()
        assert f"polynya: data: {disk}/data/core-0 has no room for the journal" in said
        assert "Traceback" not in said and code == 78


@pytest.mark.long
def test_snapshots_on_a_full_disk_are_tried_again(tmp_path: Path) -> None:
    """The bytes after which snapshots are written are reached when there is no room for one."""
    with small_disk(tmp_path / "disk", 220) as disk:
        world = World(disk / "data")
        try:
            world.start("--cores", "1", POLYNYA_COLD_FLUSH_INTERVAL_MS="0")
            snapshots = disk / "data" / "core-0" / "snapshots"
            acknowledged: dict[str, list[int]] = {f"snap/s{number}": [] for number in range(40)}
            with contextlib.closing(world.connect()) as client:
                for name in acknowledged:
                    assert client.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
                assert append_until(client, acknowledged, 507, count=62, size=1_000_000) == 0
                files = fill_names(disk)
                for path in files[:4]:  # room for the next segment, and for a few snapshots
                    path.unlink()
                assert append_until(client, acknowledged, 507, count=10, size=1_000_000) == 0
                wait_until(
                    lambda: "snapshots failed; retrying" in world.log or "died" in world.log,
                    what="a snapshot to fail",
                )
                assert "died" not in world.log, world.log
                for path in files[4:]:
                    path.unlink()
                wait_until(
                    lambda: len(list(snapshots.glob("*.snap"))) > 16, what="snapshots of all groups"
                )
                assert append_until(client, acknowledged, 507, count=40) == 0
            world.kill_all()
            world.start("--cores", "1")
            holds(world, acknowledged)
        finally:
            world.close()


@pytest.mark.parametrize("call", ["fdatasync", *long(["pwrite"])])
def test_an_error_of_the_journals_disk_stops_the_node_and_a_restart_has_everything(
    world: World, orders: DiskOrders, call: str
) -> None:
    world.start("--cores", "1", **orders.variables)
    writers = [PlainWriter(world, "sync/plain"), Producer(world, "sync/once")]
    with at_work(list(writers)) as progress:
        progress(50)
        orders.fail(call, "EIO", at=20)
        assert world.node is not None
        assert world.node.wait() == 74
        assert "the disk failed to write or to sync" in world.log
        world.wait_gone()
        orders.clear()
        world.start("--cores", "1", **orders.variables)
        progress(50)
    for writer in writers:
        writer.check()


@pytest.mark.long
def test_an_object_that_cannot_be_synced_is_not_published(world: World, orders: DiskOrders) -> None:
    world.start("--cores", "1", **orders.variables)
    assert world.ask("PUT", "/v1/stream/sync/s", b"[1]", **JSON).status == 201
    orders.fail("fsync", "EIO")
    assert world.flush().status == 503
    assert world.ask("POST", "/v1/stream/sync/s", b"[2]", **JSON).status == 204
    assert world.records("sync/s") == [1, 2]
    assert metric(world, "polynya_flush_packs_total") == 0
    orders.clear()
    assert world.flush().status == 200
    assert metric(world, "polynya_flush_packs_total") == 1
    world.kill_all()
    world.start("--cores", "1")
    assert world.records("sync/s") == [1, 2]


def test_an_object_store_that_is_gone_holds_up_appends_only_at_the_bound(tmp_path: Path) -> None:
    with small_disk(tmp_path / "objects", 20) as store:
        world = World(tmp_path / "data")
        settings = {
            "POLYNYA_COLD_ROOT": str(store / "root"),
            "POLYNYA_COLD_MAX_HOT_BYTES_PER_GROUP": str(3 << 20),
        }
        settings |= {
            "POLYNYA_COLD_FLUSH_BYTES": str(256 << 10),
            "POLYNYA_COLD_FLUSH_INTERVAL_MS": "50",
        }
        try:
            world.start("--cores", "1", **settings)
            acknowledged: dict[str, list[int]] = {"store/s": []}
            with contextlib.closing(world.connect()) as client:
                assert client.ask("PUT", "/v1/stream/store/s", **JSON).status == 201
                assert append_until(client, acknowledged, 503, count=20) == 0
                remount(store, "ro")
                assert append_until(client, acknowledged, 503, count=100) == 503
                answer = client.ask(
                    "POST", "/v1/stream/store/s", json.dumps(["x" * 100_000]).encode(), **JSON
                )
                assert (answer.status, answer.code, answer.headers["retry-after"]) == (
                    503,
                    "MEMORY_PRESSURE",
                    "1",
                )
                assert len(acknowledged["store/s"]) > 25
                holds(world, acknowledged)
                remount(store, "rw")
                wait_until(
                    lambda: append_until(client, acknowledged, 503, count=1) == 0,
                    what="appends to be taken again",
                )
                assert world.flush().status == 200
            holds(world, acknowledged)
            assert "died" not in world.log, world.log
        finally:
            world.close()


@pytest.mark.long
def test_a_full_object_store_is_named_when_appends_reach_the_bound(tmp_path: Path) -> None:
    """Expect 507, as of any full disk: to wait does not help. Reads go on, and so does everything
    once there is room."""
    with small_disk(tmp_path / "objects", 20) as store:
        world = World(tmp_path / "data")
        settings = {
            "POLYNYA_COLD_ROOT": str(store / "root"),
            "POLYNYA_COLD_MAX_HOT_BYTES_PER_GROUP": str(3 << 20),
        }
        settings |= {
            "POLYNYA_COLD_FLUSH_BYTES": str(256 << 10),
            "POLYNYA_COLD_FLUSH_INTERVAL_MS": "50",
        }
        try:
            world.start("--cores", "1", **settings)
            acknowledged: dict[str, list[int]] = {"store/s": []}
            with contextlib.closing(world.connect()) as client:
                assert client.ask("PUT", "/v1/stream/store/s", **JSON).status == 201
                assert append_until(client, acknowledged, 507, count=20) == 0
                ballast = store / "ballast"
                fill(ballast, leave=64 << 10)  # something small still finds room
                wait_until(  # the bound may be reached before the store's first answer is known
                    lambda: (
                        append_until(
                            client, acknowledged, 507, count=200, passing="MEMORY_PRESSURE"
                        )
                        == 507
                    ),
                    what="the full store to be known",
                    seconds=60,
                )
                for _ in range(20):
                    answer = client.ask(
                        "POST", "/v1/stream/store/s", json.dumps(["x" * 100_000]).encode(), **JSON
                    )
                    assert (answer.status, answer.code) == (
                        507,
                        "MEMORY_FULL",
                    ) and b"no room" in answer.body, answer
                    assert answer.headers["stream-outcome"] == "refused"
                holds(world, acknowledged)
                ballast.unlink()
                began = time.monotonic()
                wait_until(
                    lambda: append_until(client, acknowledged, 507, count=1) == 0,
                    what="appends to be taken again",
                )
                assert time.monotonic() - began < 3.0
                assert world.flush().status == 200
            holds(world, acknowledged)
        finally:
            world.close()


@pytest.mark.long
def test_a_core_that_dies_while_the_object_store_is_gone_comes_back_without_it_and_uses_it_when_it_is_there(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "objects", 20) as store:
        world = World(tmp_path / "data")
        try:
            world.start("--cores", "1", POLYNYA_COLD_ROOT=str(store / "root"))
            assert world.ask("PUT", "/v1/stream/store/s", b"[1]", **JSON).status == 201
            remount(store, "ro")
            world.kill_cores()
            wait_until(
                lambda: "a core died" in world.log and answers(world),
                what="the core to serve again",
                seconds=150,
            )
            assert world.records("store/s") == [1]
            assert world.ask("POST", "/v1/stream/store/s", b"[2]", **JSON).status == 204
            assert world.flush().status == 503
            remount(store, "rw")
            wait_until(
                lambda: world.flush().status == 200, what="the store to be used", seconds=150
            )
            assert world.records("store/s") == [1, 2]
            assert world.log.count("a core died") == 1
        finally:
            world.close()


def answers(world: World) -> bool:
    with contextlib.suppress(Lost):
        return world.ask("GET", "/livez").status == 200
    return False


@pytest.mark.long
def test_an_object_that_disappeared_is_an_error_and_nothing_worse(world: World) -> None:
    """Remove a pack: its bytes are unreadable, which must not shorten a response; everything else
    continues."""
    world.start("--cores", "1")
    assert world.ask("PUT", "/v1/stream/lost/a", b"[1]", **JSON).status == 201
    assert world.flush().status == 200
    packs = [
        path
        for path in (world.data / "objects").rglob("*")
        if "/packs/" in str(path) and path.is_file()
    ]
    assert packs
    for pack in packs:
        pack.unlink()
    answer = world.ask("GET", "/v1/stream/lost/a?offset=-1")
    assert answer.status == 503 and b"is missing from the object store" in answer.body, answer
    assert world.ask("POST", "/v1/stream/lost/a", b"[2]", **JSON).status == 204
    tail = world.ask("HEAD", "/v1/stream/lost/a").next_offset
    assert world.ask("GET", f"/v1/stream/lost/a?offset={tail}").body == b"[]"
    assert world.node is not None and world.node.process.poll() is None


def test_nothing_is_visible_before_it_is_synced(world: World, orders: DiskOrders) -> None:
    """Delay the fdatasync of an append: until it ends, neither the writer nor any reader learns of
    the append."""
    world.start("--cores", "1", "--long-poll-timeout", "60", **orders.variables)
    tail = world.ask("PUT", "/v1/stream/sync/seen", **JSON).next_offset
    with contextlib.ExitStack() as stack:
        live = [stack.enter_context(raw(world.url)) for _ in range(2)]
        for reader, mode in zip(live, ("sse", "long-poll"), strict=True):
            reader.sendall(
                f"GET /v1/stream/sync/seen?offset={tail}&live={mode} HTTP/1.1\r\nHost: "
                "localhost\r\n\r\n".encode()
            )
        read_until(live[0], b"upToDate")
        wait_until(
            lambda: metric(world, "polynya_http_long_polls_total") == 1,
            what="the long-poll to wait",
        )
        orders.hold("fdatasync")
        writer = stack.enter_context(raw(world.url))
        head = (
            "POST /v1/stream/sync/seen HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            "application/json\r\nContent-Length: 5\r\n\r\n"
        )
        writer.sendall(head.encode() + b"[2,1]")
        orders.wait_held()
        for _ in range(5):
            assert world.records("sync/seen") == []
            assert world.ask("HEAD", "/v1/stream/sync/seen").next_offset == tail
            assert not select.select([*live, writer], [], [], 0.05)[0]
        orders.clear()
        assert b" 204 " in read_until(writer, b"\r\n\r\n")
        assert b"[2,1]" in read_until(live[0], b"[2,1]") and b"[2,1]" in read_until(
            live[1], b"[2,1]"
        )


@pytest.mark.long
def test_without_a_bound_of_its_own_a_group_takes_appends(world: World) -> None:
    world.start("--cores", "1", POLYNYA_COLD_MAX_HOT_BYTES_PER_GROUP="0")
    assert world.ask("PUT", "/v1/stream/bound/s", b"[1]", **JSON).status == 201
    assert world.ask("POST", "/v1/stream/bound/s", b"[2]", **JSON).status == 204
