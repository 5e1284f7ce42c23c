"""`polynya cluster add`, `cordon`, `drain` and the other commands that change a running cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from polynya.cli.cluster import dev as cluster_dev
from polynya.cli.cluster import wait
from polynya.cli.cluster.dev_nodes import DevNode
from polynya.cli.cluster.wait import View
from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.values import Seconds

_number = click.IntRange(1, 250)
_group = click.IntRange(0)
_wait = options.flag("--wait", help="Wait until it is done, and show the remaining work.")
_timeout = options.value(
    "--timeout",
    type=Seconds(),
    default="10min",
    help="With --wait: give up after this long, with exit code 3.",
)


class WaitMode(NamedTuple):
    """The wait options of a command: wait for the operation, for at most `timeout` seconds, and
    print JSON."""

    wait: bool = False
    timeout: float = 0.0
    as_json: bool = False


def waiting(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--wait`, `--timeout` and `--json` to a command, as its `ending`."""

    @wraps(command)
    def ended(*args: Any, wait: bool, timeout: float, as_json: bool, **options: Any) -> None:
        command(*args, ending=WaitMode(wait, timeout, as_json), **options)

    return _wait(_timeout(options.as_json(ended)))


@click.group("cluster", cls=CommandGroup)
def cluster_command() -> None:
    """Operate a cluster: nodes that act as one server. Every node accepts every request, and the
    cluster survives the loss of a node."""


_id = options.value(
    "--id", "number", type=_number, default=None, help="The node's id. Default: the next free one."
)
_dev = options.value(
    "--dev",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="The folder of a running 'polynya cluster dev', which then also starts the new node.",
)


@cluster_command.command("add")
@server_option
@_id
@options.value("--peer HOST:PORT", default="", help="Its address for the other nodes.")
@options.value("--http URL", default="", help="Its URL for clients.")
@options.value(
    "--zone",
    default="",
    help="Its failure domain, such as a rack: replicas of a group are spread over zones.",
)
@options.flag(
    "--reader", help="Add a read replica: it follows every group, serves reads, and has no vote."
)
@options.flag(
    "--no-rebalance",
    help="Assign no groups to it yet: 'polynya cluster rebalance' or 'move' does so later.",
)
@_dev
@waiting
def add_command(  # noqa: PLR0913
    client: Client,
    number: int | None,
    peer: str,
    http: str,
    zone: str,
    reader: bool,
    no_rebalance: bool,
    dev: Path | None,
    ending: WaitMode,
) -> None:
    """Add a node to the cluster, and print the settings to start it with. Once up, the node
    receives its share of the groups.

    \b
    polynya cluster add --peer 10.0.0.4:4439 --http https://10.0.0.4:4437 --zone c > cluster.toml
    polynya cluster add --reader --peer 10.9.0.1:4439 --http https://10.9.0.1:4437 > cluster.toml
    polynya cluster add --dev ./polynya-cluster --wait       # of a development cluster: starts it,
    too"""
    wanted = {"peer": peer, "http": http, "zone": zone, "rebalance": not (no_rebalance or reader)}
    response, dev_node = _new_node(
        client, number, wanted | ({"reader": True} if reader else {}), dev
    )
    node = int(response["node"]["id"])
    said = (
        f"node {node} is a member of the "
        f"cluster{' as a read replica' if reader else ''}{_start_of(dev_node)}"
    )

    def left(view: View) -> str:
        if reader:
            return wait.reading_left(view, node)
        return wait.arrival_left(view, node, balanced=not no_rebalance)

    _finish(client, response, said, left, ending, settings=dev_node is None)


@cluster_command.command("promote")
@server_option
@click.argument("node", type=_number)
@options.flag(
    "--no-rebalance",
    help="Assign no votes to it yet: 'polynya cluster rebalance' or 'move' does so later.",
)
@waiting
def promote_command(client: Client, node: int, no_rebalance: bool, ending: WaitMode) -> None:
    """Promote a read replica to a full node: it gets its share of the groups with votes and
    leaders, and drops the rest.

    \b
    polynya cluster promote 4 --wait
    """
    response = _act(client, f"nodes/{node}/promote", {"rebalance": not no_rebalance})
    left = partial(wait.arrival_left, node=node, balanced=not no_rebalance)
    _finish(client, response, f"node {node} becomes a voting member", left, ending)


