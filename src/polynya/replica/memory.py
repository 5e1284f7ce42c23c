"""Messages for operators about a node that lost its disk and waits to recover
(docs/decisions/0019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_SHOWN = 8


def waits(forgotten: Mapping[int, Iterable[int]], known: Iterable[int] | None = None) -> str:
    """Describe what the node waits for; empty if nothing. `forgotten` maps groups without local
    data and without a leader to the nodes that each still waits to hear from. `known`: the nodes
    with known addresses."""
    unheard = sorted({node for nodes in forgotten.values() for node in nodes})
    needing = sorted(group for group, nodes in forgotten.items() if nodes)
    lost = sorted(set(forgotten) - set(needing))
    said = []
    if needing:
        who = "node" if len(unheard) == 1 else "nodes"
        said.append(
            f"has no data of {_groups(needing)} on its disk, and rejoins after a reply from {who} "
            f"{', '.join(map(str, unheard))}: "
            f"start {'it' if len(unheard) == 1 else 'them'}; a node whose disk is permanently "
            "lost starts on an empty one"
        )
        strangers = [] if known is None else sorted(set(unheard) - set(known))
        if strangers:
            said.append(
                f"has no address of {'node' if len(strangers) == 1 else 'nodes'} "
                f"{', '.join(map(str, strangers))}: list in "
                "[[cluster.nodes]] the current nodes of the cluster, and restart this node"
            )
    if lost:
        said.append(
            f"has lost its disk, and waits for a leader of {_groups(lost)}; if none is elected, "
            "too many other nodes have lost their disks: start a node that "
            "still has its disk, and see 'A majority has lost its data' in docs/runbooks.md"
        )
    return "; it ".join(said)


def _groups(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (" …" if len(numbers) > _SHOWN else "")
    return f"group {shown}" if len(numbers) == 1 else f"groups {shown}"
