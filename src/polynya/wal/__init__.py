"""The journal and the snapshots: what a core knows after a crash.

One journal per core holds the entries of all its groups in segments. In a turn of the core: `stage` each entry (its place is known at
once), `take` the write, `write` it in a thread (one write, one fdatasync), then `synced`; answers leave after that. A `SnapshotStore`
keeps one file per group; segments that no group needs any more are released. Formats: docs/formats/journal.md and snapshots.md.

Invariants:

* What was synced is never cut. Damage below the highest position that any readable mark names is `CorruptData`; only what lies behind it
  can be a torn tail. So a mark must never name what was not synced.
* The place of a frame is fixed by `stage` and holds for ever, unless its write is discarded after `DiskFull`.
* A segment's number is never used again, and a segment is never overwritten.
* At most one write is in flight. After a failed sync nothing is written any more: what the page cache says is not what the disk has.

What it does not do: it knows no Raft (an entry that a later one supersedes is replayed like any other) and decides no retention.
"""

from polynya.wal.errors import DiskFull, JournalFailed, JournalGone, JournalLocked
from polynya.wal.files import Files, OsFiles
from polynya.wal.frames import FrameKind
from polynya.wal.journal import Journal, JournalEntry
from polynya.wal.recovery import TornTail, has_segments
from polynya.wal.snapshots import SnapshotFile, SnapshotStore
from polynya.wal.writer import WriteBatch

__all__ = [
    "DiskFull",
    "Files",
    "FrameKind",
    "Journal",
    "JournalEntry",
    "JournalFailed",
    "JournalGone",
    "JournalLocked",
    "OsFiles",
    "SnapshotFile",
    "SnapshotStore",
    "TornTail",
    "WriteBatch",
    "has_segments",
]
