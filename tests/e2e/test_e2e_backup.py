"""Backups of real nodes, taken while they are written to, restored into others; and the loss of everything but the object store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from dev_cluster import dev_cluster
from e2e_world import JSON, World
from polling import wait_until
from product import WITH_US, environment, polynya, running_node
from s3_server import S3Server, s3_server

__all__ = ["s3_server"]
pytestmark = pytest.mark.process

NAMES = [f"backup/s{number}" for number in range(4)]


class Writers:
    """Append 0, 1, 2 … to each stream, one at a time, wherever; `acknowledged` is the next number of each."""

    def __init__(self, urls: list[str]) -> None:
        self.acknowledged = dict.fromkeys(NAMES, 0)
        self._urls = urls
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(name, number)) for number, name in enumerate(NAMES)]
        for name in NAMES:
            ask("PUT", f"{urls[0]}/v1/stream/{name}")
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self, name: str, number: int) -> None:
        url = f"{self._urls[number % len(self._urls)]}/v1/stream/{name}"
        while not self._ended.is_set():
            ask("POST", url, json.dumps(self.acknowledged[name]).encode())
            self.acknowledged[name] += 1


@contextlib.contextmanager
def writing(urls: list[str]) -> Iterator[Writers]:
    writers = Writers(urls)
    try:
        yield writers
    finally:
        writers.stop()


def ask(method: str, url: str, body: bytes | None = None) -> bytes:
    with urlopen(Request(url, body, {"Content-Type": "application/json"}, method=method), timeout=60) as answer:
        return bytes(answer.read())


def read(url: str, name: str) -> list[int]:
    """All records, page by page."""
    found: list[int] = []
    offset = "-1"
    while True:
        with urlopen(f"{url}/v1/stream/{name}?offset={offset}", timeout=60) as answer:
            found += json.load(answer)
            offset = answer.headers["stream-next-offset"]
            if answer.headers.get("stream-up-to-date"):
                return found


def check(url: str, before: dict[str, int]) -> None:
    """Every record that was acknowledged before the backup is there, in order, at its offset, and one more can be appended."""
    for name, count in before.items():
        records = read(url, name)
        assert records == list(range(len(records)))
        assert len(records) >= count
        if count:
            page = ask("GET", f"{url}/v1/stream/{name}?offset={count - 1:016d}_0000000000000000")
            assert json.loads(page)[0] == count - 1
        ask("POST", f"{url}/v1/stream/{name}", b'"new"')
        assert read_last(url, name) == "new"


def read_last(url: str, name: str) -> object:
    last: object = None
    for record in read(url, name):
        last = record
    return last


def test_a_cluster_of_three_is_backed_up_under_writers_and_restored_into_a_node_and_into_a_cluster(tmp_path: Path) -> None:
    place = str(tmp_path / "backups")
    with dev_cluster(tmp_path / "old", "--cores", "2") as cluster, writing(cluster.urls) as writers:
        wait_until(lambda: min(writers.acknowledged.values()) > 20, what="some records")

        taken = []
        for number in range(2):
            before = dict(writers.acknowledged)
            ran = polynya("backup", place, "--json", server=cluster.urls[number])
            assert ran.code == 0, ran
            taken.append((json.loads(ran.out)["backup"], before))
            if number == 0:
                ran = polynya("backup", str(tmp_path / "one.tar"), server=cluster.urls[2])
                assert ran.code == 0, ran
        ran = polynya("verify", place)
        assert (ran.code, "all is as it was written" in ran.err) == (0, True), ran
    ran = polynya("restore", place, "--backup", taken[0][0], "--data", str(tmp_path / "lone"), "--cores", "1")
    assert ran.code == 0, ran
    with running_node(tmp_path / "lone") as node:
        check(node.url, taken[0][1])
    with dev_cluster(tmp_path / "new", "--restore", place, "--nodes", "2", "--cores", "1") as cluster:
        check(cluster.urls[0], taken[1][1])
        check(cluster.urls[1], {})
        assert [read(cluster.urls[1], name)[-1] for name in NAMES] == ["new"] * len(NAMES)
    ran = polynya("restore", str(tmp_path / "one.tar"), "--data", str(tmp_path / "third"), "--json")
    assert ran.code == 0, ran
    assert json.loads(ran.out)["restored_streams"] == len(NAMES)


def started(*arguments: str, server: str = "") -> subprocess.Popen[bytes]:
    command = [*WITH_US, sys.executable, "-m", "polynya", *arguments]
    return subprocess.Popen(command, env=environment(POLYNYA_SERVER=server), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def killed_when(process: subprocess.Popen[bytes], folder: Path, pattern: str) -> None:
    """SIGKILL as soon as there is such a file, or at the end."""
    wait_until(lambda: next(folder.glob(pattern), None) or process.poll() is not None, what=pattern, pause=0.001)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_backup_and_a_restore_that_are_killed_are_given_again(world: World, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    world.start("--cores", "2")
    with contextlib.closing(world.connect()) as client:
        for name in NAMES:
            assert client.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
    for turn in range(12):
        for name in NAMES:
            ask("POST", f"{world.url}/v1/stream/{name}", json.dumps(turn).encode())
        assert world.flush().status == 200
    for pattern in ("objects/*/packs/*/*", "backups/*/groups/*/*"):
        killed_when(started("backup", str(place), server=world.url), place, pattern)
    ran = polynya("backup", str(place), "--json", server=world.url)
    assert ran.code == 0, ran
    ran = polynya("verify", str(place))
    assert ran.code == 0, ran
    before = dict.fromkeys(NAMES, 12)
    new = tmp_path / "new"
    for pattern in ("restore.begun", "core-0/snapshots/*.snap", "objects/*/packs/*/*"):
        killed_when(started("restore", str(place), "--data", str(new), "--cores", "2"), new, pattern)
        if (new / "node.json").exists():
            shutil.rmtree(new)
            continue
        ran = polynya("serve", "--listen", "127.0.0.1:0", "--data", str(new))
        assert (ran.code, "interrupted" in ran.err) == (78, True), ran
    ran = polynya("restore", str(place), "--data", str(new), "--cores", "2")
    assert ran.code == 0, ran
    with running_node(new) as node:
        check(node.url, before)


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_after_the_loss_of_all_nodes_what_reached_the_store_is_there(
    kind: str, world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {"POLYNYA_COLD_ROOT": str(tmp_path / "objects")}
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        settings = {f"POLYNYA_COLD_{name.upper()}": value for name, value in server.settings().items()}
    world.start("--cores", "2", **settings)
    for name in NAMES:
        ask("PUT", f"{world.url}/v1/stream/{name}")
        for number in range(7):
            ask("POST", f"{world.url}/v1/stream/{name}", json.dumps(number).encode())
    assert world.flush().status == 200
    wait_until(lambda: metric(world, "polynya_state_copies_total") >= 17, what="copies of all groups")
    for name in NAMES:
        ask("POST", f"{world.url}/v1/stream/{name}", b"7")
    ask("PUT", f"{world.url}/v1/stream/{NAMES[0]}-late")
    ask("POST", f"{world.url}/v1/stream/{NAMES[0]}-late", b"0")
    assert world.flush().status == 200  # after the copies
    ask("POST", f"{world.url}/v1/stream/{NAMES[0]}", b"8")  # in the journal only
    world.kill_all()
    shutil.rmtree(world.data)
    ran = polynya("restore", "--from-store", "--data", str(tmp_path / "new"), **settings)
    assert (ran.code, "--take-over" in ran.err) == (1, True), ran
    ran = polynya("restore", "--from-store", "--take-over", "--data", str(tmp_path / "new"), "--json", **settings)
    assert ran.code == 0, ran
    assert json.loads(ran.out)["restored_streams"] == len(NAMES) + 1
    again = World(tmp_path / "new")
    try:
        again.start(**settings)
        for name in NAMES:
            assert read(again.url, name) == list(range(8))
        assert read(again.url, f"{NAMES[0]}-late") == [0]
        check(again.url, {})
        verified = polynya("store", "verify", server=again.url)
        assert verified.code == 0, verified
    finally:
        again.close()


def metric(world: World, name: str) -> float:
    lines = ask("GET", f"{world.admin}/metrics").decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_backups_in_a_bucket_of_a_node_on_s3(world: World, tmp_path: Path, s3_server: S3Server) -> None:
    found = s3_server.settings()
    settings = {f"POLYNYA_COLD_{name.upper()}": value for name, value in found.items()}
    place = f"s3://{found['s3_bucket']}/{found['root']}-backups"
    world.start("--cores", "1", **settings)
    for name in NAMES:
        ask("PUT", f"{world.url}/v1/stream/{name}")
    taken = []
    for turn in range(3):
        for name in NAMES:
            ask("POST", f"{world.url}/v1/stream/{name}", json.dumps(turn).encode())
        assert world.flush().status == 200
        ran = polynya("backup", place, "--keep", "2", "--json", server=world.url, **settings)
        assert ran.code == 0, ran
        taken.append(json.loads(ran.out))
    assert taken[2]["kept"] > 0
    ran = polynya("backup", place, "--list", "--json", **settings)
    assert sorted(json.loads(line)["backup"] for line in ran.out.splitlines()) == [each["backup"] for each in taken[-2:]]
    ran = polynya("verify", place, **settings)
    assert ran.code == 0, ran
    keys = {name: value for name, value in settings.items() if not name.endswith(("BACKEND", "BUCKET", "ROOT"))}
    ran = polynya("restore", place, "--data", str(tmp_path / "new"), "--cores", "2", **keys)  # with an object store of its own
    assert ran.code == 0, ran
    with running_node(tmp_path / "new") as node:
        check(node.url, dict.fromkeys(NAMES, 3))
