"""The nodes of `polynya cluster dev` as processes: start, stop, and the files that tell that one
runs."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from polynya.cli.cluster.dev_folder import SETTINGS_FILE, Laid
from polynya.cli.cluster.dev_ports import SPREAD, flags_of
from polynya.cli.terminal import output
from polynya.config.node_identity import REMOVED
from polynya.config.settings import BY_KEY, CLIENT_VARIABLES
from polynya.config.ursula import in_own_names

STOP_SECONDS = 30.0
OWN = ("listen", "data", "cores")  # set in each node's file, as is all of `cluster.`
START_SCRIPT = "start.sh"
START_SCRIPT_MODE = 0o700  # variables may be secrets
# variables that a node reads; the client's, such as POLYNYA_TOKEN, are none of them
_NEEDED = ("POLYNYA_", "AWS_")
_SCRIPT = """#!/bin/sh
# Starts node {number} of this cluster, until SIGTERM or Ctrl-C, with the settings that it had.
# Other settings are flags of this script. The variables may be secrets: keep this file private.
for name in $(env | sed -nE 's/^((POLYNYA|AWS)_[A-Za-z0-9_]*)=.*/\\1/p'); do unset "$name"; done
{variables}exec {command} "$@"
"""


@dataclass
class DevNode:
    """One node. `process` is the process of the first start."""

    number: int
    folder: Path
    host: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    down: bool = field(default=False)
    joins: bool = False
    reader: bool = False
    log_start: int = 0  # log offset at this start

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def peer(self) -> str:
        return f"{self.host}:{self.port + 2}"

    @property
    def entry(self) -> str:
        """The node's entry in `[[cluster.nodes]]`."""
        role = 'role = "reader"\n' if self.reader else ""
        return (
            f'[[cluster.nodes]]\nid = {self.number}\npeer = "{self.peer}"\nhttp = "{self.url}"\n'
            f"{role}"
        )

    @property
    def was_removed(self) -> bool:
        """True if the node was removed from the cluster; it does not start again."""
        return (self.folder / REMOVED).exists()


def start_node(node: DevNode) -> None:
    """Start a node in its own session, because this process handles Ctrl-C; the node dies with this
    process."""
    with (node.folder / "node.log").open("ab") as log:
        node.log_start = log.tell()
        node.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "polynya.config.core_start",
                str(os.getpid()),
                str(node.folder / START_SCRIPT),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=nodes_environment(),
            start_new_session=True,
        )


def nodes_environment() -> dict[str, str]:
    """Return the nodes' environment, in our names, without what their settings files replace."""
    own = {f"POLYNYA_{name.upper()}" for name in OWN} | {BY_KEY[key].env for key in SPREAD}
    return {
        name: text
        for name, text in in_own_names(os.environ).items()
        if name not in own and not name.startswith("POLYNYA_CLUSTER_")
    }


def kept_environment() -> dict[str, str]:
    """Return the variables of the nodes' environment that a later start of one needs."""
    return {
        name: text
        for name, text in nodes_environment().items()
        if name.startswith(_NEEDED) and name not in CLIENT_VARIABLES
    }


def start_script(node: DevNode, laid: Laid) -> str:
    """Return the start.sh of a node. Raises `exits.Misused`."""
    command = [
        *(sys.executable, "-m", "polynya", "serve"),
        *("--config", str(node.folder / SETTINGS_FILE)),
        *flags_of(laid.flags, node.number),
    ]
    variables = "".join(
        f"export {name}={shlex.quote(text)}\n" for name, text in sorted(laid.environment.items())
    )
    return _SCRIPT.format(number=node.number, variables=variables, command=shlex.join(command))


def stop_nodes(nodes: list[DevNode]) -> None:
    """Stop all nodes, including those that were restarted."""
    for node in nodes:
        if (pid := running_pid(node.folder)) is not None:
            _send(pid, signal.SIGTERM)
        elif node.process is not None and node.process.poll() is None:
            _send(node.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for node in nodes:
        while is_running(node.folder) or (node.process is not None and node.process.poll() is None):
            if time.monotonic() > deadline:
                output.notice(
                    f"node {node.number} did not stop in time and was killed; no acknowledged "
                    "data is lost"
                )
                _send(
                    running_pid(node.folder) or (node.process.pid if node.process else 0),
                    signal.SIGKILL,
                )
                break
            time.sleep(0.02)


def is_running(folder: Path) -> bool:
    """Return True if a node holds the lock of this data folder."""
    try:
        with (folder / "node.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def running_pid(folder: Path) -> int | None:
    """Return the supervisor's pid if the node runs; the file of a killed node is stale."""
    if not is_running(folder):
        return None
    try:
        return int((folder / "node.pid").read_text())
    except (OSError, ValueError):
        return None


def _send(pid: int, number: signal.Signals) -> None:
    try:
        if pid:
            os.kill(pid, number)
    except ProcessLookupError:
        pass


def has_failed(node: DevNode) -> bool:
    """Return True if the process of the first start ended with an error code."""
    code = None if node.process is None else node.process.poll()
    return code is not None and code > 0


def was_stopped(node: DevNode) -> bool:
    """Return True if the process of the first start was killed, or stopped without an error."""
    return node.process is not None and node.process.poll() is not None and not has_failed(node)


def last_lines(node: DevNode) -> str:
    """Return the last log lines since this start."""
    with (node.folder / "node.log").open("rb") as log:
        log.seek(node.log_start)
        return "\n".join(log.read().decode(errors="replace").splitlines()[-5:])
