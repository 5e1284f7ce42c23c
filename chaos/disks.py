"""Disks of the nodes: a file system of its own in a file, whose power can be cut and which can be
full; and bits that flip in a node's journal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from random import Random

END_SECONDS = 10.0  # a helper of a core ends after it
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2  # what the journal of the file system has not written is lost as well
IMAGE_BYTES = 3 << 30  # sparse
FRAME = struct.Struct("<IIHBxQQI")  # docs/formats/journal.md
SEGMENT_HEADER_BYTES = 64


class Folder:
    """A node's disk that is a plain folder."""

    can_lose_power = False

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)

    def close(self) -> None:
        pass


class Disk:
    """An ext4 of its own, in a file beside it. Needs root."""

    can_lose_power = True

    def __init__(self, path: Path) -> None:
        self.path, self.image = path, path.with_suffix(".ext4")
        path.mkdir(parents=True)
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self._mount()

    def cut_power(self) -> None:
        """Cut the power: later writes never reach the disk, and unsynced data is lost. Then kill
        the processes and call `restore`."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def restore(self) -> None:
        """Restore the power: the disk has its synced content. Waits for ending processes, which
        must not use it meanwhile."""
        deadline = time.monotonic() + END_SECONDS
        while True:
            try:
                _run("umount", str(self.path))
                break
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        while _run("losetup", "-j", str(self.image)):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.image} is still mounted in another mount namespace, whose disk has no "
                    "power either"
                )
            time.sleep(0.05)
        self._mount()

    def fill(self, leave: int = 0) -> None:
        """Fill the disk except for that many bytes."""
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        with (self.path / "ballast").open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, free - leave))

    def empty(self) -> None:
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        unmount(self.path)

    def _mount(self) -> None:
        _run("mount", "-o", "loop,noatime", str(self.image), str(self.path))


def why_not(folder: Path) -> str:
    """Return why this machine cannot mount a file system of its own; empty when it can."""
    if os.geteuid():
        return "mounting a file system needs root"
    missing = [
        tool for tool in ("mkfs.ext4", "mount", "umount", "losetup") if shutil.which(tool) is None
    ]
    if missing:
        return f"not installed: {', '.join(missing)}"
    probe = folder / "probe"
    try:
        disk = Disk(probe)
        disk.cut_power()
        disk.restore()
        disk.close()
    except (subprocess.CalledProcessError, OSError) as fault:
        said = (
            fault.stderr.decode().strip()
            if isinstance(fault, subprocess.CalledProcessError)
            else str(fault)
        )
        return f"an ext4 in a file cannot be mounted or shut down here: {said}"
    finally:
        unmount(probe)
        probe.with_suffix(".ext4").unlink(missing_ok=True)
    return ""


def unmount(path: Path) -> None:
    """Unmount a folder, even one in use."""
    if os.path.ismount(path):
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def frames_of(segment: Path) -> list[tuple[int, int]]:
    """Return (offset, length) of each frame of a journal segment, as far as they go."""
    data = segment.read_bytes()
    found, offset = [], SEGMENT_HEADER_BYTES
    while offset + FRAME.size <= len(data):
        length = FRAME.unpack_from(data, offset)[0]
        if not any(data[offset : offset + FRAME.size]):
            break
        found.append((offset, FRAME.size + length))
        offset += FRAME.size + length
    return found


def flip_in_the_middle(journal: Path, draw: Random) -> str:
    """Flip one bit of a frame that was acknowledged long ago, and describe it. Empty when there is
    none."""
    segments = sorted(journal.glob("*.journal"))
    choices = [(segment, frame) for segment in segments for frame in frames_of(segment)[:-40]]
    if not choices:
        return ""
    segment, (offset, length) = draw.choice(choices[len(choices) // 3 :])
    at, bit = offset + draw.randrange(length), draw.randrange(8)
    with segment.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return f"bit {bit} of byte {at} of {segment.name}"


def tear_the_tail(journal: Path, draw: Random) -> str:
    """Write what an interrupted write leaves: half a frame behind the last."""
    segment = max(journal.glob("*.journal"))
    frames = frames_of(segment)
    offset = sum(frames[-1]) if frames else SEGMENT_HEADER_BYTES
    with segment.open("r+b") as file:
        file.seek(offset)
        file.write(draw.randbytes(draw.randrange(8, 400)))
    return f"half a write behind byte {offset} of {segment.name}"


def _run(*command: str) -> bytes:
    return subprocess.run(command, check=True, capture_output=True).stdout
