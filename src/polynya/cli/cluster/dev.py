"""`polynya cluster dev`: a cluster of full nodes on this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from polynya.admin.lake_worker import check_lake
from polynya.base.errors import ConfigError
from polynya.cli.cluster.dev_folder import (
    LAID,
    SETTINGS_FILE,
    Laid,
    cluster_id,
    joins,
    numbers,
    read_laid,
    reads,
    settings_of,
)
from polynya.cli.node.setting_flags import loaded_config, with_hidden_settings
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits, output
from polynya.cli.terminal.values import toml_text
from polynya.config.model import Config
from polynya.config.node_identity import REMOVED
from polynya.config.settings import SETTINGS
from polynya.files import make_folder, write_whole
from polynya.system.ports import spelled

STEP = 10  # ports from one node to the next
PORTS = 4  # of each: HTTP, admin, peers, Kafka
NODES_MAX = 15  # per start
START_SECONDS = 60.0
STOP_SECONDS = 30.0
LEAVE_SECONDS = 5.0
LOOK_SECONDS = 0.2
SAID_OF_WAITING = 2  # problems shown: the others follow from them
OWN = ("listen", "data", "cores")  # set in each node's file, as is all of `cluster.`
PORT_TRIES = 200
PORT_LOW = 10_000
REPLICAS_DEFAULT = 3


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


@click.command("dev")
@click.option(
    "--nodes",
    "count",
    type=click.IntRange(1, NODES_MAX),
    help="Number of nodes.  [default: those in the folder, else 3]",
)
@click.option(
    "--readers",
    type=click.IntRange(0, NODES_MAX),
    help="Number of read replicas: nodes with all groups and no vote.  [default: 0]",
)
@click.option(
    "--replicas",
    type=click.Choice(["1", "3", "5"]),
    help="Replicas per group; the cluster needs at least as many voting nodes.  [default: 3]",
)
@click.option(
    "--restore",
    "place",
    metavar="PLACE",
    help="Start from the newest backup in PLACE; see 'polynya restore'.",
)
@with_hidden_settings
def dev_command(
    count: int | None,
    readers: int | None,
    replicas: str | None,
    place: str | None,
    **values: str | None,
) -> None:
    """Start a cluster on this machine; Ctrl-C stops it. All flags of 'polynya serve' apply to every
    node.

    Each node listens ten ports above the previous one. --data (./polynya-cluster) gets a folder
    node-N per node with its log, the pid of its supervisor in node.pid, and start.sh, which
    restarts only that node. A killed node stays down until then. 'polynya cluster add --dev FOLDER'
    starts another node while the cluster runs.

    \b
    polynya cluster dev
    polynya cluster dev --readers 1
    polynya cluster dev --nodes 5 --replicas 3 --cores 1 --data /tmp/cluster --listen 127.0.0.1:5000
    polynya cluster dev --restore /backups/polynya --data /tmp/restored
    kill -9 $(cat polynya-cluster/node-2/node.pid)      # kill a node
    polynya-cluster/node-2/start.sh                     # restart it
    """
    folder = Path(values["data"] or "./polynya-cluster").absolute()
    nodes = _laid_out(folder, (count, readers), values)
    _refuse_replicas(replicas, nodes)
    _refuse_running(nodes, folder)
    _refuse_taken(nodes)
    laid = Laid(
        int(values["cores"] or 2),
        _flags(values),
        int(replicas or REPLICAS_DEFAULT),
        _has_objects(values),
    )
    _lay_out(nodes, folder, laid, values)
    if place is not None:
        _restore(place, nodes, values)
    for number in (signal.SIGINT, signal.SIGTERM):
        # a background job of a shell starts with SIGINT ignored
        signal.signal(number, _interrupted)
    output.notice(f"starting {output.counted(len(nodes), 'node')} in {folder}")
    try:
        for node in nodes:
            _start(node)
        _wait_until_healthy(nodes)
        _say(nodes, folder, [_config(node, values) for node in nodes])
        _watch(nodes, folder)
    except KeyboardInterrupt:
        output.notice("stopping")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second one must not leave nodes behind
        _stop(nodes)


_HELP = {
    "listen": "Address and port of the first node; port 0 selects free ports.  [default: 127.0.0.1:4437]",
    "data": "The parent of all nodes' data folders.  [default: ./polynya-cluster]",
    "cores": "Processes per node.  [default: 2]",
}
for _option in dev_command.params:
    if isinstance(_option, click.Option) and _option.name in _HELP:
        _option.hidden, _option.help = False, _HELP[_option.name]


# --- before the start -----------------------------------------------------------------------------


def _laid_out(
    folder: Path, wanted: tuple[int | None, int | None], values: Mapping[str, str | None]
) -> list[DevNode]:
    """Return the nodes with their folders and ports, read replicas last. `wanted`: the numbers of
    nodes and of read replicas. Raises `exits.Misused`."""
    from polynya.config.model import split_listen

    odd = [
        setting.flag
        for setting in SETTINGS
        if setting.key.startswith("cluster.") and values[_variable(setting.key)] is not None
    ]
    if odd:
        raise exits.Misused(f"{odd[0]} is set per node by this command; leave it out")
    known = numbers(folder)
    reading = {number for number in known if reads(folder / f"node-{number}")}
    for flag, some, before in (
        ("--nodes", wanted[0], len(known) - len(reading)),
        ("--readers", wanted[1], len(reading)),
    ):
        if known and some not in (None, before):
            held = output.counted(before, "node" if flag == "--nodes" else "read replica")
            raise exits.Misused(
                f"{folder} holds a cluster of {held}; pass {flag} {before} or another --data"
            )
    if not known:
        count, readers = wanted[0] or 3, wanted[1] or 0
        known = list(range(1, count + readers + 1))
        reading = set(known[count:])
    try:
        host, port = split_listen(values["listen"] or "127.0.0.1:4437")
    except ValueError as error:
        raise exits.Misused(f"--listen: {error}") from None
    port = port or _free_ports(host, max(known))
    if port + STEP * (max(known) - 1) + PORTS - 1 > 65535:
        raise exits.Misused(
            f"--listen: {len(known)} nodes need ports up to "
            f"{port + STEP * (max(known) - 1) + PORTS - 1}; choose a lower port"
        )
    bracketed = f"[{host}]" if ":" in host else host
    return [
        DevNode(
            *(number, folder / f"node-{number}", bracketed, port + STEP * (number - 1)),
            joins=joins(folder / f"node-{number}"),
            reader=number in reading,
        )
        for number in known
    ]


def _refuse_replicas(wanted: str | None, nodes: list[DevNode]) -> None:
    """Check that each replica has a voting node. By default a small cluster has one replica per
    node. Raises `exits.Misused`."""
    voting = sum(not node.reader for node in nodes)
    if int(wanted or 0) > voting:
        raise exits.Misused(
            f"--replicas {wanted}: each group needs {wanted} voting nodes; this cluster has "
            f"{voting}",
            hint=f"Pass --nodes {wanted} for a new cluster, or fewer --replicas.",
        )


def _refuse_running(nodes: list[DevNode], folder: Path) -> None:
    """Refuse a folder whose cluster runs: two commands would manage the same nodes. Nodes of a
    killed command get a moment to stop."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while running := [node for node in nodes if is_running(node.folder)]:
        if time.monotonic() > deadline:
            said = ", ".join(f"{node.number} (pid {running_pid(node.folder)})" for node in running)
            raise exits.Refused(
                f"the cluster in {folder} is already running: node {said}",
                hint="Stop it first, or pass another --data.",
            )
        time.sleep(LOOK_SECONDS)


