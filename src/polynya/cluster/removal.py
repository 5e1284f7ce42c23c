"""A node that was removed from its cluster ends: by the map, if it hears it, or by the word of a node that refuses it (docs/decisions/0017)."""

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
from polynya.stream.commands import NodeState
from polynya.stream.placement import ClusterMap

log = logging.getLogger("polynya.cluster")


class Removal:
    """Of one core. `stop` ends the node in order, `end` this process at once: the supervisor then ends the others."""

    def __init__(
        self, start: CoreStart, maps: ClusterMapCache, *, stop: Callable[[int, int], None] = os.kill, end: Callable[[int], None] = os._exit
    ) -> None:
        self._start, self._maps = start, maps
        self._stop, self._end = stop, end
        self.look(maps.now)  # what was heard before a kill
        maps.on_map.append(self.look)

    def look(self, now: ClusterMap) -> None:
        """What this node has was made by others before they said so: it stops."""
        record = now.nodes.get(self._start.birth.node)
        if record is None or record.state != NodeState.REMOVED or self._start.core:
            return
        log.warning("this node was removed from the cluster: it stops, and its data folder can be deleted")
        self._mark()
        self._stop(self._start.supervisor_pid, signal.SIGTERM)

    def told(self, by: int, epoch: int) -> None:
        """Node `by`, whose map has `epoch`, refuses this one because it was removed while it was away."""
        if epoch <= self._maps.now.epoch:  # its own map is as new, and has it as a member: not believed
            return
        log.error("this node was removed from the cluster while it was away: it ends", extra={"told_by": by, "map_epoch": epoch})
        self._mark()
        self._end(EXIT_REMOVED)  # nobody counts on it: nothing is to be handed over

    def _mark(self) -> None:
        data = Path(self._start.config.data)
        (data / REMOVED).touch()
        sync_folder(data)
