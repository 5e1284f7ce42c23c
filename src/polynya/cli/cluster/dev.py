"""`polynya cluster dev`: a cluster of full nodes on this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import msgspec

from polynya.admin.workers.lake_worker import check_lake
from polynya.base.errors import ConfigError
from polynya.base.names import DISKLESS, REPLICATED
from polynya.cli.cluster import dev_folder, dev_nodes
from polynya.cli.cluster.dev_health import wait_until_healthy
from polynya.cli.cluster.dev_ports import STEP, addresses_of, ports_of, with_addresses
from polynya.cli.node.setting_flags import loaded_config, with_hidden_settings
from polynya.cli.storage.s3_server import (
    BUCKET,
    EXPORTS,
    S3_SETTINGS,
    S3Location,
    has_s3,
    running_s3,
)
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.values import toml_text
from polynya.config.model import Config
from polynya.config.settings import SETTINGS
from polynya.files import make_folder, write_whole
from polynya.system.free_ports import free_port, has_listener
from polynya.system.ports import spelled

PORTS = 4  # of each: HTTP, admin, peers, Kafka
NODES_MAX = 15  # per start
LEAVE_SECONDS = 5.0
LOOK_SECONDS = 0.2
REPLICAS_DEFAULT = 3
S3_FOLDER = "s3"  # of its server, beside those of the nodes


@click.command("dev")
@options.value(
    "--nodes",
    "count",
    type=click.IntRange(1, NODES_MAX),
    help="Number of nodes.  [default: those in the folder, else 3]",
)
@options.value(
    "--readers",
    type=click.IntRange(0, NODES_MAX),
    help="Number of read replicas: nodes with all groups and no vote.  [default: 0]",
)
@options.value(
    "--replicas",
    type=click.Choice(["1", "3", "5"]),
    help="Replicas per group; the cluster needs at least as many voting nodes.  [default: 3]",
)
@options.value(
    "--restore PLACE",
    "location",
    help="Start from the newest backup in PLACE; see 'polynya restore'.",
)
@options.value(
    "--profile",
    type=click.Choice((REPLICATED, DISKLESS)),
    help="The profile of new streams and topics.  [default: replicated]",
)
@options.flag("--s3", help="Store the objects in an S3 server, which is started as well.")
@with_hidden_settings
def dev_command(
    count: int | None,
    readers: int | None,
    replicas: str | None,
    location: str | None,
    profile: str | None,
    s3: bool,
    **values: str | None,
) -> None:
    """Start a cluster on this machine; Ctrl-C stops it. All flags of 'polynya serve' apply to every
    node.

    Each node listens ten ports above the previous one, also for an address that a flag or the
    environment names. --data (./polynya-cluster) gets a folder node-N per node with its log, the
    pid of its supervisor in node.pid, and start.sh, which restarts only that node with the same
    settings. A killed node stays down until then. 'polynya cluster add --dev FOLDER' starts another
    node while the cluster runs.

    \b
    polynya cluster dev
    polynya cluster dev --readers 1
    polynya cluster dev --profile diskless --s3
    polynya cluster dev --nodes 5 --replicas 3 --cores 1 --data /tmp/cluster --listen 127.0.0.1:5000
    polynya cluster dev --restore /backups/polynya --data /tmp/restored
    kill -9 $(cat polynya-cluster/node-2/node.pid)      # kill a node
    polynya-cluster/node-2/start.sh                     # restart it
    """
    folder = Path(values["data"] or "./polynya-cluster").absolute()
    values = with_addresses(_with_profile(profile, values), dict(os.environ))
    s3 = _uses_s3(folder, s3, values)
    nodes = _laid_out(folder, (count, readers), values)
    _refuse_replicas(replicas, nodes)
    _refuse_running(nodes, folder)
    _refuse_taken(nodes, values)
    with running_s3(folder / S3_FOLDER) if s3 else nullcontext() as server:
        laid = dev_folder.Laid(
            int(values["cores"] or 2),
            _flags(values),
            int(replicas or REPLICAS_DEFAULT),
            not s3 and _has_objects(values),
            server,
            dev_nodes.kept_environment(),
        )
        _lay_out(nodes, folder, laid, values)
        if location is not None:
            _restore(location, nodes, values)
        _run(nodes, folder, laid, values)


def _run(
    nodes: list[dev_nodes.DevNode],
    folder: Path,
    laid: dev_folder.Laid,
    values: Mapping[str, str | None],
) -> None:
    """Start the nodes, run until a signal, and stop them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # a background job of a shell starts with SIGINT ignored
        signal.signal(number, _interrupted)
    output.notice(f"starting {output.counted(len(nodes), 'node')} in {folder}")
    try:
        for node in nodes:
            dev_nodes.start_node(node)
        wait_until_healthy(nodes)
        _say(nodes, folder, [_config(node, values) for node in nodes], laid.s3)
        _watch(nodes, folder)
    except KeyboardInterrupt:
        output.notice("stopping")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second one must not leave nodes behind
        dev_nodes.stop_nodes(nodes)


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
) -> list[dev_nodes.DevNode]:
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
    known = dev_folder.numbers(folder)
    reading = {number for number in known if dev_folder.reads(folder / f"node-{number}")}
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
        dev_nodes.DevNode(
            *(number, folder / f"node-{number}", bracketed, port + STEP * (number - 1)),
            joins=dev_folder.joins(folder / f"node-{number}"),
            reader=number in reading,
        )
        for number in known
    ]