@cluster_command.command("replace-disk")
@server_option
@click.argument("node", type=_number)
@_id
@options.value(
    "--peer HOST:PORT", default="", help="Its address for the other nodes. Default: the old node's."
)
@options.value("--http URL", default="", help="Its URL for clients. Default: the old node's.")
@_dev
@waiting
def replace_disk_command(  # noqa: PLR0913
    client: Client,
    node: int,
    number: int | None,
    peer: str,
    http: str,
    dev: Path | None,
    ending: WaitMode,
) -> None:
    """Replace NODE, whose disk is lost, with a node on an empty disk. Prints the settings to start
    it with.

    A node that lost its data gets a new number. It receives the replicas of NODE from the other
    replicas. NODE is removed once all are copied. Refused when the other replicas have no quorum.

    \b
    polynya cluster replace-disk 2 > cluster.toml
    """
    wanted = {"peer": peer, "http": http, "replaces": node, "rebalance": False}
    response, dev_node = _new_node(client, number, wanted, dev)
    new = int(response["node"]["id"])

    def left(view: View) -> str:
        there = wait.arrival_left(view, new, balanced=False)
        return there or wait.removal_left(view, node)

    said = f"node {new} replaces node {node}{_start_of(dev_node)}"
    _finish(client, response, said, left, ending, settings=dev_node is None)


def _add_state_command(verb: str, said: str, about: str) -> None:
    """Add a command that sets a node's scheduling state; it moves nothing."""

    @cluster_command.command(verb, help=f"{about}\n\n\b\npolynya cluster {verb} 3")
    @server_option
    @click.argument("node", type=_number)
    @options.as_json
    def command(client: Client, node: int, as_json: bool) -> None:
        response = _act(client, f"nodes/{node}/{verb}", {})
        _finish(client, response, f"node {node} {said}", lambda view: "", WaitMode(as_json=as_json))


_add_state_command(
    "cordon",
    "gets no new replicas or leaders",
    "Assign no new replicas or leaders to a node; it keeps those it has.",
)
_add_state_command("uncordon", "is active", "Undo 'cordon', 'drain' and an unfinished 'remove'.")


@cluster_command.command("drain")
@server_option
@click.argument("node", type=_number)
@options.flag("--replicas", help="Also move all replicas off it; the empty node stays a member.")
@waiting
def drain_command(client: Client, node: int, replicas: bool, ending: WaitMode) -> None:
    """Move all leaders off a node and assign nothing new to it, for maintenance of its machine.

    \b
    polynya cluster drain 3 --wait
    polynya cluster drain 3 --replicas --wait
    polynya cluster uncordon 3                   # when it is back
    """
    response = _act(client, f"nodes/{node}/drain", {"replicas": replicas})
    said = (
        f"node {node} transfers its leaders and replicas to other nodes"
        if replicas
        else f"node {node} transfers its leaders to other nodes"
    )
    _finish(client, response, said, partial(wait.drain_left, node=node, replicas=replicas), ending)


@cluster_command.command("remove")
@server_option
@click.argument("node", type=_number)
@waiting
def remove_command(client: Client, node: int, ending: WaitMode) -> None:
    """Remove a node from the cluster: its replicas move to others, then it is dropped. Its number
    is never reused.

    Also works for a lost node, if each of its groups keeps a quorum without it. The cluster cannot
    shrink below its replication factor.

    \b
    polynya cluster remove 3 --wait
    """
    response = _act(client, f"nodes/{node}/remove", {})
    said = f"node {node} is being removed from the cluster"
    _finish(client, response, said, partial(wait.removal_left, node=node), ending)


@cluster_command.command("move")
@server_option
@click.argument("group", type=_group)
@options.value(
    "--from", "source", type=_number, required=True, help="The node that holds the replica now."
)
@options.value("--to", "target", type=_number, required=True, help="The node that receives it.")
@waiting
def move_command(client: Client, group: int, source: int, target: int, ending: WaitMode) -> None:
    """Move a replica of a group from one node to another, online.

    \b
    polynya cluster move 7 --from 1 --to 4 --wait
    """
    response = _act(client, f"groups/{group}/move", {"from": source, "to": target})
    said = f"group {group} moves from node {source} to node {target}"
    left = partial(wait.move_left, group=group, target=target, source=source)
    _finish(client, response, said, left, ending)


