"""The operators' work during faults: nodes join and leave, groups move, leaderships change. Each
operation completes once the cluster is healthy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from chaos.faults import Failed
from chaos.nodes import GROUPS, NUMBERS_MAX, Cluster
from chaos.wire import Lost, Unsent, ask_once

MEMBERS_MAX = 5
ASK_SECONDS = 6.0  # then it is left
UNKNOWN = "perhaps not taken"
Asked = tuple[str, list[int]]  # what was asked for, and the nodes that it is about
Do = Callable[[Cluster, Random], Awaitable[Asked]]


class Act(msgspec.Struct, frozen=True):
    """An operator's request. `members`: the number of nodes that it needs."""

    name: str
    do: Do
    members: int = 3


ACTS: list[Act] = []


def act(name: str, *, members: int = 3) -> Callable[[Do], Do]:
    """Add the decorated function to the list."""

    def put(do: Do) -> Do:
        ACTS.append(Act(name, do, members))
        return do

    return put


def possible(cluster: Cluster) -> list[str]:
    """Return the names of the requests that are possible now."""
    staying = len(cluster.nodes) - len(cluster.leaving)
    full = staying >= MEMBERS_MAX or cluster.last >= NUMBERS_MAX
    return [
        each.name
        for each in ACTS
        if staying >= each.members and not (full and each.name == "a node joins")
    ]


async def order(cluster: Cluster, path: str, body: dict[str, Any], draw: Random) -> str:
    """Send an order by any node that is up. Return why it was refused: empty when it was accepted,
    `UNKNOWN …` when the outcome is unknown. Raises Failed for any other answer."""
    deadline = asyncio.get_running_loop().time() + ASK_SECONDS
    said = "nobody could be asked"
    while asyncio.get_running_loop().time() < deadline:
        able = [
            number
            for number in cluster.numbers
            if cluster.nodes[number].is_alive and number not in cluster.leaving
        ]
        if able:
            number, asked = draw.choice(able), json.dumps(body).encode()
            address, dial = cluster.network.admin(number), partial(cluster.network.dial, number)
            try:
                answer = await ask_once(
                    address,
                    "POST",
                    f"/v1/cluster/{path}",
                    asked,
                    seconds=10.0,
                    dial=dial,
                    Content_Type="application/json",
                )
            except (Lost, Unsent) as lost:
                said = repr(lost)
            else:
                if answer.status in (200, 201, 409):
                    return (
                        "" if answer.status != 409 else json.loads(answer.body)["error"]["message"]
                    )
                if answer.status != 503:
                    raise Failed(f"{path} with {body} is answered with {answer}")
                said = str(answer.body)
        await asyncio.sleep(0.1)
    return f"{UNKNOWN}: {said}"


def _described(what: str, refused: str) -> str:
    return f"{what} ({refused})" if refused else what


async def _placed(cluster: Cluster, draw: Random, most: int = GROUPS) -> tuple[int, list[int], int]:
    """Draw a group; return it, its voters, and who leads it."""
    group, view = draw.randint(0, most), await cluster.look()
    if view is None:
        return group, cluster.numbers[:3], cluster.numbers[0]
    return group, view["groups"][group]["voters"], view["groups"][group]["leader"]


async def _insist(
    cluster: Cluster, path: str, body: dict[str, Any], draw: Random, end: Callable[[bool], None]
) -> str:
    """Repeat an order until its outcome is certain, for orders on which the health check depends.
    Those without an answer now are repeated once all is healed. `end` gets whether it was
    accepted."""
    refused = await order(cluster, path, body, draw)
    if refused.startswith(UNKNOWN):
        cluster.unsure.append((path, body, end))
    else:
        end(not refused)
    return refused


async def ask_again(cluster: Cluster, draw: Random) -> str:
    """Retry requests of unknown outcome after healing. Returns the obstacle, if any."""
    while cluster.unsure:
        path, body, end = cluster.unsure[0]
        refused = await order(cluster, path, body, draw)
        if refused.startswith(UNKNOWN):
            return f"{path} with {body} is not answered: {refused}"
        view = await cluster.look()
        there = view is not None and any(node["id"] == body.get("id") for node in view["nodes"])
        end(not refused or there)
        del cluster.unsure[0]
    return ""


