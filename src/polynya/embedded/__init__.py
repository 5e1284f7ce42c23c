"""The embedded log: a write-ahead log as a library, without a server.

`Log` opens a directory for writing, `LogReader` for reading beside a writer. A log has topics;
the records of a topic are numbered from 0. Named cursors keep the positions of consumers.
docs/embedded.md describes the use, docs/formats/embedded.md the files.

Invariants:

- One process writes. All changes pass through `GroupCommit`, so one thread at a time stages,
  writes and applies them; readers take no lock.
- A change is applied to the catalog after it is written, and with the schedule `each` after it
  is synced. A write that failed changes nothing.
- Each segment begins with the state of all topics and cursors, so removing old segments loses
  only records that were trimmed, after the trim is synced.
- Damage is refused where it is read, never skipped. Only unsynced data can be a torn tail.
"""

from polynya.base.errors import ConfigError, CorruptData
from polynya.embedded.cursors import Cursor
from polynya.embedded.errors import (
    LimitExceeded,
    LogClosed,
    LogError,
    LogFailed,
    LogFull,
    LogLocked,
    RecordMissing,
    RecordTrimmed,
    UnknownCursor,
    UnknownTopic,
)
from polynya.embedded.log import Every, Log, Schedule
from polynya.embedded.reader import LogReader
from polynya.embedded.reading import Record

__all__ = [
    "ConfigError",
    "CorruptData",
    "Cursor",
    "Every",
    "LimitExceeded",
    "Log",
    "LogClosed",
    "LogError",
    "LogFailed",
    "LogFull",
    "LogLocked",
    "LogReader",
    "Record",
    "RecordMissing",
    "RecordTrimmed",
    "Schedule",
    "UnknownCursor",
    "UnknownTopic",
]
