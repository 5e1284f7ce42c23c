"""A file system that can lose power: ext4 on a loop device, shut down without flushing
(EXT4_IOC_SHUTDOWN).

What counts is what was acknowledged before the call began: while it runs, ext4 can answer an
fdatasync with success and lose the data (seen on Linux 6.18 in 2 of 100 cuts, with and without
allocated segments; before the call in none of 374).

Needs root, Linux, loop devices and mkfs.ext4; where one of them is missing, a test says which and is
skipped.
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

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def run(*command: str | Path) -> str:
    """Run a command and return the error, or ""."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{command[0]}: {done.stderr.strip() or done.returncode}"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Make a file with an ext4 in it, which can be mounted here."""
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
    """Mount the image until `with` ends. Both steps are tried again: somebody else may look at a
    new file system, or take the loop device, for a moment."""
    folder.mkdir(exist_ok=True)
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