def _refuse_taken(nodes: list[DevNode]) -> None:
    """Refuse ports in use: another cluster there would answer for this one."""
    for node in nodes:
        taken = [
            port
            for port in range(node.port, node.port + PORTS)
            if _has_a_listener(node.host.strip("[]"), port)
        ]
        if taken:
            hint = "Stop that process, or pass another --listen; port 0 selects free ports."
            raise exits.Refused(
                f"port {taken[0]} of {node.host}, needed by node {node.number}, is used by "
                "another process",
                hint=hint,
            )


def _lay_out(
    nodes: list[DevNode], folder: Path, laid: Laid, values: Mapping[str, str | None]
) -> None:
    """Create the folders of all nodes. Invalid settings are refused first, so that no partial
    cluster is left. Raises `exits.Ended`."""
    new = [node.folder for node in nodes if not node.folder.exists()]
    try:
        make_folder(folder)
        for node in nodes:
            _prepare(node, nodes, folder, laid)
        for node in nodes:
            _config(node, values)
        write_whole(folder / LAID, msgspec.json.encode(laid))
    except OSError as error:
        raise exits.Refused(f"--data: {folder} cannot be used: {error.strerror}") from None
    except exits.Misused:
        for each in new:
            shutil.rmtree(each)
        raise


def _has_objects(values: Mapping[str, str | None]) -> bool:
    """Return True if the nodes share the folder `objects`, because neither flags nor environment
    name another store.

    Raises `exits.Misused` if each node would have a separate store."""
    environment = _environment()
    backend = values["cold_backend"] or environment.get("POLYNYA_COLD_BACKEND") or "local"
    root = values["cold_root"] or environment.get("POLYNYA_COLD_ROOT") or ""
    if backend == "local" and root and not os.path.isabs(root):
        raise exits.Misused(
            f"cold.root: all nodes share one object folder, and {root!r} is relative to each "
            "node; pass an absolute path"
        )
    return backend == "local" and not root


