"""Locations of backups as spelled on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polynya.cli.storage import locations
from polynya.cli.terminal import exits


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("backups", "backups"),
        ("-", "-"),
        ("s3://bucket/a", "s3://bucket/a"),
        ("file:///backups/of%20us", "/backups/of us"),
        ("file:///one.tar", "/one.tar"),
    ],
)
def test_a_folder_may_be_given_as_a_url(location: str, path: str) -> None:
    assert locations.path_of(location) == path


@pytest.mark.parametrize(
    "location", ["gs://bucket/a", "http://there/a", "file://backups", "S3://bucket"]
)
def test_no_folder_is_made_for_what_is_no_place(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        async with locations.to_write(location, None):
            raise AssertionError("there is no such place")

    async def read() -> None:
        async with locations.to_read(location, None):
            raise AssertionError("there is no such place")

    monkeypatch.chdir(tmp_path)
    for attempt in (write, read):
        with pytest.raises(exits.Misused, match="is not a backup location"):
            asyncio.run(attempt())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_read_is_left_as_it_is(tmp_path: Path) -> None:
    async def read() -> tuple[bytes, list[str]]:
        async with locations.to_read(str(tmp_path), None) as repository:
            return await repository.get("a/b"), [info.key async for info in repository.list("")]

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x")
    assert asyncio.run(read()) == (b"x", ["a/b"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"], (
        "it may be mounted to be read alone, or be somebody else's"
    )
