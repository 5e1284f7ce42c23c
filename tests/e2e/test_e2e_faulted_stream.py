"""A batch that was damaged before it reached the journal costs its stream, and neither the core nor
a later start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from pathlib import Path

import pytest
from e2e_world import World
from google_crc32c import value as crc32c
from polling import wait_until

from polynya.base.errors import CorruptData
from polynya.base.names import group_of
from polynya.engine.standalone import StandaloneEngine
from polynya.engine.storage import open_storage
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Batch, Encoding
from polynya.wire.pack import read_footer

pytestmark = pytest.mark.process
FLAGS = ("--cores", "1", "--cold-flush-max-age-ms", "100")


def journal_a_damaged_batch(data: Path) -> None:
    """Journal a batch that arrived damaged: the frame is valid, the batch's checksum does not
    match its payload."""
    identity = json.loads((data / "node.json").read_text())
    groups = int(identity["groups"])

    async def main() -> None:
        storage = open_storage(
            data / "core-0", core=0, cores=1, groups=groups, cluster_id=identity["cluster_id"]
        )
        core = StandaloneEngine(storage.core_replicas, storage.journal, fatal=lambda error: None)
        for name, crc in (("default/bad", crc32c(b"other")), ("default/good", crc32c(b"bytes"))):
            group = group_of(name, groups)
            await core.call(group, Create(name, storage.log_ms + 1, "text/plain", Encoding.BYTES))
            assert (
                await core.call(
                    group,
                    Append(
                        name,
                        storage.log_ms + 1,
                        "text/plain",
                        Batch(Encoding.BYTES, 1, b"bytes", crc),
                    ),
                )
            ).code == 0
        await core.drain()
        core.close()
        storage.journal.close()

    asyncio.run(main())


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_a_node_serves_beside_a_stream_that_it_cannot_store(world: World) -> None:
    world.start(*FLAGS)
    world.stop()
    journal_a_damaged_batch(world.data)
    for _ in range(2):
        node = world.start(*FLAGS)
        wait_until(
            lambda: "core 0 streams: 1 stream is set aside" in got(f"{world.url}/readyz?verbose"),
            what="the fault to be told",
        )
        assert "is damaged: bad" in got(f"{world.url}/readyz?verbose")
        with contextlib.closing(world.connect()) as client:
            refused = client.ask("POST", "/v1/stream/bad", b"more", content_type="text/plain")
            assert refused.status == 503 and b"STREAM_FAULTED" in refused.body
            assert (
                client.ask("POST", "/v1/stream/good", b"more", content_type="text/plain").status
                == 204
            )
            assert client.ask("GET", "/v1/stream/good").body.startswith(b"bytes")
            assert client.ask("GET", "/v1/stream/bad").status == 503
        metrics = got(f"{node.admin}/metrics")
        assert (
            "polynya_streams_faulted 1" in metrics
            and 'polynya_stream_faulted{stream="bad"} 1' in metrics
        )
        world.stop()


def positions_of(name: str, pack: bytes) -> list[tuple[int, int]]:
    """Return the offsets and lengths of a stream's first slice in an object; none if it is no
    pack."""
    try:
        entries = read_footer(pack).entries
    except CorruptData:
        return []
    return [(each.offset, each.stored) for each in entries if each.path.endswith(f"/{name}")]


def test_a_damaged_pack_is_told_by_reads_readiness_and_metrics(world: World) -> None:
    """Report the damage until the object is whole again. The other stream's bytes in it are
    served."""
    world.start(*FLAGS)
    with contextlib.closing(world.connect()) as client:
        for name, body in (("hurt", b"a" * 5000), ("sound", b"b" * 5000)):
            client.ask("PUT", f"/v1/stream/{name}", content_type="text/plain")
            client.ask("POST", f"/v1/stream/{name}", body, content_type="text/plain")

    def packs() -> dict[Path, bytes]:
        """Return the packs with a slice of the first stream."""
        files = [path for path in (world.data / "objects").rglob("*") if "/packs/" in str(path)]
        found = {path: path.read_bytes() for path in files if path.is_file()}
        return {path: data for path, data in found.items() if positions_of("hurt", data)}

    assert world.flush().status == 200  # published, not only stored
    world.stop()
    whole = packs()
    for path, data in whole.items():
        ((offset, stored),) = positions_of("hurt", data)
        assert stored < 1000, "it is compressed"
        last = offset + stored - 1
        path.write_bytes(data[:last] + bytes((data[last] ^ 1,)) + data[last + 1 :])
    node = world.start(*FLAGS)
    assert "damaged" not in got(f"{world.url}/readyz")
    with contextlib.closing(world.connect()) as client:
        answer = client.ask("GET", "/v1/stream/hurt")
        assert answer.status == 503 and b"DATA_DAMAGED" in answer.body
        assert client.ask("GET", "/v1/stream/sound").body == b"b" * 5000
        readiness = got(f"{world.url}/readyz")
        assert "packs: damaged objects in the object store" in readiness
        assert any(path.name in readiness for path in whole) and readiness.endswith("ready\n")
        metrics = got(f"{node.admin}/metrics")
        assert "polynya_damaged_places 1\n" in metrics
        assert 'polynya_check_failing{check="packs"} 1' in metrics
        for path, data in whole.items():
            path.write_bytes(data)
        assert client.ask("GET", "/v1/stream/hurt").body == b"a" * 5000
    assert "damaged" not in got(f"{world.url}/readyz")
    assert "polynya_damaged_places 0\n" in got(f"{node.admin}/metrics")
