"""Old bytes as packs in the object store: what is flushed when, how it is read back, and when it is deleted.

A flush takes whole hot batches, oldest first, of many streams into one pack: put the object, log `PackWritten` in the pack's home
group, then log `PublishSlices` in every group with slices in it. Only that log entry takes the batches out of memory. The collector
deletes what all groups have released, after a grace, and sweeps objects that no log knows. The merger makes one larger slice of many
small neighbours in a stream, at its leisure: read them, put a new pack, log `PackWritten`, then `ReplaceSlices` in the groups. So an
index stays short and its reads long; a byte is written again two or three times in its life (how often exactly, `merge_planner` says).

Invariants:

* Bytes leave the hot tier only after the object that holds them was acknowledged by the store.
* A stream is in at most one pack on its way, so that its slices are published in order; the machine refuses any other order.
* Every step can be repeated, and a crash between any two leaves either nothing, an object that the sweep finds (put, not logged), or a
  pack whose groups are asked again whether they hold it (logged, not published).
* An object is deleted only by the owner of the store's root, when its home group has condemned it, the grace is over, and the snapshots
  that recovery would start from no longer need it (F12, F20).
* A reader believes a slice only when its CRC is right.
* A batch that fails its checksum is in no pack. It is read again; where that fails its stream is set aside (`faults`), and no other.
* A merge changes no record and no byte of a stream, and a slice never lies on both sides of a bound of a table's claim. Who holds a place
  from before the merge has the collector's grace to read it, and then plans again; what a table's job was told of stays for an hour.

An evictor puts the states of idle streams into the store in the same way (`stream.eviction`): a block of states is a pack of one slice, and so
is counted, swept, verified and backed up as one.

The planners are pure; `flusher`, `merger`, `reader` and `collector` are thin shells over `groups.Groups`, what a core offers them.
"""

from polynya.cold.collector import Collector, CollectorSettings, Swept
from polynya.cold.evictor import Evictor, EvictSettings
from polynya.cold.faults import FaultedStreams
from polynya.cold.fetches import PackGone
from polynya.cold.flusher import Flusher
from polynya.cold.groups import Groups
from polynya.cold.merge_planner import MergeSettings
from polynya.cold.merger import Merger
from polynya.cold.planner import FlushSettings
from polynya.cold.reader import ColdReader
from polynya.cold.states import StateReader
from polynya.cold.verifier import PackVerifier, VerifiedPart

__all__ = [
    "ColdReader",
    "Collector",
    "CollectorSettings",
    "EvictSettings",
    "Evictor",
    "FaultedStreams",
    "FlushSettings",
    "Flusher",
    "Groups",
    "MergeSettings",
    "Merger",
    "PackGone",
    "PackVerifier",
    "StateReader",
    "Swept",
    "VerifiedPart",
]
