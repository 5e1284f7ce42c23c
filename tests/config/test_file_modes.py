"""Permissions of the node's files: only its user may read new files and those of earlier releases.
A shared root stays as it is."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from polynya.base.errors import ConfigError
from polynya.config import file_modes
from polynya.config.file_modes import begin_tightening, tighten_once
from polynya.config.loading import load
from polynya.config.model import Config
from polynya.config.sections import ColdConfig
from polynya.files import tighten
from polynya.objectstore import StoreSettings, open_store

CLUSTER = "c" * 32


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Set the umask of an interactive shell."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Return the mode of a folder and of everything in it."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink()
    }


def readable(folder: Path) -> list[str]:
    """Return the paths that other users may read, write or enter."""
    return sorted(name for name, mode in modes(folder).items() if mode & 0o077)


def older(folder: Path, *names: str) -> None:
    """Files as an earlier release wrote them."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o644


def config_of(tmp_path: Path, root: str = "", *, shared: bool = False) -> Config:
    return Config(data=str(tmp_path / "data"), cold=ColdConfig(root=root, shared=shared))


def test_older_files_are_tightened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    older(
        data,
        "node.json",
        "core-0/journal/1.journal",
        f"objects/{CLUSTER}/packs/p",
        "objects/tables/1/main/data/f.parquet",
    )
    (tmp_path / "elsewhere").write_text("")
    (data / "link").symlink_to(tmp_path / "elsewhere")
    (data / "start.sh").touch(0o755)
    tighten_once(config_of(tmp_path), CLUSTER)
    assert (
        readable(data) == [] and modes(data)["start.sh"] == 0o700 and modes(data)["core-0"] == 0o700
    )
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o644, "links are not followed"
    monkeypatch.setattr(file_modes, "tighten", lambda *_: pytest.fail("it was done"))
    tighten_once(config_of(tmp_path), CLUSTER)


def test_a_root_elsewhere_is_tightened_but_not_what_others_have_in_it(tmp_path: Path) -> None:
    older(tmp_path / "data", "node.json")
    own = tmp_path / "own"
    older(own, "polynya-root.json", f"{CLUSTER}/packs/p", "tables/1/f.parquet", ".tmp/x")
    mixed = tmp_path / "mixed"
    older(mixed, "polynya-root.json", "tables/1/f.parquet", "theirs/f")
    for root in (own, mixed):
        tighten_once(config_of(tmp_path, str(root)), CLUSTER)
    assert readable(own) == []
    assert readable(mixed) == [".", "theirs", "theirs/f"]
    shared = tmp_path / "shared"
    older(shared, "polynya-root.json", "tables/1/f.parquet")
    before = modes(shared)
    tighten_once(config_of(tmp_path, str(shared), shared=True), CLUSTER)
    assert modes(shared) == before


def test_a_refused_chmod_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    older(data, "node.json", "core-0/1.journal")
    real = os.chmod

    def chmod(path: str, mode: int, *, dir_fd: int | None = None) -> None:
        if str(path).endswith(".journal"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "chmod", chmod)
    with caplog.at_level(logging.WARNING):
        tighten_once(config_of(tmp_path), CLUSTER)
    assert readable(data) == ["core-0/1.journal"]
    (record,) = caplog.records
    assert (
        "cannot remove other users' rights" in record.message
        and record.__dict__["files"] == 1
        and "1.journal" in record.__dict__["first"]
    )
    assert tighten([data / "core-0" / "1.journal"], deep=False) == [
        (str(data / "core-0" / "1.journal"), "Operation not permitted")
    ]


def test_the_data_folder_is_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older(tmp_path / "data", "node.json")
    monkeypatch.setattr(file_modes, "tighten_once", lambda *_: None)
    begin_tightening(config_of(tmp_path), CLUSTER)
    assert modes(tmp_path / "data") == {".": 0o700, "node.json": 0o644}


async def fill(settings: StoreSettings) -> None:
    store = open_store(settings)
    assert store is not None
    await store.put(f"{CLUSTER}/packs/1/p", b"data")
    etag = await store.compare_and_swap("polynya-root.json", b"{}", None)
    await store.compare_and_swap("polynya-root.json", b"[]", etag)
    await store.delete(["nothing"])
    await store.close()


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_objects_are_private_unless_their_root_is_shared(tmp_path: Path, umask: int) -> None:
    os.umask(umask)
    asyncio.run(fill(StoreSettings(root=str(tmp_path / "own"))))
    assert readable(tmp_path / "own") == []
    made = tmp_path / "made"
    asyncio.run(fill(StoreSettings(root=str(made), shared=True)))
    assert set(modes(made).values()) == {0o755, 0o644} and modes(made)["."] == 0o755
    team = tmp_path / "team"
    team.mkdir()
    team.chmod(0o2770)
    asyncio.run(fill(StoreSettings(root=str(team), shared=True)))
    assert set(modes(team).values()) == {0o2770, 0o660}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"--cold-root": "objects"},
        {"--cold-root": "DATA/inside"},
        {"--cold-backend": "s3", "--cold-s3-bucket": "b", "--cold-root": "/elsewhere"},
    ],
)
def test_only_a_root_outside_the_data_folder_can_be_shared(
    tmp_path: Path, flags: dict[str, str]
) -> None:
    given = {flag: text.replace("DATA", str(tmp_path)) for flag, text in flags.items()} | {
        "--data": str(tmp_path),
        "--cold-shared": "true",
    }
    with pytest.raises(ConfigError, match="only a folder outside the data folder can be shared"):
        load(given, environ={})
    assert load(
        {"--data": str(tmp_path), "--cold-shared": "true", "--cold-root": "/elsewhere"}, environ={}
    ).config.store.shared
