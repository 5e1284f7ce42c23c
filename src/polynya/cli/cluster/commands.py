"""`polynya cluster`: inspect a cluster, start one locally for development, and create its
certificates."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from re import ASCII, fullmatch
from typing import Any

import click

from polynya.cli.cluster.dev import dev_command
from polynya.cli.cluster.operations import cluster_command
from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.values import toml_text

WATCH_SECONDS = 1.0
UNTOLD = (
    "the cluster is not healthy; the server shows the reasons only with an admin token: set "
    "POLYNYA_TOKEN or pass --token"
)


cluster_command.add_command(dev_command)


@cluster_command.command("status")
@server_option
@options.flag(
    "--groups",
    "with_groups",
    help="Also list each group: its nodes, leader, term, and the lag of each replica.",
)
@options.flag(
    "--watch", help="Repeat every second until Ctrl-C, also while the node does not respond."
)
@options.json_flag("Print the server's JSON; with --watch one line per second.")
def status_command(client: Client, with_groups: bool, watch: bool, as_json: bool) -> None:
    """Show the nodes, their state, their leaders and replicas, and the moves in progress. Every
    node can report this.

    \b
    polynya cluster status
    polynya cluster status --groups --server http://127.0.0.1:4447
    polynya cluster status --watch
    """
    while True:
        status = _look_again(client) if watch else _look(client)
        if watch and not as_json:
            click.clear()  # clears terminals only
            click.echo(f"{time.strftime('%H:%M:%S')}, from {client.server}")
        if as_json and status is not None:
            output.json_line(status)
        elif status is not None:
            _show(status, with_groups=with_groups)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def _look_again(client: Client) -> dict[str, Any] | None:
    """Fetch the view; print a notice and return None while the server does not respond."""
    try:
        return _look(client)
    except exits.Unreachable as failure:
        output.notice(f"! {_silence(client, failure)}")
        return None


def _show(status: dict[str, Any], *, with_groups: bool) -> None:
    more = [
        head
        for head, shown in (("zone", _zone), ("role", _role))
        if any(map(shown, status["nodes"]))
    ]
    heads = ("node", "http", *more, "state", "release", "cores", "leader of", "replicas")
    output.table(heads, [_row(node, more) for node in status["nodes"]])
    releases = sorted({node["release"] for node in status["nodes"] if node["release"]})
    newest = max((node.get("level") or 1 for node in status["nodes"]), default=1)
    level = status.get("level", 1)
    if len(releases) > 1:
        click.echo(
            f"an upgrade is under way: releases {', '.join(releases)}; feature level {level} of "
            f"{newest}"
        )
    elif newest > level:
        click.echo(
            f"feature level {level}; it rises to {newest} once every node has reported support"
        )
    moves = [group for group in status["groups"] if group.get("voters") != group.get("goal")]
    for group in moves:
        gone = _listed(set(group["voters"]) - set(group["goal"]))
        new = _listed(set(group["goal"]) - set(group["voters"]))
        click.echo(
            f"moving: group {group['group']}"
            + (f" from node {gone}" if gone else "")
            + (f" to node {new}" if new else "")
        )
    if status.get("rebalancing"):
        click.echo("rebalancing replicas and leaders")
    if with_groups:
        click.echo()
        _show_groups(status)
    for note in status.get("notes", ()):
        output.notice(f"note: {note}")
    for problem in status["problems"]:
        output.notice(f"! {problem}")


@cluster_command.command("health")
@server_option
@options.flag("--watch", help="Check every second and print changes, until Ctrl-C.")
@options.flag("--exit-when-healthy", help="With --watch: exit once the cluster is healthy.")
@options.json_flag("Print one JSON object per check: healthy, problems, notes.")
def health_command(client: Client, watch: bool, exit_when_healthy: bool, as_json: bool) -> None:
    """Check the cluster: every node up, every group with a leader, every replica caught up. Exits
    with code 1 and the reasons otherwise. Problems of read replicas alone are notes and leave the
    cluster healthy.

    \b
    polynya cluster health
    polynya cluster health --watch --exit-when-healthy
    """
    if exit_when_healthy and not watch:
        raise exits.Misused("--exit-when-healthy needs --watch")
    known: tuple[list[str], list[str]] | None = None
    while True:
        problems, notes = found = _health(client, patient=watch)
        if as_json:
            output.json_line({"healthy": not problems, "problems": problems, "notes": notes})
        elif found != known:
            click.echo("\n".join(f"! {problem}" for problem in problems) or "healthy")
            for note in notes:
                output.notice(f"note: {note}")
        known = found
        if not watch or (exit_when_healthy and not problems):
            break
        time.sleep(WATCH_SECONDS)
    if problems:
        raise click.exceptions.Exit(exits.REFUSED)


class _Host(click.ParamType):  # type: ignore[type-arg]
    """A DNS name, which may have a wildcard, or an address."""

    name = "host"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not fullmatch(r"[\w.:*-]{1,253}", value, ASCII):
            self.fail(f"{value!r} is neither an IP address nor a host name", param, ctx)
        return value


@cluster_command.command("ca")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@options.value(
    "--node",
    "nodes",
    type=click.IntRange(1, 250),
    multiple=True,
    required=True,
    help="Create a certificate for the node with this id. Repeatable.",
)
@options.value(
    "--host",
    "hosts",
    type=_Host(),
    multiple=True,
    help="Another host name or address for the new certificates. Repeatable.",
)
def ca_command(folder: Path, nodes: tuple[int, ...], hosts: tuple[str, ...]) -> None:
    """Create a certificate authority for a cluster in FOLDER, and the certificates with which its
    nodes authenticate to each other.

    For development and tests: the authority's key is stored beside its certificates. An authority
    that exists in FOLDER is reused, to add or renew certificates. Give a node ca.crt, its
    node-N.crt and its node-N.key. Keep ca.key off all nodes.

    \b
    polynya cluster ca ./ca --node 1 --node 2 --node 3
    """
    from polynya.cluster.certificates import make_authority, make_certificate

    try:
        if not (folder / "ca.key").exists():
            make_authority(folder)
            output.notice(f"created a certificate authority: {folder / 'ca.crt'}")
        for node in nodes:
            make_certificate(folder, node, list(hosts))
    except (OSError, ValueError) as error:
        raise exits.Refused(f"{folder}: {error}") from None
    for node in nodes:  # after all are created: the reader of stdout may close early
        click.echo(f"[cluster]  # node {node}")
        for key, name in (
            ("ca", "ca.crt"),
            ("cert", f"node-{node}.crt"),
            ("key", f"node-{node}.key"),
        ):
            click.echo(f"{key} = {toml_text(str((folder / name).absolute()))}")


def _zone(node: dict[str, Any]) -> str:
    return str(node.get("zone", ""))


def _role(node: dict[str, Any]) -> str:
    return "read replica" if node.get("role") == "reader" else ""


def _row(node: dict[str, Any], more: list[str]) -> tuple[object, ...]:
    beside = tuple({"zone": _zone, "role": _role}[head](node) for head in more)
    # older releases report only the state
    condition = node.get("condition", node.get("state", "active"))
    states = ([] if condition == "active" else [condition]) + ([] if node["up"] else ["down"])
    return (
        node["id"],
        node["http"],
        *beside,
        ", ".join(states) or "up",
        node["release"],
        node["cores"] or None,
        node["leader_of"],
        node.get("replicas"),
    )


def _show_groups(status: dict[str, Any]) -> None:
    names = [str(node["id"]) for node in status["nodes"]]
    rows = [
        (
            *(
                group["group"],
                _listed(group.get("voters", ())),
                group["leader"] or "none",
                group["term"],
                group["commit"],
            ),
            *(group["behind"].get(name) for name in names),
        )
        for group in status["groups"]
    ]
    output.table(
        ("group", "on", "leader", "term", "commit", *(f"behind on {name}" for name in names)), rows
    )


def _listed(nodes: Iterable[int]) -> str:
    return ",".join(map(str, sorted(nodes)))


def _look(client: Client) -> dict[str, Any]:
    status: dict[str, Any] = client.call("GET", "/v1/cluster").json()
    if not status["nodes"]:
        raise _outside(client, status)
    return status


def _outside(client: Client, status: dict[str, Any]) -> exits.Refused:
    """Explain an empty node list: the node was not admitted to its cluster, or it is a single
    node."""
    if status.get("problems"):
        hint = (
            "Run 'polynya cluster add' on a node of the cluster. The log of this node names the "
            "nodes that it cannot reach."
        )
        return exits.Refused(status["problems"][0], hint=hint)
    return exits.Refused(
        f"{client.server} is a single node, not part of a cluster",
        hint=(
            "'polynya cluster dev' starts a cluster on this machine; docs/cluster-howto.md "
            "describes production clusters."
        ),
    )


def _health(client: Client, *, patient: bool) -> tuple[list[str], list[str]]:
    """Return problems and notes. `patient`: report a server that does not respond as a problem."""
    try:
        answer = client.send("GET", "/v1/cluster/health")  # works without an admin token
        if answer.status_code == 404:  # an older release without this route, during an upgrade
            answer = client.send("GET", "/v1/cluster")
        if answer.status_code not in (200, 503):
            raise client.refused(answer)
        status = answer.json()
        if "nodes" not in status:  # the server has access control and accepted no token
            return ([] if status["healthy"] else [UNTOLD]), []
        if not status["nodes"]:
            raise _outside(client, status)
        return list(status["problems"]), list(status.get("notes", ()))
    except exits.Unreachable as failure:
        if not patient:
            raise
        return [_silence(client, failure)], []


def _silence(client: Client, failure: exits.Unreachable) -> str:
    """Describe a server that does not respond."""
    why = failure.message.removeprefix(f"no response from {client.server}: ")
    return f"{client.server} does not respond: {why}"