def _refuse_replicas(wanted: str | None, nodes: list[dev_nodes.DevNode]) -> None:
    """Check that each replica has a voting node. By default a small cluster has one replica per
    node. Raises `exits.Misused`."""
    voting = sum(not node.reader for node in nodes)
    if int(wanted or 0) > voting:
        raise exits.Misused(
            f"--replicas {wanted}: each group needs {wanted} voting nodes; this cluster has "
            f"{voting}",
            hint=f"Pass --nodes {wanted} for a new cluster, or fewer --replicas.",
        )


def _refuse_running(nodes: list[dev_nodes.DevNode], folder: Path) -> None:
    """Refuse a folder whose cluster runs: two commands would manage the same nodes. Nodes of a
    killed command get a moment to stop."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while running := [node for node in nodes if dev_nodes.is_running(node.folder)]:
        if time.monotonic() > deadline:
            said = ", ".join(
                f"{node.number} (pid {dev_nodes.running_pid(node.folder)})" for node in running
            )
            raise exits.Refused(
                f"the cluster in {folder} is already running: node {said}",
                hint="Stop it first, or pass another --data.",
            )
        time.sleep(LOOK_SECONDS)


def _refuse_taken(nodes: list[dev_nodes.DevNode], values: Mapping[str, str | None]) -> None:
    """Refuse ports in use: another cluster there would answer for this one."""
    for node in nodes:
        host = node.host.strip("[]")
        addresses = [("listen", host, port) for port in range(node.port, node.port + PORTS)]
        for key, host, port in (*addresses, *ports_of(values, node.number)):
            if has_listener(host, port):
                raise exits.Refused(
                    f"port {port} of {host}, needed by node {node.number}, is used by "
                    "another process",
                    hint=f"Stop that process, or pass another --{key.replace('.', '-')}; port 0 "
                    "selects free ports.",
                )


def _lay_out(
    nodes: list[dev_nodes.DevNode],
    folder: Path,
    laid: dev_folder.Laid,
    values: Mapping[str, str | None],
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
        write_whole(folder / dev_folder.LAID, msgspec.json.encode(laid))
    except OSError as error:
        raise exits.Refused(f"--data: {folder} cannot be used: {error.strerror}") from None
    except exits.Misused:
        for each in new:
            shutil.rmtree(each)
        raise


def _with_profile(profile: str | None, values: dict[str, str | None]) -> dict[str, str | None]:
    """Return the flags with the default profile among them. Raises `exits.Misused`."""
    if profile is None:
        return values
    if values["default_profile"] not in (None, profile):
        raise exits.Misused("--profile and --default-profile are the same setting; pass one")
    return {**values, "default_profile": profile}


def _uses_s3(folder: Path, wanted: bool, values: Mapping[str, str | None]) -> bool:
    """Return True if the nodes use the S3 server of the folder, which a cluster keeps. Raises
    `exits.Misused`."""
    known = dev_folder.numbers(folder)
    found = has_s3(folder / S3_FOLDER) if known else wanted
    if wanted and not found:
        raise exits.Misused(
            f"{folder} holds a cluster that does not use an S3 server; leave out --s3, or pass "
            "another --data"
        )
    environment = dev_nodes.nodes_environment()
    for key in ("backend", "root", *S3_SETTINGS) if found else ():
        if values.get(f"cold_{key}") or environment.get(f"POLYNYA_COLD_{key.upper()}"):
            raise exits.Misused(
                f"cold.{key}: with --s3 the nodes use the S3 server of {folder / S3_FOLDER}; leave "
                "out this setting, or --s3"
            )
    return found


def _has_objects(values: Mapping[str, str | None]) -> bool:
    """Return True if the nodes share the folder `objects`, because neither flags nor environment
    name another store.

    Raises `exits.Misused` if each node would have a separate store."""
    environment = dev_nodes.nodes_environment()
    backend = values["cold_backend"] or environment.get("POLYNYA_COLD_BACKEND") or "local"
    root = values["cold_root"] or environment.get("POLYNYA_COLD_ROOT") or ""
    if backend == "local" and root and not os.path.isabs(root):
        raise exits.Misused(
            f"cold.root: all nodes share one object folder, and {root!r} is relative to each "
            "node; pass an absolute path"
        )
    return backend == "local" and not root


def _config(node: dev_nodes.DevNode, values: Mapping[str, str | None]) -> Config:
    """Load the settings that the node's start will read. Raises `exits.Misused`."""
    config = loaded_config(
        str(node.folder / dev_folder.SETTINGS_FILE),
        {**addresses_of(values, node.number), **dict.fromkeys(dev_nodes.OWN)},
        dev_nodes.nodes_environment(),
    ).config
    try:
        check_lake(config)
    except ConfigError as wrong:
        raise exits.Misused(str(wrong)) from None
    return config


