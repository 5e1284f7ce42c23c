"""Stop a node that was removed from its cluster: its map shows it, or a peer rejects it
(docs/decisions/0017)."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import EXIT_REMOVED, CoreStart
from polynya.config.node_identity import REMOVED
from polynya.files import sync_folder
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeState

log = logging.getLogger("polynya.cluster")


class Removal:
    """Stops a removed node. `stop` shuts the node down in order; `end` exits this process at once,
    and the supervisor stops the others."""

    def __init__(
        self,
        start: CoreStart,
        maps: ClusterMapCache,
        *,
        stop: Callable[[int, int], None] = os.kill,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._start, self._maps = start, maps
        self._stop, self._end = stop, end
        self.look(maps.now)  # a map received before a kill
        maps.on_map.append(self.look)

    def look(self, now: ClusterMap) -> None:
        """Stop the node if the map has it as removed. Its replicas were replaced before that."""
        record = now.nodes.get(self._start.identity.node)
        if record is None or record.state != NodeState.REMOVED or self._start.core:
            return
        log.warning(
            "this node was removed from the cluster: stopping; its data folder can be deleted"
        )
        self._mark()
        self._stop(self._start.supervisor_pid, signal.SIGTERM)

    def on_removed(self, by: int, epoch: int) -> None:
        """Exit because node `by` rejects this one: its map of `epoch` has this node as removed."""
        if epoch <= self._maps.now.epoch:  # the own map is as new and has this node as a member
            return
        log.error(
            "this node was removed from the cluster while it was down: exiting",
            extra={"told_by": by, "map_epoch": epoch},
        )
        self._mark()
        self._end(EXIT_REMOVED)  # no member relies on this node: no leadership transfer is needed

    def _mark(self) -> None:
        data = Path(self._start.config.data)
        (data / REMOVED).touch()
        sync_folder(data)
