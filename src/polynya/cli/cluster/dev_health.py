"""The wait of `polynya cluster dev` until its nodes are a healthy cluster."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from polynya.admin.health import KAFKA_BROKERS
from polynya.cli.cluster import dev_nodes
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits, output

START_SECONDS = 60.0
LOOK_SECONDS = 0.2
SAID_OF_WAITING = 2  # problems shown: the others follow from them


def wait_until_healthy(nodes: list[dev_nodes.DevNode]) -> None:
    """Wait, and print what is missing when it changes. Raises `exits.Refused` when a node exits or
    time runs out."""
    deadline = time.monotonic() + START_SECONDS
    said: list[str] = []
    with Client(nodes[0].url) as client:
        while True:
            for node in nodes:
                if dev_nodes.has_failed(node):
                    raise exits.Refused(
                        f"node {node.number} exited:\n{dev_nodes.last_lines(node)}",
                        hint=f"Its log: {node.folder / 'node.log'}",
                    )
                if dev_nodes.was_stopped(node):  # by the user: `_watch` reports it
                    return
            problems = _problems(client) or _without_brokers(nodes)
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
    try:
        health = client.send("GET", "/v1/cluster/health").json()
        # without a token a node with access control shows no more than this
        if "problems" not in health:
            return [] if health["healthy"] else ["the cluster is not healthy yet"]
        return [
            *health["problems"],
            *(note for note in health["notes"] if note.startswith("read replica")),
        ] or _level_problems(client.send("GET", "/v1/cluster").json())
    except (exits.Ended, ValueError, KeyError):
        return ["node 1 does not respond yet"]


def _without_brokers(nodes: list[dev_nodes.DevNode]) -> list[str]:
    """Report nodes that do not know the Kafka brokers of all others yet: a client that asks such a
    node learns of too few, and some forget a broker for good when it goes."""
    found = []
    for node in nodes:
        with Client(node.url) as client, suppress(exits.Ended):
            lines = client.send("GET", "/readyz").text.splitlines()
            found += [
                f"node {node.number}: {line}" for line in lines if f" {KAFKA_BROKERS}: " in line
            ]
    return found


def _level_problems(health: dict[str, Any]) -> list[str]:
    """Report groups below the level that all nodes support: until they reach it, some commands are
    refused."""
    supported = [node["level"] for node in health.get("nodes", []) if node["level"]]
    if not supported or health["level"] >= min(supported):
        return []
    return [f"the groups are raised to feature level {min(supported)}"]
