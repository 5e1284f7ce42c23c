"""The contract between the supervisor and a core process: what a core is told, what it reports, and that it never outlives it.

The supervisor writes one JSON line (`CoreStart`) to the core's standard input and keeps that pipe open: its end is the supervisor's
death. The core answers on `report_fd` with the byte `R` when it serves. Its exit code says whether a restart can help.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys

import msgspec

from polynya.config.model import Config
from polynya.config.node_identity import NodeIdentity
from polynya.config.tls import TlsFiles

READY = b"R"
EXIT_CLEAN = 0
EXIT_CORRUPT = 65  # data is damaged where it must not be: a restart would read the same
EXIT_STUCK = 70  # told to stop, it did not come to its end, and said what hangs (`polynya.node.shutdown_watchdog`)
EXIT_STORAGE = 74  # an fsync or a write failed: what is on the disk is unknown
EXIT_REMOVED = 69  # this node belongs to its cluster no more; the supervisor ends with EXIT_CONFIG, as every later start does
EXIT_ROOT = 77  # the object store came back, and is not this node's: found out while it served
EXIT_CONFIG = 78  # the settings cannot work: no such bucket, a store without conditional writes, …
FATAL = {
    EXIT_CORRUPT: "its data is damaged; see the lines above for the place, and restore that file from a copy",
    EXIT_STORAGE: "the disk failed to write or to sync; check it (dmesg, free space), then start again: acknowledged data is safe",
    EXIT_ROOT: "the object store cannot be this node's; see the lines above",
    EXIT_CONFIG: "the settings cannot work; see the lines above",
}
OTHERS_HAVE_IT = (
    "its data is damaged, or older than it was; see the lines above. The other nodes have what was acknowledged: move the data folder away and start "
    "this node again while all others are up (docs/runbooks.md). An older copy must not be put in its place: it would not know what it has forgotten"
)
_PR_SET_PDEATHSIG = 1


class CoreStart(msgspec.Struct, frozen=True, kw_only=True):
    """All that one core process needs to know. `config.cores` and `config.groups` are numbers here."""

    config: Config
    birth: NodeIdentity
    core: int
    start_id: str  # of this start of the node: 128 random bits, hexadecimal
    host: str  # numeric
    port: int
    admin_host: str  # loopback
    admin_port: int
    far_admin_host: str = ""  # of `admin_listen`, if that is set
    far_admin_port: int = 0
    peer_host: str = ""  # of the peer port, where this node is one of a cluster
    peer_port: int = 0
    tls: TlsFiles | None = None
    run_directory: str  # of the sockets between cores
    supervisor_pid: int
    report_fd: int

    @property
    def cores(self) -> int:
        return self.birth.cores

    @property
    def groups(self) -> int:
        return self.birth.groups


def read_start() -> CoreStart:
    """In the core: take the start from standard input; from now on this process dies with its supervisor."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)  # bytewise: what follows the line belongs to nobody, and its end is a signal
        if not piece:
            raise SystemExit("the supervisor went away before it said what to do")
        line += piece
    start = msgspec.json.decode(line, type=CoreStart)
    die_with_parent(start.supervisor_pid)
    return start


def report_ready(start: CoreStart) -> None:
    """In the core: it serves now. To be called once."""
    os.write(start.report_fd, READY)
    os.close(start.report_fd)


def watch_parent(loop: asyncio.AbstractEventLoop) -> None:
    """In the core: end the process at once, as a power cut would, when the supervisor's end of standard input closes. Nothing acknowledged
    is lost by it."""

    def readable() -> None:
        if not os.read(0, 4096):
            os._exit(EXIT_CLEAN)

    loop.add_reader(0, readable)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel (Linux) to kill this process when its parent dies; survives exec. Exits if the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit("the supervisor is gone")


def main(arguments: list[str]) -> None:
    """`python -m polynya.config.core_start PARENT_PID COMMAND…`: become a command that dies with its parent."""
    die_with_parent(int(arguments[0]))
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
