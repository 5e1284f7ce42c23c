"""Checks of the data folder, its disk, and the listen ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from polynya.base.errors import ConfigError
from polynya.cli.diagnostics.findings import FAIL, OK, WARN, Finding
from polynya.cli.terminal import output
from polynya.config.model import Config, resolve, split_listen

FREE_BYTES_LEAST = 256 << 20
FREE_BYTES_GOOD = 4 << 30
FILES_GOOD = 100  # free inodes
SYNCS = 30
SYNC_SECONDS_MAX = 3.0  # for all syncs
SYNC_SLOW = 0.010  # seconds; each append waits for one fsync
SYNC_TOO_FAST = 0.000_02  # seconds; faster than any disk
VOLATILE = frozenset(["tmpfs", "ramfs"])
REMOTE = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "vboxsf",
        "virtiofs",
    ]
)


def check_data(config: Config) -> Iterator[Finding]:
    """Check the folder, its file system, free space, and fsync latency."""
    folder = Path(config.data)
    path = folder
    while not path.exists():
        path = path.parent
    if not path.is_dir():
        yield Finding(
            "data folder", FAIL, f"{path} is not a folder", "Pass another folder with --data."
        )
        return
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        yield Finding(
            "data folder",
            FAIL,
            f"{path} is on a read-only file system",
            "Mount it read-write, or pass another --data.",
        )
        return
    if not os.access(path, os.W_OK | os.X_OK):
        yield Finding(
            "data folder",
            FAIL,
            f"{path} is not writable for this user",
            f"Run: chown {_user()} {path}, or pass another --data.",
        )
        return
    yield _folder(folder)
    yield _file_system(path)
    yield _space(path)
    yield _syncs(path)


def check_ports(config: Config, *, running: bool) -> Iterator[Finding]:
    """Check the base port, the admin port, and a cluster's peer port. `running`: a local node is
    known to hold them."""
    from polynya.system.ports import take_port

    host, port = split_listen(config.listen)
    wanted = [
        ("port", resolve(host)[0], port, "--listen"),
        ("admin port", "127.0.0.1", port + 1 if port else 0, "--listen"),
    ]
    if config.cluster.is_on:
        host, port = config.cluster.listen_address
        wanted.append(("peer port", resolve(host)[0], port, "cluster.nodes"))
    for name, address, number, change in wanted:
        if running:
            yield Finding(name, OK, f"{number} is used by the running node")
            continue
        try:
            with take_port(address, number, name="listen") as taken:
                yield Finding(
                    name, OK, f"{taken.getsockname()[1]} is free" if number else "any free port"
                )
        except ConfigError as error:
            yield Finding(
                name,
                FAIL,
                str(error).removeprefix("listen: ").partition(";")[0],
                f"Stop that process, or pass another port with {change}.",
            )


def _folder(folder: Path) -> Finding:
    if not folder.exists():
        return Finding(
            "data folder", OK, f"{folder} does not exist yet: the first start creates it"
        )
    if (folder / "node.json").exists():
        with contextlib.suppress(OSError, ValueError):
            pid = int((folder / "node.pid").read_text())
            return Finding("data folder", OK, f"{folder} is in use by the node with pid {pid}")
        return Finding("data folder", OK, f"{folder} contains a node's data")
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".")
    if strangers:
        step = (
            "Pass an empty or new folder with --data. If this is a node's data, restore node.json "
            "from a copy."
        )
        return Finding(
            "data folder", FAIL, f"{folder} holds unrelated files: {', '.join(strangers[:3])}", step
        )
    return Finding("data folder", OK, f"{folder} is empty")


def _file_system(path: Path) -> Finding:
    kind = file_system_of(path)
    if kind in VOLATILE:
        return Finding(
            "file system",
            WARN,
            f"{kind}: acknowledged data is lost when the machine stops",
            "Pass a folder on a disk with --data.",
        )
    if kind in REMOTE:
        step = "Use a local disk: file locks and fsync over a network do not guarantee durability."
        return Finding("file system", WARN, f"{kind}, a network file system", step)
    return Finding("file system", OK, kind or "not checked: this system does not report it")


def file_system_of(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """Return the type of the file system that holds an existing folder; empty if unknown."""
    wanted = os.path.realpath(path)
    best, kind = -1, ""
    with (
        contextlib.suppress(OSError),
        open(mounts, encoding="utf-8", errors="surrogateescape") as lines,
    ):
        for line in lines:
            point, found = line.split()[1:3]
            point = point.replace("\\040", " ")
            inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= best:
                best, kind = len(point), found
    return kind


def _space(path: Path) -> Finding:
    usage = shutil.disk_usage(path)
    said = f"{output.size(usage.free)} free of {output.size(usage.total)}"
    if usage.free < FREE_BYTES_LEAST:
        return Finding(
            "free space",
            FAIL,
            said,
            "Free some space: the node refuses appends when the disk is full.",
        )
    if usage.free < FREE_BYTES_GOOD:
        return Finding(
            "free space",
            WARN,
            said,
            "Free some space soon: the node refuses appends when the disk is full.",
        )
    found = os.statvfs(path)
    # file systems without an inode limit report 0
    if found.f_files and found.f_favail < FILES_GOOD:
        return Finding(
            "free space",
            WARN,
            f"{said}, but only {found.f_favail} more files fit",
            "Delete files: the file system runs out of inodes.",
        )
    return Finding("free space", OK, said)


def _syncs(path: Path) -> Finding:
    try:
        taken = sync_seconds(path)
    except OSError as error:
        return Finding(
            "fsync",
            FAIL,
            f"cannot write to {path}: {error.strerror}",
            "Check the disk (dmesg), or pass another folder with --data.",
        )
    median, worst = statistics.median(taken), max(taken)
    said = f"median {_spelled(median)}, maximum {_spelled(worst)}, of {len(taken)}"
    if median > SYNC_SLOW:
        return Finding("fsync", WARN, said, "Each append waits for an fsync: use a local SSD.")
    if median < SYNC_TOO_FAST:
        step = (
            "No disk is this fast. A RAM disk, or a disk that acknowledges early, loses "
            "acknowledged records in a power cut."
        )
        return Finding("fsync", WARN, said, step)
    return Finding("fsync", OK, said)


def sync_seconds(folder: Path) -> list[float]:
    """Return the durations of several 4 KiB writes with fsync. Raises OSError."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".polynya-doctor-") as file:
        began = time.monotonic()
        while len(taken) < SYNCS and time.monotonic() - began < SYNC_SECONDS_MAX:
            start = time.perf_counter()
            file.write(b"\x5a" * 4096)
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    return taken


def _spelled(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def _user() -> str:
    return os.environ.get("USER", str(os.getuid()))
