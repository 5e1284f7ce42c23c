"""Checks of the object store: the operations of a node's start, on keys of their own."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from polynya.base.errors import PolynyaError
from polynya.cli.diagnostics.findings import FAIL, OK, WARN, Finding
from polynya.config.model import Config
from polynya.objectstore import (
    NotFound,
    ObjectStore,
    StoreSettings,
    open_store,
    prove_conditional_writes,
)
from polynya.objectstore.root import MARKER_KEY

SECONDS = 30.0
_S3_STEP = (
    "Check cold.s3_bucket, cold.s3_endpoint, the credentials and their permissions (get, put, "
    "delete, list)."
)


def check_store(config: Config) -> Iterator[Finding]:
    """Check conditional writes, ranges, listing and deletion, and the owner of the root."""
    backend = config.cold.backend
    if backend in ("none", "memory"):
        said = (
            "no object store: all data stays in the journal"
            if backend == "none"
            else "in memory: lost on exit"
        )
        yield Finding(
            "object store",
            WARN,
            f"{backend}: {said}",
            'cold.backend = "local" or "s3" stores flushed data permanently.',
        )
        return
    yield from asyncio.run(_checked(config))


async def _checked(config: Config) -> list[Finding]:
    try:
        async with asyncio.timeout(SECONDS):
            if config.cold.backend == "local":
                return [await _local(config)]
            return await _remote(config)
    except TimeoutError:
        return [Finding("object store", FAIL, f"no response within {SECONDS:g} s", _S3_STEP)]
    except (PolynyaError, ValueError, OSError) as error:
        return [
            Finding(
                "object store",
                FAIL,
                str(error),
                _S3_STEP if config.cold.backend == "s3" else "Check the folder and its disk.",
            )
        ]


async def _local(config: Config) -> Finding:
    """Check a temporary folder beside the real one: a node's start finds no trace of it."""
    path = config.objects_path
    while not path.is_dir():
        path = path.parent
    with tempfile.TemporaryDirectory(dir=path, prefix=".polynya-doctor-") as folder:
        await _proven(StoreSettings(backend="local", root=str(Path(folder) / "objects")))
    return Finding("object store", OK, f"local, in {config.objects_path}")


async def _remote(config: Config) -> list[Finding]:
    cold = config.cold
    where = f"s3://{cold.s3_bucket}/{cold.root.strip('/')}".rstrip("/")
    marker = await _proven(config.store)
    found = [
        Finding(
            "object store", OK, f"{where}: conditional writes, ranges, listing and deletion work"
        )
    ]
    found.append(_owner(config, marker))
    return found


async def _proven(settings: StoreSettings) -> bytes | None:
    """Check the store; return the root's marker, if any."""
    store = open_store(settings)
    assert store is not None
    try:
        await prove_conditional_writes(store)
        await _listed(store)
        try:
            return await store.get(MARKER_KEY)
        except NotFound:
            return None
    finally:
        await store.close()


async def _listed(store: ObjectStore) -> None:
    """List one key. Raises StoreUnavailable if listing is not allowed."""
    async for _ in store.list(""):
        return


def _owner(config: Config, marker: bytes | None) -> Finding:
    """Check the owner of the root; a node does not start on another's root."""
    if marker is None:
        return Finding("object root", OK, "not owned yet")
    try:
        owner = str(json.loads(marker)["cluster_id"])
    except (ValueError, KeyError, TypeError):
        return Finding(
            "object root", FAIL, f"its {MARKER_KEY} is invalid", "Choose another cold.root."
        )
    mine = _cluster(config)
    if mine == owner:
        return Finding("object root", OK, "owned by this node")
    step = "Choose another cold.root or bucket, or start on that cluster's data folder."
    return Finding(
        "object root",
        FAIL,
        f"it belongs to the cluster {owner}"
        + (f", and this node to {mine}" if mine else ", and the data folder is new"),
        step,
    )


def _cluster(config: Config) -> str:
    """Return the cluster id in the data folder, or ""."""
    try:
        return str(
            msgspec.json.decode((Path(config.data) / "node.json").read_bytes())["cluster_id"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ""
