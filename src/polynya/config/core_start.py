"""The contract between the supervisor and a core process: its start record, its readiness report
and its lifetime.

The supervisor writes one JSON line (`CoreStart`) to the core's standard input and keeps that pipe
open. End of file on it means that the supervisor died. The core writes the byte `R` to `report_fd`
once it serves. Its exit code tells whether a restart can help.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from typing import NamedTuple

import msgspec

from polynya.config.model import Config
from polynya.config.node_identity import NodeIdentity
from polynya.config.tls import TlsFiles

READY = b"R"
EXIT_CLEAN = 0
EXIT_CORRUPT = 65  # damaged data: a restart would read the same
EXIT_STUCK = 70  # a stop did not finish; the log names what hung (`polynya.node.shutdown_watchdog`)
EXIT_STORAGE = 74  # an fsync or a write failed: the on-disk state is unknown
# removed from its cluster; the supervisor exits with EXIT_CONFIG, as every later start does
EXIT_REMOVED = 69
EXIT_ROOT = 77  # the object store became reachable while serving and belongs to another node
EXIT_CONFIG = 78  # unusable settings: no such bucket, a store without conditional writes, …
FATAL = {
    EXIT_CORRUPT: "its data is damaged; see the lines above for the place, and restore that file from a copy",
    EXIT_STORAGE: (
        "the disk failed to write or to sync; check it (dmesg, free space), then start again: "
        "acknowledged data is safe"
    ),
    EXIT_ROOT: "the object store does not belong to this node; see the lines above",
    EXIT_CONFIG: "the settings are unusable; see the lines above",
}
OTHERS_HAVE_IT = (
    "its data is damaged, or a stale copy; see the lines above. The other nodes hold all "
    "acknowledged data: move the data folder away and start "
    "this node again while all others are up (docs/runbooks.md). Do not restore a stale copy: it "
    "lacks later votes and acknowledgements"
)
_PR_SET_PDEATHSIG = 1

# the names of listeners
HTTP = "http"
ADMIN = "admin"  # loopback
REMOTE_ADMIN = "remote_admin"  # from `admin_listen`
TEXT = "text"
KAFKA = "kafka"


class Address(NamedTuple):
    """A numeric host and a port that the supervisor reserved."""

    host: str
    port: int


class CoreStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start record of one core process. `config.cores` and `config.groups` are numbers here."""

    config: Config
    identity: NodeIdentity
    core: int
    start_id: str  # id of this start of the node: 128 random bits, hexadecimal
    listeners: dict[str, Address]  # by name, `HTTP` and `ADMIN` at least; all cores share them
    peer_host: str = ""  # peer port, in a cluster
    peer_port: int = 0
    kafka_advertised: str = ""  # HOST:PORT for clients
    kafka_direct: tuple[Address, ...] = ()  # of each core; empty: the node is one broker
    kafka_auto_create: bool = True
    kafka_partitions: int = 1  # of a topic whose client leaves them open
    tls: TlsFiles | None = None
    run_directory: str  # holds the sockets between cores
    supervisor_pid: int
    report_fd: int

    @property
    def cores(self) -> int:
        return self.identity.cores

    @property
    def groups(self) -> int:
        return self.identity.groups


def read_start() -> CoreStart:
    """Read the start record from standard input, in the core. From then on this process dies with
    its supervisor."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # bytewise: the pipe stays open after the line, and its end is a signal
        piece = os.read(0, 1)
        if not piece:
            raise SystemExit("the supervisor exited before it sent the start record")
        line += piece
    start = msgspec.json.decode(line, type=CoreStart)
    die_with_parent(start.supervisor_pid)
    return start


def report_ready(start: CoreStart) -> None:
    """Report readiness to the supervisor, in the core. Call once."""
    os.write(start.report_fd, READY)
    os.close(start.report_fd)


def watch_parent(loop: asyncio.AbstractEventLoop) -> None:
    """Exit at once, as in a power cut, when the supervisor's end of standard input closes.
    Acknowledged data is safe. Runs in the core."""

    def readable() -> None:
        if not os.read(0, 4096):
            os._exit(EXIT_CLEAN)

    loop.add_reader(0, readable)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel (Linux) to kill this process when its parent dies; survives exec. Exit if the
    parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit("the supervisor has exited")


def main(arguments: list[str]) -> None:
    """Run `python -m polynya.config.core_start PARENT_PID COMMAND…`: exec a command that dies with
    its parent."""
    die_with_parent(int(arguments[0]))
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
