"""Zones: what fails together. Whether replicas of a group share one although there is another, pure.

A node that names no zone is one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from polynya.stream.commands import NodeRecord
from polynya.stream.placement import ClusterMap

Nodes = Mapping[int, NodeRecord]


def zone_of(record: NodeRecord) -> str:
    """`=` is in no zone's name."""
    return record.zone or f"={record.id}"


def tally(nodes: Nodes, voters: Iterable[int]) -> Counter[str]:
    """How many of these each zone has. Nodes that are none of the cluster's are left out."""
    return Counter(zone_of(nodes[node]) for node in voters if node in nodes)


def mates(nodes: Nodes, node: int, voters: Iterable[int]) -> int:
    """How many others of these are in the zone of this one."""
    return tally(nodes, (each for each in voters if each != node))[zone_of(nodes[node])]


def unevenness(nodes: Nodes, voters: Iterable[int]) -> int:
    """The sum of squares of what the zones have. It falls with each move of `better`, so that these come to an end."""
    return sum(count * count for count in tally(nodes, voters).values())


def better(nodes: Nodes, voters: Collection[int], able: Iterable[int]) -> tuple[list[int], list[int]]:
    """(voters of the fullest zone, nodes of `able` either of which is better off with one of theirs); none where the zones are as even as can
    be."""
    has = tally(nodes, voters)
    most = max(has.values(), default=0)
    targets = sorted(node for node in able if node not in voters and has[zone_of(nodes[node])] <= most - 2)
    if not targets:
        return [], []
    return sorted(node for node in voters if node in nodes and has[zone_of(nodes[node])] == most), targets


def are_known(now: ClusterMap) -> bool:
    """Whether every node says its zone. Until then nothing moves because of them but when asked: while they are being introduced, node after
    node, what fails together is not yet known."""
    return all(now.nodes[node].zone for node in now.voting)


def crowded(now: ClusterMap, able: Collection[int] | None = None, *, today: bool = False) -> list[int]:
    """Groups of which one zone is to have two replicas more than another, although a node there could have one. `able`: the nodes that count; all
    that take anything new if left out. `today`: as the groups are, not as they are to be. None until all zones are known."""
    if not now.members or not are_known(now) or len({now.nodes[node].zone for node in now.voting}) == 1:
        return []
    able = now.active if able is None else able
    asked: dict[tuple[int, ...], bool] = {}  # groups in the same places have the same answer
    found = []
    for group, placement in now.groups.items():
        voters = placement.voters if today else placement.goal
        if voters not in asked:
            asked[voters] = bool(better(now.nodes, voters, able)[1])
        if asked[voters]:
            found.append(group)
    return found


def notes(now: ClusterMap) -> Iterable[str]:
    """What is as it has to be with these nodes, and worth knowing; for people."""
    silent = [node for node in now.voting if not now.nodes[node].zone]
    named = sorted({now.nodes[node].zone for node in now.voting} - {""})
    if silent and named:
        which = f"node{'s' * (len(silent) > 1)} {', '.join(map(str, silent))}"
        yield f"{which}: no zone in the settings; zones are kept apart by themselves once every node has one"
    for zone in named if not silent and len(named) > 1 else ():
        stopped = sum(2 * tally(now.nodes, placement.voters)[zone] > len(placement.voters) for placement in now.groups.values())
        if stopped:
            yield f"zone {zone} has most replicas of {stopped} of {len(now.groups)} groups: they stand still when it is lost"
