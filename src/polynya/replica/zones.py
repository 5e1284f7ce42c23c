"""Zones (failure domains): checks whether replicas of a group share a zone although another is
available. Pure.

A node without a zone counts as a zone of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord

Nodes = Mapping[int, NodeRecord]


def zone_of(record: NodeRecord) -> str:
    """Return the node's zone, or a unique one. No zone name contains `=`."""
    return record.zone or f"={record.id}"


def tally(nodes: Nodes, voters: Iterable[int]) -> Counter[str]:
    """Return the number of these nodes per zone. Unknown nodes are skipped."""
    return Counter(zone_of(nodes[node]) for node in voters if node in nodes)


def mates(nodes: Nodes, node: int, voters: Iterable[int]) -> int:
    """Return the number of other nodes in the node's zone."""
    return tally(nodes, (each for each in voters if each != node))[zone_of(nodes[node])]


def unevenness(nodes: Nodes, voters: Iterable[int]) -> int:
    """Return the sum of squares of the counts per zone. Each move of `better` lowers it, so moves
    terminate."""
    return sum(count * count for count in tally(nodes, voters).values())


def better(
    nodes: Nodes, voters: Collection[int], able: Iterable[int]
) -> tuple[list[int], list[int]]:
    """Return (voters of the fullest zone, nodes of `able` that would improve the spread by
    replacing one). Both are empty if the spread cannot be improved."""
    has = tally(nodes, voters)
    most = max(has.values(), default=0)
    targets = sorted(
        node for node in able if node not in voters and has[zone_of(nodes[node])] <= most - 2
    )
    if not targets:
        return [], []
    return sorted(
        node for node in voters if node in nodes and has[zone_of(nodes[node])] == most
    ), targets


def are_known(now: ClusterMap) -> bool:
    """Report whether every voting node names its zone. Until then no replica moves for zones unless
    requested: while zones are being introduced node by node, failure domains are incomplete."""
    return all(now.nodes[node].zone for node in now.voting)


def crowded(
    now: ClusterMap, able: Collection[int] | None = None, *, today: bool = False
) -> list[int]:
    """Return the groups with a zone that holds two replicas more than another with a suitable node.
    `able`: the candidate nodes;
    default: all that accept replicas. `today`: judge the present voters, not the goal. Empty until
      all zones are known."""
    if (
        not now.members
        or not are_known(now)
        or len({now.nodes[node].zone for node in now.voting}) == 1
    ):
        return []
    able = now.active if able is None else able
    asked: dict[tuple[int, ...], bool] = {}  # groups with the same voters have the same result
    found = []
    for group, placement in now.groups.items():
        voters = placement.voters if today else placement.goal
        if voters not in asked:
            asked[voters] = bool(better(now.nodes, voters, able)[1])
        if asked[voters]:
            found.append(group)
    return found


def notes(now: ClusterMap) -> Iterable[str]:
    """Yield remarks for operators on zone facts that no move can change."""
    silent = [node for node in now.voting if not now.nodes[node].zone]
    named = sorted({now.nodes[node].zone for node in now.voting} - {""})
    if silent and named:
        which = f"node{'s' * (len(silent) > 1)} {', '.join(map(str, silent))}"
        yield (
            f"{which}: no zone in the settings; replicas are spread over zones once every node "
            "has one"
        )
    for zone in named if not silent and len(named) > 1 else ():
        stopped = sum(
            2 * tally(now.nodes, placement.voters)[zone] > len(placement.voters)
            for placement in now.groups.values()
        )
        if stopped:
            yield (
                f"zone {zone} has most replicas of {stopped} of {len(now.groups)} groups: they "
                "have no majority if the zone fails"
            )
