"""Writes of large buffers: from where they are, whatever the kernel takes of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from polynya.wal import OsFiles
from polynya.wal import files as wal_files

LARGE = [bytes([number]) * 65_536 for number in range(8)]


@pytest.mark.parametrize("taken", [1 << 30, 100_000, 0])
def test_large_buffers_are_written_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """`taken`: how much the kernel takes at once."""
    given: list[Sequence[bytes]] = []

    def pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        given.append(buffers)
        return os.pwrite(fd, b"".join(buffers)[:taken], offset)

    monkeypatch.setattr(wal_files.os, "pwritev", pwritev)
    files = OsFiles()
    fd = files.create(tmp_path / "segment")
    try:
        buffers = [piece for payload in LARGE for piece in (b"h" * 28, b"crc4", payload)]
        files.write(fd, buffers, 64)
        assert [buffer is own for buffer, own in zip(given[0], buffers, strict=True)] == [True] * 24
        assert files.read(fd, 1 << 20, 64) == b"".join(buffers)
        files.write(fd, [b"small"] * 100, 0)
        assert len(given) == 1, "small buffers are joined: an iovec each would cost more"
    finally:
        files.close(fd)
