"""A whole node, filled, trimmed and measured: memory, journal, object store and disk return the
trimmed space, on both stores.

Run with `-s` it prints what it measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from e2e_world import JSON, World, file_sizes, metric
from polling import wait_until
from product import polynya
from s3_server import S3Server, s3_server
from test_e2e_s3 import keys, variables

from polynya.base.limits import JOURNAL_SEGMENT_BYTES
from polynya.config.model import GROUPS_DEFAULT

__all__ = ["s3_server"]
pytestmark = pytest.mark.process
MIB = 1 << 20
FLAGS = ("--cores", "2", "--cold-flush-max-age-ms", "1s", "--cold-delete-grace-ms", "1s")
RECORD = json.dumps([{"pad": "x" * 65_000}] * 8).encode()
APPENDS = 96  # 48 MiB over all streams
NAMES = [f"fill/s{number}" for number in range(4)]


def packs_of(world: World) -> list[Path]:
    """List the files of the embedded store's packs."""
    return [
        Path(path, name)
        for path, _, names in os.walk(world.data / "objects")
        for name in names
        if Path(path).parent.name == "packs"
    ]


def measure(world: World, settings: dict[str, str]) -> dict[str, float]:
    found = {
        "objects": len(keys(settings)) if settings else len(packs_of(world)),
        "object_bytes": 0
        if settings
        else sum(each.st_blocks * 512 for each in file_sizes(world.data / "objects")),
        "hot_bytes": metric(world, "polynya_hot_bytes"),
        "index_slices": metric(world, "polynya_index_slices"),
        "packs_known": metric(world, "polynya_packs"),
        "journal_bytes": metric(world, "polynya_journal_disk_bytes"),
        "outbox": metric(world, "polynya_outbox"),
    }
    print(found)
    return found


def fill_trim_measure(world: World, settings: dict[str, str]) -> None:
    world.start(*FLAGS, **settings)
    for name in NAMES:
        assert world.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
    for number in range(APPENDS):
        assert world.ask("POST", f"/v1/stream/{NAMES[number % 4]}", RECORD, **JSON).status == 204
    assert world.flush().status == 200
    full = measure(world, settings)
    assert full["objects"] >= 6 and full["hot_bytes"] == 0
    tails = {name: world.ask("HEAD", f"/v1/stream/{name}").next_offset for name in NAMES}
    said = polynya("trim", NAMES[0], "--keep-bytes", "1MiB", "--json", server=world.url)
    assert said.code == 0 and json.loads(said.out)["bytes"] > 10 * MIB
    assert (
        len(world.records(NAMES[0]))
        == len(world.records(NAMES[1])) - json.loads(said.out)["records"]
    )
    for name in NAMES:
        assert world.ask("PUT", f"/v1/stream/{name}/retention", b'{"bytes": 0}').status == 200
    empty: dict[str, float] = {}

    def all_gone() -> bool:
        empty.update(measure(world, settings))
        return not any(
            empty[name]
            for name in ("packs_known", "objects", "hot_bytes", "index_slices", "outbox")
        )

    wait_until(all_gone, what="all packs and objects to go", seconds=120, pause=0.5)
    assert empty["journal_bytes"] <= 2 * JOURNAL_SEGMENT_BYTES, (
        "a core's journal keeps the segment that it writes"
    )
    assert empty["object_bytes"] < MIB
    for name in NAMES:
        head = world.ask("HEAD", f"/v1/stream/{name}")
        assert head.next_offset == tails[name] == head.headers["stream-retained-offset"]
        assert world.ask("GET", f"/v1/stream/{name}?offset={0:016d}_{0:016d}").status == 410
    verified = polynya("store", "verify", "--json", server=world.url)
    assert verified.code == 0
    assert json.loads(verified.out) == {
        "packs": 0, "slices": 0, "bytes": 0, "faults": [], "orphans": {"count": 0, "bytes": 0, "keys": []},
        "groups": {"all": GROUPS_DEFAULT + 1, "unseen": []}
    }  # fmt: skip
    world.kill_all()
    world.start(*FLAGS, **settings)
    assert world.ask("POST", f"/v1/stream/{NAMES[0]}", b"[1]", **JSON).status == 204
    assert world.records(NAMES[0]) == [1]


def test_a_trim_gives_back_memory_journal_and_disk(world: World) -> None:
    fill_trim_measure(world, {})


@pytest.mark.long
def test_a_trim_gives_back_objects_on_s3(world: World, s3_server: S3Server) -> None:
    settings = variables(s3_server)
    fill_trim_measure(world, settings)
    root = f"s3://{settings['POLYNYA_COLD_S3_BUCKET']}/{settings['POLYNYA_COLD_ROOT']}"
    wipe = ("store", "wipe", "--root", root, "--yes")
    refused = polynya(*wipe, **settings)
    assert refused.code == 1 and "owns" in refused.err
    assert world.stop() == 0
    assert polynya(*wipe, **settings).code == 0
    assert keys(settings) == []
    assert "no polynya-root.json" in polynya(*wipe, **settings).err


@pytest.mark.long
def test_verify_finds_what_a_disk_lost(world: World) -> None:
    world.start(*FLAGS)
    for name in NAMES:
        world.ask("PUT", f"/v1/stream/{name}", **JSON)
        world.ask("POST", f"/v1/stream/{name}", RECORD, **JSON)
    world.flush()
    assert polynya("store", "verify", server=world.url).code == 0
    pack = packs_of(world)[0]
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    damaged = polynya("store", "verify", server=world.url)
    assert damaged.code == 1 and "damaged" in damaged.err and "fill/s" in damaged.err
    pack.unlink()
    missing = polynya("store", "verify", "--json", server=world.url)
    (fault,) = json.loads(missing.out)["faults"]
    assert missing.code == 1 and fault["kind"] == "missing" and fault["pack"].endswith(pack.name)
    refused = polynya("store", "wipe", "--root", str(world.data / "objects"), "--yes")
    assert refused.code == 1 and "is running" in refused.err
    world.kill_all()
    refused = polynya("store", "wipe", "--root", str(world.data / "objects"), "--yes")
    assert refused.code == 1 and "--force" in refused.err
    assert (
        polynya("store", "wipe", "--root", str(world.data / "objects"), "--yes", "--force").code
        == 0
    )
    assert not [
        path
        for path in (world.data / "objects").rglob("*")
        if path.is_file() and path.name != ".lock"
    ]