def _config(node: DevNode, values: Mapping[str, str | None]) -> Config:
    """Load the settings that the node's start will read. Raises `exits.Misused`."""
    config = loaded_config(
        str(node.folder / "polynya.toml"), {**values, **dict.fromkeys(OWN)}, _environment()
    ).config
    try:
        check_lake(config)
    except ConfigError as wrong:
        raise exits.Misused(str(wrong)) from None
    return config


def _free_ports(host: str, count: int) -> int:
    """Return a port for the first node such that all ports of the cluster are free."""
    end = _connections_from() - STEP * count
    for _ in range(PORT_TRIES):
        base = PORT_LOW + secrets.randbelow(end - PORT_LOW)
        if all(
            _is_free(host, base + STEP * number + place)
            for number in range(count)
            for place in range(PORTS)
        ):
            return base
    raise exits.Refused(f"no free range of ports on {host}")


def _connections_from() -> int:
    """Return the first ephemeral port. A connection could take a port above it from a node that is
    down. Defaults to Linux's 32768."""
    with contextlib.suppress(OSError, ValueError):
        begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if begin > 2 * PORT_LOW:
            return begin
    return 32_768


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _has_a_listener(host: str, port: int) -> bool:
    """Return True if a process listens on the port. Ignores connections in TIME_WAIT; the node
    reports other errors."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _flags(values: Mapping[str, str | None]) -> list[str]:
    """Return the flags of `polynya serve` that every node gets."""
    found: list[str] = []
    for setting in SETTINGS:
        text = values[_variable(setting.key)] if setting.flag else None
        if text is not None and setting.key not in OWN:
            found.append(
                f"{setting.flag}" if setting.kind.startswith("true") else f"{setting.flag}={text}"
            )
    return found


def _prepare(node: DevNode, nodes: list[DevNode], folder: Path, laid: Laid) -> None:
    """Write the node's folder, settings file and start.sh."""
    make_folder(node.folder)
    lines = [
        f'listen = "{node.host}:{node.port}"',
        f"data = {toml_text(str(node.folder))}",
        f"cores = {laid.cores}",
        "",
    ]
    if not any(flag.startswith("--kafka-listen") for flag in laid.flags):
        lines += ["[kafka]", f'listen = "{node.host}:{node.port + PORTS - 1}"', ""]
    if laid.objects:
        lines += [
            "[cold]",
            f"root = {toml_text(str(folder / 'objects'))}  # shared by all nodes",
            "",
        ]
    lines += [
        "[cluster]",
        f'id = "{cluster_id(folder)}"',
        f"node = {node.number}",
        f"replicas = {laid.replicas}",
    ]
    lines += ["join = true", ""] if node.joins else [""]
    lines += [each.entry for each in nodes]
    write_whole(node.folder / SETTINGS_FILE, "\n".join(lines).encode())
    command = [
        sys.executable,
        "-m",
        "polynya",
        "serve",
        "--config",
        str(node.folder / "polynya.toml"),
        *laid.flags,
    ]
    script = (
        f"#!/bin/sh\n# Starts node {node.number} of this cluster, until SIGTERM or Ctrl-C.\nexec "
        f'{shlex.join(command)} "$@"\n'
    )
    # written last: it marks the node as ready to start
    write_whole(node.folder / "start.sh", script.encode(), mode=0o700)


