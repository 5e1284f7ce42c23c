"""Backups of real nodes, taken while they are written to, restored into others; and the loss of
everything but the object store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import World, metric
from long_tests import long
from polling import wait_until
from product import WITH_US, environment, polynya, running_node
from s3_server import S3Server, s3_server
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import Writer, ask, records

__all__ = ["s3_server"]
pytestmark = pytest.mark.process

NAMES = [f"backup/s{number}" for number in range(4)]


@contextlib.contextmanager
def writing(urls: list[str]) -> Iterator[dict[str, Writer]]:
    """Run a writer for each stream until `with` ends, by the nodes in turn."""
    for name in NAMES:
        post(urls[0], name, None)
    writers = {name: Writer(urls[number % len(urls)], name) for number, name in enumerate(NAMES)}
    for writer in writers.values():
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers.values():
            writer.finish()


def post(url: str, name: str, body: bytes | None) -> None:
    """Append a record to a stream; None: create the stream."""
    status, said = ask("PUT" if body is None else "POST", f"{url}/v1/stream/{name}", body)
    assert status == (201 if body is None else 204), said


def check(url: str, before: dict[str, int]) -> None:
    """Assert that every record acknowledged before the backup is there, in order, at its offset,
    and that one more can be appended."""
    for name, count in before.items():
        there = records(url, name)
        assert there == list(range(len(there)))
        assert len(there) >= count
        if count:
            page = ask("GET", f"{url}/v1/stream/{name}?offset={count - 1:016d}_0000000000000000")[1]
            assert json.loads(page)[0] == count - 1
        post(url, name, b'"new"')
        assert records(url, name)[-1] == "new"


def test_a_cluster_of_three_is_backed_up_under_writers_and_restored_into_a_node_and_into_a_cluster(
    tmp_path: Path,
) -> None:
    location = str(tmp_path / "backups")
    with (
        dev_cluster(tmp_path / "old", "--cores", "1", "--groups", "6") as cluster,
        writing(cluster.urls) as writers,
    ):
        wait_until(
            lambda: all(writer.acknowledged > 20 for writer in writers.values()),
            what="some records",
        )

        taken = []
        for number in range(2):
            before = {name: writer.acknowledged for name, writer in writers.items()}
            ran = polynya("backup", location, "--json", server=cluster.urls[number])
            assert ran.code == 0, ran
            taken.append((json.loads(ran.out)["backup"], before))
            if number == 0:
                ran = polynya("backup", str(tmp_path / "one.tar"), server=cluster.urls[2])
                assert ran.code == 0, ran
        ran = polynya("verify", location)
        assert (ran.code, "no damage" in ran.err) == (0, True), ran
    ran = polynya(
        "restore",
        location,
        "--backup",
        taken[0][0],
        "--data",
        str(tmp_path / "lone"),
        "--cores",
        "1",
    )
    assert ran.code == 0, ran
    with running_node(tmp_path / "lone") as node:
        check(node.url, taken[0][1])
    with dev_cluster(
        tmp_path / "new", "--restore", location, "--nodes", "2", "--cores", "1"
    ) as cluster:
        check(cluster.urls[0], taken[1][1])
        assert [records(cluster.urls[1], name)[-1] for name in NAMES] == ["new"] * len(NAMES)
    ran = polynya("restore", str(tmp_path / "one.tar"), "--data", str(tmp_path / "third"), "--json")
    assert ran.code == 0, ran
    assert json.loads(ran.out)["restored_streams"] == len(NAMES)


def started(*arguments: str, server: str = "") -> subprocess.Popen[bytes]:
    command = [*WITH_US, sys.executable, "-m", "polynya", *arguments]
    return subprocess.Popen(
        command,
        env=environment(POLYNYA_SERVER=server),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def killed_when(process: subprocess.Popen[bytes], folder: Path, pattern: str) -> None:
    """Send SIGKILL as soon as there is such a file, or at the end."""

    def is_time() -> bool:
        try:
            return next(folder.glob(pattern), None) is not None or process.poll() is not None
        except (
            FileNotFoundError
        ):  # a folder that a restore takes away while it is listed: one before had begun it
            return False

    wait_until(is_time, what=pattern, pause=0.001)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.long
def test_a_backup_and_a_restore_that_are_killed_are_given_again(
    world: World, tmp_path: Path
) -> None:
    location = tmp_path / "backups"
    world.start("--cores", "2")
    for name in NAMES:
        post(world.url, name, None)
    for turn in range(12):
        for name in NAMES:
            post(world.url, name, json.dumps(turn).encode())
        assert world.flush().status == 200
    for pattern in ("objects/*/packs/*/*", "backups/*/groups/*/*"):
        killed_when(started("backup", str(location), server=world.url), location, pattern)
    ran = polynya("backup", str(location), "--json", server=world.url)
    assert ran.code == 0, ran
    ran = polynya("verify", str(location))
    assert ran.code == 0, ran
    before = dict.fromkeys(NAMES, 12)
    new = tmp_path / "new"
    for pattern in ("restore.begun", "core-0/snapshots/*.snap", "objects/*/packs/*/*"):
        killed_when(
            started("restore", str(location), "--data", str(new), "--cores", "2"), new, pattern
        )
        if (new / "node.json").exists():
            shutil.rmtree(new)
            continue
        ran = polynya("serve", "--listen", "127.0.0.1:0", "--data", str(new))
        assert (ran.code, "interrupted" in ran.err) == (78, True), ran
    ran = polynya("restore", str(location), "--data", str(new), "--cores", "2")
    assert ran.code == 0, ran
    with running_node(new) as node:
        check(node.url, before)


def test_an_older_copy_of_a_data_folder_is_refused_and_what_came_later_is_in_the_store(
    world: World, tmp_path: Path
) -> None:
    """Restore an older copy of the data folder, as a replaced machine has it."""
    settings = {
        "POLYNYA_COLD_ROOT": str(tmp_path / "objects"),
        "POLYNYA_COLD_DELETE_GRACE_MS": "1000",
    }

    def copied() -> set[str]:
        return {path.name for path in tmp_path.glob("objects/*/copies/*/*/*")}

    world.start("--cores", "2", **settings)
    for name in NAMES:
        post(world.url, name, None)
    assert world.stop() == 0
    shutil.copytree(world.data, tmp_path / "older", ignore=lambda *_: ["run"])
    world.start(**settings)
    for name in NAMES:
        post(world.url, name, b"0")
    assert world.flush().status == 200
    before = copied()
    post(world.url, NAMES[0], b"1")
    assert world.flush().status == 200
    wait_until(lambda: copied() - before, what="a copy of what came later")
    world.kill_all()
    shutil.rmtree(world.data)
    (tmp_path / "older").rename(world.data)
    code, said = world.refused(**settings)
    assert (code, "is a stale copy" in said) == (78, True), said
    ran = polynya(
        "restore", "--from-store", "--take-over", "--data", str(tmp_path / "new"), **settings
    )
    assert ran.code == 0, ran
    with running_node(tmp_path / "new", **settings) as node:
        assert records(node.url, NAMES[0]) == [0, 1]


@pytest.mark.parametrize("kind", ["s3", *long(["local"])])
def test_after_the_loss_of_all_nodes_what_reached_the_store_is_there(
    kind: str, world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {"POLYNYA_COLD_ROOT": str(tmp_path / "objects")}
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        settings = {
            f"POLYNYA_COLD_{name.upper()}": value for name, value in server.settings().items()
        }
    world.start("--cores", "2", **settings)
    for name in NAMES:
        post(world.url, name, None)
        for number in range(7):
            post(world.url, name, json.dumps(number).encode())
    assert world.flush().status == 200
    wait_until(
        lambda: metric(world, "polynya_state_copies_total") >= 17, what="copies of all groups"
    )
    for name in NAMES:
        post(world.url, name, b"7")
    post(world.url, f"{NAMES[0]}-late", None)
    post(world.url, f"{NAMES[0]}-late", b"0")
    assert world.flush().status == 200  # after the copies
    post(world.url, NAMES[0], b"8")  # in the journal only
    world.kill_all()
    shutil.rmtree(world.data)
    ran = polynya("restore", "--from-store", "--data", str(tmp_path / "new"), **settings)
    assert (ran.code, "--take-over" in ran.err) == (1, True), ran
    ran = polynya(
        "restore",
        "--from-store",
        "--take-over",
        "--data",
        str(tmp_path / "new"),
        "--json",
        **settings,
    )
    assert ran.code == 0, ran
    assert json.loads(ran.out)["restored_streams"] == len(NAMES) + 1
    again = World(tmp_path / "new")
    try:
        again.start(**settings)
        for name in NAMES:
            assert records(again.url, name) == list(range(8))
        assert records(again.url, f"{NAMES[0]}-late") == [0]
        verified = polynya("store", "verify", server=again.url)
        assert verified.code == 0, verified
    finally:
        again.close()


@pytest.mark.long
def test_backups_in_a_bucket_of_a_node_on_s3(
    world: World, tmp_path: Path, s3_server: S3Server
) -> None:
    found = s3_server.settings()
    settings = {f"POLYNYA_COLD_{name.upper()}": value for name, value in found.items()}
    location = f"s3://{found['s3_bucket']}/{found['root']}-backups"
    world.start("--cores", "1", **settings)
    for name in NAMES:
        post(world.url, name, None)
    taken = []
    for turn in range(3):
        for name in NAMES:
            post(world.url, name, json.dumps(turn).encode())
        assert world.flush().status == 200
        ran = polynya("backup", location, "--keep", "2", "--json", server=world.url, **settings)
        assert ran.code == 0, ran
        taken.append(json.loads(ran.out))
    assert taken[2]["kept"] > 0
    ran = polynya("backup", location, "--list", "--json", **settings)
    assert sorted(json.loads(line)["backup"] for line in ran.out.splitlines()) == [
        each["backup"] for each in taken[-2:]
    ]
    ran = polynya("verify", location, **settings)
    assert ran.code == 0, ran
    keys = {
        name: value
        for name, value in settings.items()
        if not name.endswith(("BACKEND", "BUCKET", "ROOT"))
    }
    # with an object store of its own
    ran = polynya("restore", location, "--data", str(tmp_path / "new"), "--cores", "2", **keys)
    assert ran.code == 0, ran
    with running_node(tmp_path / "new") as node:
        check(node.url, dict.fromkeys(NAMES, 3))
