"""A node whose object store is down, or foreign, at its start: it serves as much as possible,
reports the problem, and continues once the store permits."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from e2e_world import JSON, Lost, World, metric
from polling import wait_until
from product import polynya
from s3_server import S3Server, s3_server

__all__ = ["s3_server"]
pytestmark = pytest.mark.process
FLAGS = ("--cores", "2")


class Switch:
    """A switchable proxy between a node and its S3 server, at a fixed address."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._behind = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_open = True
        self._through: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def shut(self) -> None:
        self.is_open = False
        for each in self._through:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._listener.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self.is_open:
                    near.close()
                    continue
                far = socket.create_connection(self._behind)
                self._through += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pour, args=(source, target), daemon=True).start()


def _pour(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def switch_to(server: S3Server) -> Iterator[Switch]:
    switch = Switch(server.endpoint)
    try:
        yield switch
    finally:
        switch.close()


def fill(world: World) -> None:
    """Create a stream whose first record is in the store, and whose second is in the journal
    alone."""
    assert world.ask("PUT", "/v1/stream/s", **JSON).status == 201
    assert world.ask("POST", "/v1/stream/s", b'"old"', **JSON).status == 204
    assert world.flush().status == 200
    assert world.ask("POST", "/v1/stream/s", b'"new"', **JSON).status == 204


def check_without(world: World) -> None:
    """Check the responses and the health report while the store is down."""
    ready = world.ask("GET", "/readyz")
    assert ready.status == 200 and ready.body.startswith(
        b"[!] core 0 object store: no response since the start"
    )
    health = world.ask("GET", "/health")
    assert health.status == 200 and json.loads(health.body)["status"] == "warn"
    warned = [each for each in json.loads(health.body)["warnings"] if each["check"] != "disk"]
    assert [each["core"] for each in warned] == [0, 1]
    assert metric(world, "polynya_object_store_waiting") == 2
    assert (
        world.ask("GET", "/v1/stream/s?offset=0000000000000001_0000000000000006").body == b'["new"]'
    )
    assert world.ask("POST", "/v1/stream/s", b'"more"', **JSON).status == 204
    assert world.ask("PUT", "/v1/stream/t", **JSON).status == 201
    assert world.ask("GET", "/v1/stream/s?offset=-1").status == 503, "this is in the store"
    assert world.flush().status == 503
    result = polynya(
        "doctor", "--json", "--data", str(world.data), "--listen", "127.0.0.1:0", server=world.url
    )
    said = [json.loads(line) for line in result.out.splitlines()]
    assert any(
        each["status"] == "WARN" and "object store" in each["said"]
        for each in said
        if each["name"] == "health"
    ), result.out
    assert "the object store does not respond yet" in world.log


def is_ready(world: World) -> bool:
    try:
        return world.ask("GET", "/readyz").status == 200
    except Lost:
        return False


def check_recovered(world: World) -> None:
    wait_until(
        lambda: world.ask("GET", "/readyz").body == b"ready\n",
        what="the store to be claimed",
        seconds=60,
    )
    assert world.records("s") == ["old", "new", "more"]
    assert world.flush().status == 200
    health = json.loads(world.ask("GET", "/health").body)
    # tests beside this one may keep the disk busy
    assert not health["failed"] and {each["check"] for each in health["warnings"]} <= {"disk"}
    assert metric(world, "polynya_object_store_waiting") == 0
    assert "the object store responds" in world.log


@pytest.mark.long
def test_a_folder_that_cannot_be_used_at_start_is_used_once_it_can_be(world: World) -> None:
    world.start(*FLAGS)
    fill(world)
    world.kill_all()
    objects, away = world.data / "objects", world.data / "objects.away"
    objects.rename(away)
    objects.write_text("no folder")
    world.start(*FLAGS)
    check_without(world)
    objects.unlink()
    away.rename(objects)
    check_recovered(world)
    assert world.stop() == 0


def test_s3_that_is_away_at_start_is_used_once_it_answers(
    world: World, s3_server: S3Server
) -> None:
    with switch_to(s3_server) as switch:
        settings = {
            f"POLYNYA_COLD_{name.upper()}": value
            for name, value in {**s3_server.settings(), "s3_endpoint": switch.endpoint}.items()
        }
        world.start(*FLAGS, **settings)
        fill(world)
        world.kill_all()
        switch.shut()
        world.start(*FLAGS, **settings)
        check_without(world)
        world.kill_cores()  # one that dies meanwhile comes back, too
        wait_until(lambda: is_ready(world), what="the cores to be back", seconds=60)
        assert world.ask("GET", "/v1/stream/s?offset=now").status == 200
        switch.is_open = True
        check_recovered(world)
        assert world.stop() == 0


@pytest.mark.long
def test_a_root_that_was_never_held_is_needed_at_start(world: World, tmp_path: Path) -> None:
    world.start(*FLAGS)
    fill(world)
    world.kill_all()
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    for note in ("kept", "gone"):
        if note == "gone":
            (world.data / "object-root.json").unlink()
            shutil.rmtree(world.data / "objects")
            (world.data / "objects").write_text("no folder")
        settings = {"POLYNYA_COLD_ROOT": str(blocked / "objects")} if note == "kept" else {}
        code, said = world.refused(*FLAGS, **settings)
        assert code == 78 and "cannot be used" in said and "Traceback" not in said


def test_a_store_that_comes_back_as_another_s_ends_the_node(world: World, tmp_path: Path) -> None:
    world.start(*FLAGS)
    fill(world)
    world.kill_all()
    objects = world.data / "objects"
    marker = json.loads((objects / "polynya-root.json").read_text())
    objects.rename(world.data / "mine")
    objects.write_text("no folder")
    node = world.start(*FLAGS)
    assert world.ask("POST", "/v1/stream/s", b'"more"', **JSON).status == 204
    cores = world.cores()
    for core in cores:  # they look for the store all the time
        core.suspend()
    objects.unlink()
    objects.mkdir()
    (objects / "polynya-root.json").write_text(json.dumps({**marker, "cluster_id": "f" * 32}))
    for core in cores:
        core.resume()
    assert node.wait() == 77
    assert (
        "belongs to another cluster" in world.log
        and "the object store does not belong to this node" in world.log
    )
    files = [path.relative_to(objects).parts[0] for path in objects.rglob("*") if path.is_file()]
    assert [first for first in files if not first.startswith(".")] == ["polynya-root.json"], (
        "nothing was put there"
    )
    shutil.rmtree(objects)
    (world.data / "mine").rename(objects)
    world.start(*FLAGS)
    assert world.records("s") == ["old", "new", "more"]
    assert world.stop() == 0