# --- one more -------------------------------------------------------------------------------------


def next_place(folder: Path, number: int | None) -> DevNode:
    """Choose the folder and ports of a node to add. Raises `exits.Misused`."""
    folder = folder.absolute()
    nodes = _nodes_of(folder)
    if not nodes or not (folder / LAID).exists():
        raise exits.Misused(f"{folder} holds no cluster that 'polynya cluster dev' created")
    known = [int(path.name[5:]) for path in folder.glob("node-*") if path.name[5:].isdigit()]
    number = number or max(known) + 1
    if number in known:
        raise exits.Misused(f"{folder} already has a node {number}; pass another --id, or none")
    last = max(nodes, key=lambda node: node.port)
    host = last.host.strip("[]")
    port = last.port + STEP * (number - last.number)
    if not 0 < port <= 65536 - PORTS or any(
        _has_a_listener(host, port + place) for place in range(PORTS)
    ):
        port = _free_ports(host, 1)
    return DevNode(number, folder / f"node-{number}", last.host, port, joins=True)


def lay_out_joining(folder: Path, node: DevNode) -> None:
    """Write the node's folder; the running `cluster dev` then starts it."""
    folder = folder.absolute()
    laid = read_laid(folder)
    _prepare(node, [*_nodes_of(folder), node], folder, laid)


def _nodes_of(folder: Path) -> list[DevNode]:
    """Return the nodes according to their settings files."""
    found = []
    for number in numbers(folder):
        node = folder / f"node-{number}"
        settings = settings_of(node)
        if settings is not None:
            host, _, port = settings["listen"].rpartition(":")
            found.append(
                DevNode(number, node, host, int(port), joins=joins(node), reader=reads(node))
            )
    return found


def _restore(place: str, nodes: list[DevNode], values: Mapping[str, str | None]) -> None:
    """Restore all nodes' folders from the same backup. Raises `exits.Ended`."""
    from polynya.cli.storage.backup import restore_into

    restore_into(place, [_config(node, values) for node in nodes])


# --- while it runs --------------------------------------------------------------------------------


