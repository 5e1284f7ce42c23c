"""The events of handshakes between nodes and of the links that they open."""

from __future__ import annotations

from polynya.transport.handshake import Hello
from polynya.transport.link import FrameLink


class LinkEvents:
    """The listener of a core that dials or accepts connections. This one ignores every event and
    accepts every node."""

    def greeted(self, hello: Hello) -> None:
        """Handle the `Hello` of a core that was accepted."""

    def opened(self, node: int, link: FrameLink) -> None:
        """Handle a new connection with a node."""

    def removed(self, hello: Hello) -> None:
        """Handle a rejection of this node, because it was removed from the cluster."""

    def stale_copy(self, hello: Hello) -> None:
        """Handle a rejection of this node, because its data is a stale copy."""

    def sending(self, core_id: int) -> None:
        """Handle a large Raft frame in progress from a core; called at each tick."""

    def rejection(self, hello: Hello) -> str:
        """Return what the journal of a stale peer lacks; empty to accept it."""
        return ""

    def life_of(self, node: int) -> str:
        """Return the start id of a connected node; empty while it is down."""
        return ""
