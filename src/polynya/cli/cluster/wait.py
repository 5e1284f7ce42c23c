"""Wait for a cluster operation: print the remaining work, and survive the loss of the contacted
node."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits, output
from polynya.cli.terminal.progress import Live, is_terminal

LOOK_SECONDS = 0.3
GOES_ON = "The operation continues; 'polynya cluster status' and 'health' show its progress."
View = dict[str, Any]
Left = Callable[[View], str]
"""Describes the remaining work for people; empty when there is none."""


def wait_until(client: Client, epoch: int, left: Left, *, seconds: float) -> View:
    """Return the first view with no remaining work. Raises `exits.Busy` on timeout."""
    deadline = time.monotonic() + seconds
    looked = _Looking(client)
    said = "requested"

    def describe(passed: float) -> str:
        return f"{said}  {passed:.0f} s"

    try:
        with Live(describe):
            while True:
                view = looked.look()
                now = left(view) if view is not None and view["epoch"] >= epoch else said
                if view is not None and not now:
                    return view
                if now != said:
                    said = now
                    if not is_terminal():
                        output.notice(f"  {said}")
                if time.monotonic() > deadline:
                    raise exits.Busy(f"not done after {seconds:g} s: {said}", hint=GOES_ON)
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        output.notice(f"stopped waiting: {said}. {GOES_ON}")
        raise


class _Looking:
    """Polls the given node, and the other nodes that it listed while it does not respond."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._others: list[str] = []

    def look(self) -> View | None:
        try:
            view: View = self._client.call("GET", "/v1/cluster", seconds=10.0).json()
        except exits.Unreachable:
            return self._elsewhere()
        self._others = [
            node["http"]
            for node in view["nodes"]
            if node["up"] and node["http"] != self._client.server
        ]
        return view

    def _elsewhere(self) -> View | None:
        for url in self._others:
            try:
                with Client(url, token=self._client.token, ca_file=self._client.ca_file) as client:
                    view: View = client.call("GET", "/v1/cluster", seconds=10.0).json()
                    return view
            except exits.Ended:
                continue
        return None


def moves(view: View) -> list[dict[str, Any]]:
    """Return the groups that are moving."""
    return [group for group in view["groups"] if group["voters"] != group["goal"]]


def balance_left(view: View) -> str:
    """Report until replicas and leaders are balanced."""
    on_way = moves(view)
    if on_way:
        return f"{output.counted(len(on_way), 'group')} moving to other nodes"
    return "rebalancing replicas and leaders" if view["rebalancing"] else ""


def arrival_left(view: View, node: int, *, balanced: bool) -> str:
    """Report until a new node is up and has its share."""
    found = node_of(view, node)
    if found is None or not found["up"]:
        return f"node {node} is not up yet: start it"
    return balance_left(view) if balanced else ""


def reading_left(view: View, node: int) -> str:
    """Report until a read replica is up and has every group."""
    found = node_of(view, node)
    if found is None or not found["up"]:
        return f"node {node} is not up yet: start it"
    if found["replicas"] < len(view["groups"]):
        return f"node {node} has {found['replicas']} of {len(view['groups'])} groups"
    return (
        f"node {node}: {output.counted(found['behind_entries'], 'entry', 'entries')} behind"
        if found["behind_entries"]
        else ""
    )


def drain_left(view: View, node: int, *, replicas: bool) -> str:
    """Report until a node leads nothing (and with `replicas` holds nothing)."""
    found = node_of(view, node)
    if found is None:
        return ""
    leaderless = sum(not group["leader"] for group in view["groups"])
    if leaderless and not found["up"]:  # it may lead them: it only failed to respond
        return f"node {node} does not respond and may lead {output.counted(leaderless, 'group')}"
    votes = found["votes"] if replicas else 0
    parts = [output.counted(found["leader_of"], "group") + " led"] if found["leader_of"] else []
    parts += [output.counted(votes, "replica") + " held"] if votes else []
    return f"node {node}: {', '.join(parts)}" if parts else ""


def removal_left(view: View, node: int) -> str:
    """Report until the node is no longer a member."""
    found = node_of(view, node)
    return "" if found is None else f"node {node}: {output.counted(found['votes'], 'replica')} held"


def move_left(view: View, group: int, target: int, source: int) -> str:
    """Report until the group has moved."""
    placed = view["groups"][group]
    arrived = (
        target in placed["voters"]
        and source not in placed["voters"]
        and placed["voters"] == placed["goal"]
    )
    lag = placed["behind"].get(str(target))
    copied = "" if lag is None else f", {output.counted(lag, 'entry', 'entries')} to catch up"
    return "" if arrived else f"group {group}: from node {source} to node {target}{copied}"


def lead_left(view: View, group: int, target: int) -> str:
    """Report until the node is the leader."""
    leader = view["groups"][group]["leader"]
    return (
        ""
        if leader == target
        else f"group {group}: {f'node {leader} is the leader' if leader else 'no leader'}"
    )


def node_of(view: View, node: int) -> dict[str, Any] | None:
    found: dict[str, Any] | None = next(
        (each for each in view["nodes"] if each["id"] == node), None
    )
    return found