def _start(node: DevNode) -> None:
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
                str(node.folder / "start.sh"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """Return the nodes' environment without the variables that their settings files replace."""
    own = {f"POLYNYA_{name.upper()}" for name in OWN}
    return {
        name: text
        for name, text in os.environ.items()
        if name not in own and not name.startswith("POLYNYA_CLUSTER_")
    }


def _wait_until_healthy(nodes: list[DevNode]) -> None:
    """Wait, and print what is missing when it changes. Raises `exits.Refused` when a node exits or
    time runs out."""
    deadline = time.monotonic() + START_SECONDS
    said: list[str] = []
    with Client(nodes[0].url) as client:
        while True:
            for node in nodes:
                assert node.process is not None
                if node.process.poll() is not None:
                    raise exits.Refused(
                        f"node {node.number} exited:\n{_last_lines(node)}",
                        hint=f"Its log: {node.folder / 'node.log'}",
                    )
            problems = _problems(client)
            if not problems:
                return
            if time.monotonic() > deadline:
                raise exits.Refused(
                    f"the cluster is not healthy after {START_SECONDS:g} s: {'; '.join(problems)}"
                )
            if problems[:SAID_OF_WAITING] != said:
                said = problems[:SAID_OF_WAITING]
                output.notice(f"  waiting: {'; '.join(said)}")
            time.sleep(LOOK_SECONDS)


def _problems(client: Client) -> list[str]:
    import httpx

    try:
        told = client.send("GET", "/v1/cluster/health").json()
        # without a token a node with access control shows no more than this
        if "problems" not in told:
            return [] if told["healthy"] else ["the cluster is not healthy yet"]
        return [
            *told["problems"],
            *(note for note in told["notes"] if note.startswith("read replica")),
        ] or _level_problems(client.send("GET", "/v1/cluster").json())
    except (httpx.TransportError, ValueError, KeyError):
        return ["node 1 does not respond yet"]


def _level_problems(told: dict[str, Any]) -> list[str]:
    """Until all groups work at the level that all nodes support, some commands are refused."""
    supported = [node["level"] for node in told.get("nodes", []) if node["level"]]
    if not supported or told["level"] >= min(supported):
        return []
    return [f"the groups are raised to feature level {min(supported)}"]


def _say(nodes: list[DevNode], folder: Path, configs: list[Config]) -> None:
    click.echo(f"a cluster of {output.counted(len(nodes), 'node')}; each accepts every request:")
    for node in nodes:
        click.echo(
            f"  node {node.number}  {node.url}  {node.folder}"
            + ("  (a read replica)" if node.reader else "")
        )
    click.echo()
    for protocol, places in _protocol_places(configs).items():
        click.echo(f"  {protocol:<7}  {','.join(places)}")
    click.echo(f"  status   polynya cluster status --server {nodes[0].url}")
    last = [node for node in nodes if not node.reader][-1]
    click.echo(f"  kill     kill -9 $(cat {shlex.quote(f'{folder}/node-{last.number}/node.pid')})")
    click.echo(f"  restart  {shlex.quote(f'{folder}/node-{last.number}/start.sh')}")
    click.echo("  stop     Ctrl-C", nl=True)
    sys.stdout.flush()


def _protocol_places(configs: list[Config]) -> dict[str, list[str]]:
    """Return where the nodes serve Kafka and the text protocol, without what is off."""
    found: dict[str, list[str]] = {}
    for config in configs:
        kafka = config.kafka.listen
        if kafka not in (None, "off"):
            found.setdefault("Kafka", []).append(config.kafka.advertised or kafka)
        if config.text_place is not None:
            found.setdefault("text", []).append(spelled(*config.text_place))
    return found


def _interrupted(number: int, _: object) -> None:
    raise KeyboardInterrupt


def _watch(nodes: list[DevNode], folder: Path) -> None:
    """Run until a signal: report nodes that stop or restart, and start nodes that were added."""
    while True:
        for node in _nodes_of(folder):
            if (
                node.number not in [each.number for each in nodes]
                and (node.folder / "start.sh").exists()
            ):
                output.notice(f"node {node.number} was added: {node.url}")
                nodes.append(node)
                _start(node)
        for node in nodes:
            alive = is_running(node.folder)
            if node.process is not None and node.process.poll() is None:
                alive = True
            if alive == node.down:
                node.down = not alive
                start = (
                    ""
                    if not node.down or node.was_removed
                    else f"; restart it with: {node.folder / 'start.sh'}"
                )
                word = (
                    "up"
                    if alive
                    else "no longer a member: it was removed from the cluster"
                    if node.was_removed
                    else "down"
                )
                output.notice(f"node {node.number} is {word}{start}")
        time.sleep(LOOK_SECONDS)


def _stop(nodes: list[DevNode]) -> None:
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


def _last_lines(node: DevNode) -> str:
    """Return the last log lines since this start."""
    with (node.folder / "node.log").open("rb") as log:
        log.seek(node.log_start)
        return "\n".join(log.read().decode(errors="replace").splitlines()[-5:])


def _variable(key: str) -> Any:
    return key.replace(".", "_")