@cluster_command.command("transfer")
@server_option
@click.argument("group", type=_group)
@options.value("--to", "target", type=_number, required=True, help="The node to become leader.")
@waiting
def transfer_command(client: Client, group: int, target: int, ending: WaitMode) -> None:
    """Transfer the leadership of a group to another node.

    \b
    polynya cluster transfer 7 --to 2
    """
    response = _act(client, f"groups/{group}/transfer", {"to": target})
    pending = (
        f" ({response['pending']}; the transfer then happens without further action)"
        if response.get("pending")
        else ""
    )
    said = f"leadership of group {group} moves to node {target}{pending}"
    left = partial(wait.lead_left, group=group, target=target)
    _finish(client, response, said, left, ending)


@cluster_command.command("rebalance")
@server_option
@options.value(
    "--replicas", type=int, default=0, help="Also set the number of replicas per group: 1, 3 or 5."
)
@waiting
def rebalance_command(client: Client, replicas: int, ending: WaitMode) -> None:
    """Spread replicas and leaders evenly over nodes, weighted by cores, and over zones; a few
    groups at a time.

    \b
    polynya cluster rebalance --wait
    polynya cluster rebalance --replicas 5
    """
    response = _act(client, "rebalance", {"replicas": replicas})
    _finish(client, response, "rebalancing replicas and leaders", wait.balance_left, ending)


def _new_node(
    client: Client, number: int | None, wanted: dict[str, Any], dev: Path | None
) -> tuple[dict[str, Any], DevNode | None]:
    """Return the cluster's response, and the new node's folder and ports in a development
    cluster."""
    dev_node = None
    if dev is not None:
        if wanted["peer"] or wanted["http"]:
            raise exits.Misused("--dev chooses the addresses: leave out --peer and --http")
        dev_node = cluster_dev.next_dev_node(dev, number)
        dev_node.reader = wanted.get("reader", False)
        number, wanted = dev_node.number, {**wanted, "peer": dev_node.peer, "http": dev_node.url}
    response = _act(client, "nodes", {"id": number or 0, **wanted})
    if dev_node is not None and dev is not None:
        cluster_dev.lay_out_joining(dev, dev_node)
    return response, dev_node


def _start_of(dev_node: DevNode | None) -> str:
    return (
        f", and starts in {dev_node.folder}"
        if dev_node is not None
        else "; start it with the settings below"
    )


def settings_of(response: dict[str, Any]) -> str:
    """Return the TOML settings of the added node."""
    lines = [
        "# add here: listen, data and cores of this node",
        f"groups = {response['groups']}",
        "",
    ]
    lines += ["[cluster]  # add below: ca, cert and key of this node, if the other nodes have them"]
    lines += [
        f'id = "{response["cluster"]}"',
        f"node = {response['node']['id']}",
        "join = true",
        "",
    ]
    for node in (response["node"], *response["peers"]):
        lines += [
            "[[cluster.nodes]]",
            f"id = {node['id']}",
            f'peer = "{node["peer"]}"',
            f'http = "{node["http"]}"',
        ]
        lines += [f'zone = "{node["zone"]}"'] if node["zone"] else []
        lines += ['role = "reader"', ""] if node.get("role") == "reader" else [""]
    return "\n".join([*lines, "# add here: [cold], as on the other nodes", ""])


def _act(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        response: dict[str, Any] = client.act(f"/v1/cluster/{path}", body).json()
    except KeyboardInterrupt:
        output.notice(
            "it is unknown whether the cluster accepted the operation: check 'polynya cluster "
            "status'"
        )
        raise
    return response


def _finish(  # noqa: PLR0913
    client: Client,
    response: dict[str, Any],
    said: str,
    left: wait.Left,
    ending: WaitMode,
    *,
    settings: bool = False,
) -> None:
    """Print the result (with the settings of a new node), wait for completion if asked, and print
    that it is done."""
    if not ending.as_json:
        output.notice(said)
    if settings and not ending.as_json:
        click.echo(settings_of(response), nl=False)
    if ending.wait:
        wait.wait_until(client, response["epoch"], left, seconds=ending.timeout)
    if ending.as_json:
        output.json_line({**response, "done": ending.wait})
    elif ending.wait:
        output.notice("done")