async def _add(cluster: Cluster, draw: Random, replaces: int) -> tuple[int, str]:
    """Add a node; return its number, and why it was not taken."""
    node = await cluster.join()
    body = {
        "id": node.number,
        "peer": cluster.peer_of(node.number),
        "http": cluster.http_of(node.number),
        "replaces": replaces,
    }

    def end(taken: bool) -> None:
        if not taken:
            cluster.let_go(node.number)
        elif replaces:
            cluster.let_go(replaces)
        if taken and not node.is_alive:
            node.start()

    return node.number, await _insist(cluster, "nodes", body, draw, end)


@act("a node joins")
async def join(cluster: Cluster, draw: Random) -> Asked:
    number, refused = await _add(cluster, draw, 0)
    return _described(f"node {number} joins", refused), [number, await cluster.controller()]


@act("a replica moves", members=4)
async def move(cluster: Cluster, draw: Random) -> Asked:
    group, voters, _ = await _placed(cluster, draw)
    others = [
        number
        for number in cluster.numbers
        if number not in voters and number not in cluster.leaving
    ]
    if not others or not voters:
        return f"group {group} is everywhere", []
    source, target = draw.choice(voters), draw.choice(others)
    refused = await order(cluster, f"groups/{group}/move", {"from": source, "to": target}, draw)
    return _described(f"group {group} goes from node {source} to node {target}", refused), [
        source,
        target,
    ]


@act("all that a node has moves", members=4)
async def empty(cluster: Cluster, draw: Random) -> Asked:
    number = draw.choice(cluster.numbers)
    refused = await order(cluster, f"nodes/{number}/drain", {"replicas": True}, draw)
    return _described(f"node {number} is emptied", refused), [number, await cluster.controller()]


@act("a lead moves")
async def transfer(cluster: Cluster, draw: Random) -> Asked:
    group, voters, leader = await _placed(cluster, draw)
    target = draw.choice(voters or cluster.numbers)
    refused = await order(cluster, f"groups/{group}/transfer", {"to": target}, draw)
    return _described(f"node {target} is to lead group {group}", refused), [leader, target]


@act("a node is drained")
async def drain(cluster: Cluster, draw: Random) -> Asked:
    number = await cluster.leader_most()
    refused = await order(cluster, f"nodes/{number}/drain", {}, draw)
    return _described(f"node {number} leads no more", refused), [number, await cluster.controller()]


@act("all is spread anew")
async def rebalance(cluster: Cluster, draw: Random) -> Asked:
    refused = await order(cluster, "rebalance", {}, draw)
    return _described("replicas and leads are spread anew", refused), [
        await cluster.controller(),
        draw.choice(cluster.numbers),
    ]


@act("a node is removed", members=4)
async def remove(cluster: Cluster, draw: Random) -> Asked:
    number = draw.choice(cluster.numbers)
    cluster.leaving[number] = cluster.nodes[number].starts

    def end(taken: bool) -> None:
        if not taken:
            cluster.leaving.pop(number, None)

    refused = await _insist(cluster, f"nodes/{number}/remove", {}, draw, end)
    return _described(f"node {number} is removed", refused), [number, await cluster.controller()]


@act("a node is replaced", members=4)
async def replace(cluster: Cluster, draw: Random) -> Asked:
    """Replace a node whose machine is lost."""
    old = draw.choice(cluster.numbers)
    await cluster.nodes[old].kill()
    number, refused = await _add(cluster, draw, old)
    return _described(f"node {old} is lost, and node {number} takes its place", refused), [
        number,
        await cluster.controller(),
    ]


async def settle(cluster: Cluster, draw: Random) -> str:
    """Undo an episode's drains and cordons: such nodes serve again as the others. Returns the
    obstacle, if any."""
    view = await cluster.look()
    for node in [] if view is None else view["nodes"]:
        if node["state"] not in ("active", "leaving"):
            refused = await order(cluster, f"nodes/{node['id']}/uncordon", {}, draw)
            if refused:
                return f"node {node['id']} is {node['state']} and cannot be uncordoned: {refused}"
    return ""