def _free_ports(host: str, count: int) -> int:
    """Return a port for the first node such that all ports of the cluster are free."""
    offsets = [STEP * number + port for number in range(count) for port in range(PORTS)]
    base = free_port(host, offsets)
    if base is None:
        raise exits.Refused(f"no free range of ports on {host}")
    return base


def _flags(values: Mapping[str, str | None]) -> list[str]:
    """Return the flags of `polynya serve` that every node gets."""
    found: list[str] = []
    for setting in SETTINGS:
        text = values[_variable(setting.key)] if setting.flag else None
        if text is not None and setting.key not in dev_nodes.OWN:
            found.append(
                f"{setting.flag}" if setting.kind.startswith("true") else f"{setting.flag}={text}"
            )
    return found


def _prepare(
    node: dev_nodes.DevNode, nodes: list[dev_nodes.DevNode], folder: Path, laid: dev_folder.Laid
) -> None:
    """Write the node's folder, settings file and start.sh. Raises `exits.Misused`."""
    make_folder(node.folder)
    lines = [
        f'listen = "{node.host}:{node.port}"',
        f"data = {toml_text(str(node.folder))}",
        f"cores = {laid.cores}",
        "",
    ]
    if not any(flag.startswith("--kafka-listen") for flag in laid.flags):
        lines += ["[kafka]", f'listen = "{node.host}:{node.port + PORTS - 1}"', ""]
    lines += _store_lines(folder, laid)
    lines += [
        "[cluster]",
        f'id = "{dev_folder.cluster_id(folder)}"',
        f"node = {node.number}",
        f"replicas = {laid.replicas}",
    ]
    lines += ["join = true", ""] if node.joins else [""]
    lines += [each.entry for each in nodes]
    write_whole(node.folder / dev_folder.SETTINGS_FILE, "\n".join(lines).encode())
    # written last: it marks the node as ready to start
    write_whole(
        node.folder / dev_nodes.START_SCRIPT,
        dev_nodes.start_script(node, laid).encode(),
        mode=dev_nodes.START_SCRIPT_MODE,
    )


def _store_lines(folder: Path, laid: dev_folder.Laid) -> list[str]:
    """Return the lines of the object store that all nodes share, if this command chose it."""
    if laid.s3 is not None:
        settings = laid.s3.settings
    elif laid.objects:
        settings = {"root": str(folder / "objects")}
    else:
        return []
    shared = [f"{key} = {toml_text(text)}" for key, text in settings.items()]
    return ["[cold]  # shared by all nodes", *shared, ""]


# --- one more -------------------------------------------------------------------------------------


def next_dev_node(folder: Path, number: int | None) -> dev_nodes.DevNode:
    """Choose the folder and ports of a node to add. Raises `exits.Misused`."""
    folder = folder.absolute()
    nodes = _nodes_of(folder)
    if not nodes or not (folder / dev_folder.LAID).exists():
        raise exits.Misused(f"{folder} holds no cluster that 'polynya cluster dev' created")
    known = [int(path.name[5:]) for path in folder.glob("node-*") if path.name[5:].isdigit()]
    number = number or max(known) + 1
    if number in known:
        raise exits.Misused(f"{folder} already has a node {number}; pass another --id, or none")
    last = max(nodes, key=lambda node: node.port)
    host = last.host.strip("[]")
    port = last.port + STEP * (number - last.number)
    if not 0 < port <= 65536 - PORTS or any(
        has_listener(host, port + each) for each in range(PORTS)
    ):
        port = _free_ports(host, 1)
    return dev_nodes.DevNode(number, folder / f"node-{number}", last.host, port, joins=True)


