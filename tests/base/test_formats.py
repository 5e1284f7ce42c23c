"""Refusal of data in the unreleased format 1 wherever this release meets it, with the remedy. The
same holds for data of a newer release."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from google_crc32c import value as crc32c

from polynya.access.token_file import TokenFile, Wanted
from polynya.backup import manifest
from polynya.base.errors import ConfigError
from polynya.base.formats import FORMAT, check_format
from polynya.config.loading import load
from polynya.config.node_identity import FILE, identity_of
from polynya.objectstore import MARKER_KEY, RootMarker, claim_root, read_root
from polynya.objectstore.memory import MemoryStore

Open = Callable[[Path, int], object]


def test_this_is_format_2() -> None:
    assert FORMAT == 2
    check_format("it", 2, older="")


def data_folder(folder: Path, found: int) -> None:
    config = load({"--data": str(folder)}, environ={}, folder=str(folder)).config
    identity_of(config)
    path = folder / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": found}))
    identity_of(config)


def backup(folder: Path, found: int) -> None:
    line = msgspec.json.encode({"format": found})
    manifest.decode(line + f"\ncrc32c {crc32c(line):08x}\n".encode())


def store_root(folder: Path, found: int) -> None:
    async def claim() -> None:
        store = MemoryStore()
        await store.compare_and_swap(
            MARKER_KEY, msgspec.json.encode(RootMarker("c", 1, "", found)), None
        )
        assert (await read_root(store, any_format=True)) == RootMarker("c", 1, "", found)
        await claim_root(store, "c", 1, "s")

    asyncio.run(claim())


def token_file(folder: Path, found: int) -> None:
    tokens = TokenFile(folder)
    tokens.add(Wanted(name="n", scopes=["read:iot/"]), 1)
    tokens.path.write_text(json.dumps(json.loads(tokens.path.read_text()) | {"version": found}))
    tokens.load()


@pytest.mark.parametrize(
    ("opened", "step"),
    [
        (data_folder, r"copy each stream with 'polynya import'"),
        (backup, r"restore it with the release that wrote it"),
        (store_root, r"choose another root, or delete its objects with 'polynya store wipe'"),
        (token_file, r"make its tokens again with 'polynya token create'"),
    ],
)
def test_format_1_is_refused_with_what_to_do(tmp_path: Path, opened: Open, step: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"has format 1, and this release reads format 2: .*{step}"
    ):
        opened(tmp_path, 1)


@pytest.mark.parametrize("opened", [data_folder, backup, store_root, token_file])
def test_a_newer_format_is_refused(tmp_path: Path, opened: Open) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"has format 3, and this release reads format 2: use the release that wrote it, or a "
            r"newer one"
        ),
    ):
        opened(tmp_path, 3)
