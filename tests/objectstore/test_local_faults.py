"""The local store's disk: every operation fails once, the power is cut at every moment, and
acknowledged data stays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from polynya.objectstore import Conflict, NotFound, StoreUnavailable, local, put_again
from polynya.objectstore.files import Files
from polynya.objectstore.local import LocalStore

OPERATIONS = (
    "create",
    "write",
    "sync",
    "close",
    "link",
    "rename",
    "unlink",
    "make_folder",
    "sync_folder",
    "read",
)


class FailingFiles(Files):
    """Fails the N-th operation, before it takes effect or after."""

    def __init__(self, fail_at: int, *, after: bool) -> None:
        self.calls = 0
        self.fail_at = fail_at
        self.after = after


def _failing(name: str) -> Callable[..., Any]:
    def operation(self: FailingFiles, *arguments: Any) -> Any:
        self.calls += 1
        failing = self.calls == self.fail_at
        if failing and not self.after:
            raise OSError(5, f"{name} failed")
        result = getattr(Files, name)(self, *arguments)
        if failing:
            raise OSError(5, f"{name} failed afterwards")
        return result

    return operation


for _name in OPERATIONS:
    setattr(FailingFiles, _name, _failing(_name))


async def until_done(attempt: Callable[[], Any]) -> Any:
    """Repeat an idempotent operation, as callers do."""
    for _ in range(3):
        try:
            return await attempt()
        except StoreUnavailable:
            continue
    raise AssertionError("one failed operation must not fail three tries")


@pytest.mark.parametrize("after", [False, True])
def test_any_operation_may_fail_once_and_nothing_acknowledged_is_lost(
    tmp_path: Path, after: bool
) -> None:
    async def story(store: LocalStore) -> None:
        await until_done(lambda: put_again(store, "a/b/one", [b"1", b"2"]))
        assert await until_done(lambda: store.get("a/b/one")) == b"12"
        assert await until_done(lambda: store.get_range("a/b/one", 1, 1)) == b"2"

        async def swap() -> None:
            try:
                etag = (
                    (await store.head("n")).etag
                    if (tmp_path / f"{number}" / "n").exists()
                    else None
                )
                if etag is None or await store.get("n") != b"new":
                    await store.compare_and_swap("n", b"new", etag)
            except Conflict:
                assert await store.get("n") == b"new"

        await until_done(swap)
        assert await until_done(lambda: store.get("n")) == b"new"
        await until_done(lambda: store.delete(["a/b/one"]))
        with pytest.raises(NotFound):
            await until_done(lambda: store.get("a/b/one"))
        assert [info.key async for info in store.list("")] == ["n"]

    number = 0
    while True:
        number += 1
        files = FailingFiles(number, after=after)
        root = str(tmp_path / str(number))
        try:
            store = LocalStore(root, files)
        except StoreUnavailable:
            store = LocalStore(root, files)
        asyncio.run(story(store))
        if files.calls < number:
            break
    assert number > 30


class Cut(BaseException):
    """The power is gone."""


class PowerCutFiles(Files):
    """Counts operations, stops at one, and keeps what a disk would: synced contents under synced
    names."""

    def __init__(self, stop_at: int = 0, *, without: str = "") -> None:
        self.calls = 0
        self.stop_at = stop_at
        self.without = without  # an operation that is left out: the test must notice
        self.paths: dict[int, str] = {}
        self.synced: dict[int, bytes] = {}  # content by inode
        self.names: dict[str, dict[str, int]] = {}  # folder -> its synced names -> inode

    def step(self) -> None:
        self.calls += 1
        if self.calls == self.stop_at:
            raise Cut

    def create(self, path: str) -> int:
        self.step()
        descriptor = super().create(path)
        self.paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self.step()
        return super().write(descriptor, data[: max(1, len(data) // 2)])

    def sync(self, descriptor: int) -> None:
        self.step()
        if self.without != "sync":
            path = self.paths[descriptor]
            self.synced[os.stat(path).st_ino] = Path(path).read_bytes()

    def link(self, source: str, target: str) -> None:
        self.step()
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self.step()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.step()
        super().unlink(path)

    def make_folder(self, path: str) -> None:
        self.step()
        super().make_folder(path)

    def sync_folder(self, path: str) -> None:
        self.step()
        if self.without != "sync_folder":
            self.names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}

    def survivors(self, root: str) -> dict[str, bytes]:
        """Return the objects left after the cut: keys reachable by synced names from the root's
        parent down."""
        found: dict[str, bytes] = {}
        parent, name = os.path.split(root)
        if name in self.names.get(parent, {}):
            self._collect(root, "", found)
        return found

    def _collect(self, folder: str, prefix: str, found: dict[str, bytes]) -> None:
        for name, inode in self.names.get(folder, {}).items():
            path = os.path.join(folder, name)
            if path in self.names or os.path.isdir(path):
                self._collect(path, f"{prefix}{name}/", found)
            elif not prefix.startswith("."):
                found[prefix + name] = self.synced.get(inode, b"")


def play(root: str, files: PowerCutFiles) -> tuple[dict[str, bytes], set[str]]:
    """Return (acknowledged objects, keys of unknown outcome) at the power cut."""
    acknowledged: dict[str, bytes] = {}
    pending: set[str] = set()
    try:
        store = LocalStore(root, files)
        for key, data in (
            ("h1/x", b"first"),
            ("h1/y", b"second!"),
            ("h2/z", b"third"),
            ("h1/big", b"x" * 300),
        ):
            pending.add(key)
            store._put(key, [data])
            acknowledged[key] = data
            pending.discard(key)
        etag = None
        for data in (b"one", b"two", b"three"):
            pending.add("n")
            etag = store._swap("n", data, etag)
            acknowledged["n"] = data
            pending.discard("n")
    except Cut:
        pass
    return acknowledged, pending


def lost(root: str, files: PowerCutFiles) -> list[str]:
    acknowledged, pending = play(root, files)
    there = files.survivors(root)
    wrong = [
        key for key, data in acknowledged.items() if there.get(key) != data and key not in pending
    ]
    if "n" in pending and "n" in acknowledged and there.get("n") not in (b"one", b"two", b"three"):
        wrong.append("n")
    return wrong


def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(tmp_path: Path) -> None:
    stop_at = 0
    while True:
        stop_at += 1
        files = PowerCutFiles(stop_at)
        assert lost(str(tmp_path / str(stop_at)), files) == [], f"cut at operation {stop_at}"
        if files.calls < stop_at:
            break
    assert stop_at > 50


@pytest.mark.parametrize("without", ["sync", "sync_folder"])
def test_the_power_cut_notices_a_missing_sync(tmp_path: Path, without: str) -> None:
    assert lost(str(tmp_path / "root"), PowerCutFiles(without=without))


def test_leftovers_of_dead_writers_are_removed_at_the_next_start(tmp_path: Path) -> None:
    LocalStore(str(tmp_path))
    old, young = tmp_path / ".tmp" / "old", tmp_path / ".tmp" / "young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    LocalStore(str(tmp_path))
    assert not old.exists()
    assert young.exists()


def test_a_removed_folder_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        store = LocalStore(str(tmp_path))
        await store.put("h/x", b"1")
        (tmp_path / "h" / "x").unlink()
        (tmp_path / "h").rmdir()
        await until_done(lambda: store.put("h/y", b"2"))
        assert await store.get("h/y") == b"2"
        await store.close()

    asyncio.run(story())


def test_two_processes_share_a_root(tmp_path: Path) -> None:
    """Two stores on one folder: exclusive creation and swaps hold between them."""

    async def story() -> None:
        one, two = LocalStore(str(tmp_path)), LocalStore(str(tmp_path))
        outcomes = await asyncio.gather(
            *(store.put("k", b"%d" % n) for n, store in enumerate((one, two) * 8)),
            return_exceptions=True,
        )
        assert sum(outcome is None for outcome in outcomes) == 1
        etag = (await one.head("k")).etag
        swaps = await asyncio.gather(
            *(
                store.compare_and_swap("k", b"x%d" % n, etag)
                for n, store in enumerate((one, two) * 8)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, str) for outcome in swaps) == 1

    asyncio.run(story())


def test_a_file_that_another_process_finishes_meanwhile_does_not_stop_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "objects" / ".tmp"
    temporary.mkdir(parents=True)
    (temporary / "theirs").write_bytes(b"x")
    scandir = os.scandir

    def finishing(path: str) -> object:
        entries = list(scandir(path))
        (temporary / "theirs").unlink(missing_ok=True)  # between the listing and the look at it
        return nullcontext(entries)

    monkeypatch.setattr("polynya.objectstore.local.os.scandir", finishing)
    listed = LocalStore(str(tmp_path / "objects"))
    assert listed.root == str(tmp_path / "objects")


def test_a_put_does_not_hash_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skip the etag of a put: hashing a pack costs more CPU than writing it, and no caller
    compares the etag."""
    hashed: list[int] = []

    def count(data: bytes) -> str:
        hashed.append(len(data))
        return "etag"

    monkeypatch.setattr(local, "_hash", count)

    async def story() -> None:
        store = LocalStore(str(tmp_path / "store"))
        await store.put("pack", [b"x" * 1000, b"y"])
        assert await store.get("pack") == b"x" * 1000 + b"y" and hashed == []
        assert await store.compare_and_swap("root", b"r", None) == "etag" and hashed == [1]
        await store.close()

    asyncio.run(story())