def lay_out_joining(folder: Path, node: dev_nodes.DevNode) -> None:
    """Write the node's folder; the running `cluster dev` then starts it."""
    folder = folder.absolute()
    laid = dev_folder.read_laid(folder)
    _prepare(node, [*_nodes_of(folder), node], folder, laid)


def _nodes_of(folder: Path) -> list[dev_nodes.DevNode]:
    """Return the nodes according to their settings files."""
    found = []
    for number in dev_folder.numbers(folder):
        node = folder / f"node-{number}"
        settings = dev_folder.settings_of(node)
        if settings is not None:
            host, _, port = settings["listen"].rpartition(":")
            found.append(
                dev_nodes.DevNode(
                    number,
                    node,
                    host,
                    int(port),
                    joins=dev_folder.joins(node),
                    reader=dev_folder.reads(node),
                )
            )
    return found


def _restore(
    location: str, nodes: list[dev_nodes.DevNode], values: Mapping[str, str | None]
) -> None:
    """Restore all nodes' folders from the same backup. Raises `exits.Ended`."""
    from polynya.cli.storage.backup import restore_into

    restore_into(location, [_config(node, values) for node in nodes])


# --- while it runs --------------------------------------------------------------------------------


def _say(
    nodes: list[dev_nodes.DevNode], folder: Path, configs: list[Config], server: S3Location | None
) -> None:
    click.echo(f"a cluster of {output.counted(len(nodes), 'node')}; each accepts every request:")
    for node in nodes:
        click.echo(
            f"  node {node.number}  {node.url}  {node.folder}"
            + ("  (a read replica)" if node.reader else "")
        )
    click.echo()
    for protocol, addresses in _protocol_addresses(configs).items():
        click.echo(f"  {protocol:<7}  {','.join(addresses)}")
    if server is not None:
        keys = shlex.quote(str(folder / S3_FOLDER / EXPORTS))
        click.echo(f"  S3       {server.endpoint}, bucket {BUCKET}; its key for a shell: . {keys}")
    click.echo(f"  status   polynya cluster status --server {nodes[0].url}")
    if configs[0].default_profile == DISKLESS:
        click.echo(f"  cost     polynya cost --server {nodes[0].url}")
    last = [node for node in nodes if not node.reader][-1]
    click.echo(f"  kill     kill -9 $(cat {shlex.quote(f'{folder}/node-{last.number}/node.pid')})")
    click.echo(f"  restart  {shlex.quote(f'{folder}/node-{last.number}/start.sh')}")
    click.echo("  stop     Ctrl-C", nl=True)
    sys.stdout.flush()


def _protocol_addresses(configs: list[Config]) -> dict[str, list[str]]:
    """Return where the nodes serve Kafka and the text protocol, without what is off."""
    found: dict[str, list[str]] = {}
    for config in configs:
        kafka = config.kafka.listen
        if kafka not in (None, "off"):
            found.setdefault("Kafka", []).append(config.kafka.advertised or kafka)
        if config.text_address is not None:
            found.setdefault("text", []).append(spelled(*config.text_address))
    return found


def _interrupted(number: int, _: object) -> None:
    raise KeyboardInterrupt


def _watch(nodes: list[dev_nodes.DevNode], folder: Path) -> None:
    """Run until a signal: report nodes that stop or restart, and start nodes that were added."""
    while True:
        known = {node.number for node in nodes}
        for node in _nodes_of(folder):
            if node.number not in known and (node.folder / dev_nodes.START_SCRIPT).exists():
                output.notice(f"node {node.number} was added: {node.url}")
                nodes.append(node)
                dev_nodes.start_node(node)
        for node in nodes:
            alive = dev_nodes.is_running(node.folder) or (
                node.process is not None and node.process.poll() is None
            )
            if alive == node.down:
                node.down = not alive
                output.notice(f"node {node.number} is {_state_of(node)}")
        time.sleep(LOOK_SECONDS)


def _state_of(node: dev_nodes.DevNode) -> str:
    if not node.down:
        return "up"
    if node.was_removed:
        return "no longer a member: it was removed from the cluster"
    return f"down; restart it with: {node.folder / dev_nodes.START_SCRIPT}"


def _variable(key: str) -> Any:
    return key.replace(".", "_")
