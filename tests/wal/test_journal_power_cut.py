"""A real power cut: ext4 on a loop device is shut down without flushing (EXT4_IOC_SHUTDOWN) under a
running writer.

What counts is what was acknowledged before the call began: while it runs, ext4 can answer an
fdatasync with success and lose the data (seen on Linux 6.18 in 2 of 100 cuts, with and without
allocated segments; before the call in none of 374).

Needs root, Linux, loop devices and mkfs.ext4, and mounts a file system of its own; where one of
them is missing it says which and is skipped.
"""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from missing import left_out, needed_program
from polling import wait_until
from worlds.journal_process import SEGMENT_BYTES, kill_writer, start_writer

from polynya.wal import Journal

pytestmark = pytest.mark.process
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def run(*command: str | Path) -> str:
    """What went wrong, or ""."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{command[0]}: {done.stderr.strip() or done.returncode}"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A file with an ext4 in it, which can be mounted here."""
    if os.geteuid() != 0:
        left_out("mounting a file system needs root")
    mkfs = needed_program("mkfs.ext4")
    image, mount = tmp_path / "image", tmp_path / "try"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    if wrong := run(mkfs, "-q", "-F", image) or run("mount", "-o", "loop", image, mount):
        left_out(f"an ext4 on a loop device cannot be mounted here: {wrong}")
    wait_until(lambda: not run("umount", mount), what="the file system to be unmounted")
    return image


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[None]:
    """Somebody else may look at a new file system, or take the loop device, for a moment: both are
    tried again."""
    wait_until(
        lambda: not run("mount", "-o", "loop", image, folder), what="the image to be mounted"
    )
    try:
        yield
    finally:
        wait_until(lambda: not run("umount", folder), what="the image to be unmounted")


def cut_power(mount: Path) -> None:
    assert mount.is_mount(), "never the file system of the machine"
    fd = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(fd)


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, image: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    acknowledged = 0
    for turns in (3, 200, 20, 500):
        with mounted(image, mount):
            writer, found = start_writer(mount / "journal")
            try:
                assert found >= acknowledged and writer.stdout is not None
                for _ in range(turns):
                    acknowledged = int(writer.stdout.readline())
                cut_power(mount)
            finally:
                kill_writer(writer, acknowledged)
        with mounted(image, mount):
            journal = Journal.open(mount / "journal", journal_id=7, segment_bytes=SEGMENT_BYTES)
            indexes = [entry.index for entry in journal.entries()]
            journal.close()
        assert indexes == list(range(1, len(indexes) + 1)) and len(indexes) >= acknowledged
        acknowledged = len(indexes)
