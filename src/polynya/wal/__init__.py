"""The journal and the snapshots: the durable state of a core.

One journal per core holds the entries of all its groups in segments. In each turn, the core calls
`stage` for each entry, which returns its position at once. It then calls `take`, runs `write` in a
thread (one write, one fdatasync), and calls `synced`. Answers leave after that. A `SnapshotStore`
keeps a chain of files for each group. Segments that no group needs any more are released. Formats:
docs/formats/journal.md and snapshots.md.

Invariants:

- Synced data is never cut. Damage below the highest position that a readable mark names is
  `CorruptData`; only data behind it can be a torn
  tail. Therefore a mark never names unsynced data.
- `stage` fixes the position of a frame permanently, unless its write is discarded after `DiskFull`.
- Segment numbers are never reused, and segments are never overwritten.
- At most one write is in flight. After a failed sync nothing more is written, because the page
  cache and the disk may differ.

This package does not interpret Raft: it replays superseded entries like any other. It does not
decide retention.
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
