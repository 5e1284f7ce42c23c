"""The cold tier keeps old bytes as packs in the object store: it flushes, reads, merges and deletes
them.

A flush takes whole hot batches of many streams, oldest first, into one pack. It puts the object,
logs `PackWritten` in the pack's owner group, then logs `PublishSlices` in every group with slices in
the pack. Only that log entry drops the batches from memory. The collector deletes packs that all
groups have released, after a grace period. It also sweeps objects that no log names. The merger
replaces many small neighbouring slices of a stream with one larger slice in a new pack: it logs
`PackWritten`, then `ReplaceSlices`. Merging keeps an index short and its reads long. A byte is
rewritten two or three times in its life (`merge_planner` has the bound).

Invariants:

* Bytes leave the hot tier only after the store acknowledged the object that holds them.
* A stream is in at most one pack in flight, so its slices are published in order. The state machine
  refuses any other order.
* Every step is idempotent. A crash between put and log leaves an object that the sweep finds. A
  crash between log and publish leaves a
  pack whose groups are asked again whether they hold it.
* Only the owner of the store's root deletes an object, after its owner group condemned it and the
  grace period is over. The snapshots that
  recovery would start from must no longer need it.
* A reader trusts a slice only if its CRC matches.
* A batch that fails its checksum is never packed. The flusher rereads it; if that fails, only its
  stream is set aside (`faults`).
* A merge changes no record and no byte of a stream, and a slice never crosses a bound of a table's
  claim. A reader with a location from
  before the merge can read it during the collector's grace period, then plans again. Slices that a
  table's job was given stay for an
  hour.

The evictor stores the states of idle streams in the same way (`stream.eviction`). A block of states
is a pack of one slice, so it is counted, swept, verified and backed up as a pack.

The planners are pure. `flusher`, `merger`, `reader` and `collector` do the I/O over
`groups.Groups`, the interface that a core offers them.
"""

from polynya.cold.collector import Collector, Swept
from polynya.cold.evictor import Evictor
from polynya.cold.faults import FaultedStreams
from polynya.cold.fetches import PackGone
from polynya.cold.flusher import Flusher
from polynya.cold.groups import Groups
from polynya.cold.reader import ColdReader
from polynya.cold.rewriting.merger import Merger
from polynya.cold.settings import CollectorSettings, EvictSettings, FlushSettings, MergeSettings
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
