"""What a node that has lost its disk waits for, for people (docs/decisions/0019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_SHOWN = 8


def waits(forgotten: Mapping[int, Iterable[int]], known: Iterable[int] | None = None) -> str:
    """`forgotten`: the groups of which a node has nothing, with no leader to learn from, and the nodes whose word each still needs; `known`: those
    that it can find. Empty when there are none."""
    unheard = sorted({node for nodes in forgotten.values() for node in nodes})
    needing = sorted(group for group, nodes in forgotten.items() if nodes)
    lost = sorted(set(forgotten) - set(needing))
    said = []
    if needing:
        who = "node" if len(unheard) == 1 else "nodes"
        said.append(
            f"has nothing on its disk of {_groups(needing)}, and takes part once it has heard {who} {', '.join(map(str, unheard))}: "
            f"start {'it' if len(unheard) == 1 else 'them'}, one whose disk is gone for good on an empty one"
        )
        strangers = [] if known is None else sorted(set(unheard) - set(known))
        if strangers:
            said.append(
                f"does not know where {'node' if len(strangers) == 1 else 'nodes'} {', '.join(map(str, strangers))} may be found: name in "
                "[[cluster.nodes]] the nodes that the cluster has now, and start this node again"
            )
    if lost:
        said.append(
            f"has lost its disk, and waits for a leader of {_groups(lost)}; if none comes, too many others have lost theirs, too: start a node that "
            "still has its disk, and see 'A majority has lost its data' in docs/runbooks.md"
        )
    return "; it ".join(said)


def _groups(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (" …" if len(numbers) > _SHOWN else "")
    return f"group {shown}" if len(numbers) == 1 else f"groups {shown}"
