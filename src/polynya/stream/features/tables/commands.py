"""Commands of tables: tags 60-75. Those from 66 on need level 3, 75 level 4."""

from __future__ import annotations

import msgspec

from polynya.base.levels import DERIVED_LEVEL
from polynya.base.transforms import source_table
from polynya.stream.command import Command, command
from polynya.stream.command_validation import AMOUNT, ANY, COUNTER, TIME, WIDE


def _prefixes(command: TableMake | WatchStreams) -> str:
    return "" if command.prefixes else "a table needs a prefix; it has none"


def _make_level(command: TableMake) -> int:
    return DERIVED_LEVEL if source_table(command.transform) else 3


@command(since=3, bounds={"now_ms": TIME}, check=_prefixes, level=_make_level)
class TableMake(Command, tag=66, frozen=True, gc=False):
    """Create, in the meta group, a table of the streams under any of `prefixes` (canonical).

    `typed` is the prefix as the user spelled it. `hold`: retention and expiry wait until the table
    has a stream's records. `columns` declares types: (field, type). `partitions` are expressions
    (base/partitions.py). A table with a `transform` is derived: it claims no records, and so takes
    none from other tables. Level 3; level 4 if its input is another table, which must exist.
    """

    name: str
    prefixes: list[str]
    typed: str
    hold: bool
    columns: list[tuple[str, str]]
    now_ms: int
    partitions: list[str] = msgspec.field(default_factory=list)
    transform: str = ""  # "sql:STATEMENT" or "python:MODULE:FUNCTION"


@command(
    since=3,
    bounds={"table": ANY, "job": ANY, "now_ms": TIME},
    rows=("ranges", (WIDE, None, COUNTER, COUNTER, None, COUNTER, None)),
)
class TableFail(Command, tag=67, frozen=True, gc=False):
    """Count failures of ranges of a table's open job in the meta group, and abandon the job. Level
    3.

    `ranges`: (uid, stream, record, end, pack, offset, reason). The stream's name is canonical.
    """

    table: int
    job: int
    ranges: list[tuple[int, str, int, int, str, int, str]]
    now_ms: int


@command(since=3, bounds={"table": ANY, "now_ms": TIME})
class TableRetry(Command, tag=68, frozen=True, gc=False):
    """Put the ranges that are set aside into the table's next job, in the meta group. Level 3."""

    table: int
    now_ms: int


@command(since=3, bounds={"table": ANY, "now_ms": TIME})
class TableAlter(Command, tag=70, frozen=True, gc=False):
    """Set a table's name, whether it holds records, and its declared columns, in the meta group.
    Level 3."""

    table: int
    name: str
    hold: bool
    columns: list[tuple[str, str]]
    now_ms: int


@command(since=3, bounds={"table": ANY, "now_ms": TIME})
class TableDrop(Command, tag=71, frozen=True, gc=False):
    """Drop a table in the meta group: its name is free, and its jobs cannot commit. A table from
    which others are derived stays. Level 3."""

    table: int
    now_ms: int


@command(since=3, bounds={"table": ANY})
class ForgetTable(Command, tag=72, frozen=True, gc=False):
    """Forget a dropped table: in a stream group its claims, for good. Level 3.

    In the meta group: all stream groups have forgotten it, and with `files_gone` the last of its
    files is deleted.
    """

    table: int
    files_gone: bool = False


@command(since=3, bounds={"table": WIDE, "now_ms": TIME}, check=_prefixes)
class WatchStreams(Command, tag=69, frozen=True, gc=False):
    """Tell a stream group about a table: its prefixes, and whether it holds records. Level 3.

    From then on the group counts the records that end before the table takes them, and the table
    takes no record that was trimmed before its claim.
    """

    table: int
    prefixes: list[str]
    hold: bool
    now_ms: int


@command(since=3, bounds={"table": ANY, "job": ANY, "now_ms": TIME})
class TableFault(Command, tag=74, frozen=True, gc=False):
    """Note in the meta group why a table's job failed, until its next job commits. Level 3."""

    table: int
    job: int
    reason: str
    now_ms: int


@command(since=3, bounds={"table": ANY, "job": ANY, "dlq_rows": (-(2**53), 2**53), "now_ms": TIME})
class TableMove(Command, tag=73, frozen=True, gc=False):
    """Commit, in the meta group, a job that wrote the whole table to a new folder: like
    `TableCommit`, with other declared columns and partitions.

    The folder is that of the job; the earlier one is swept after the grace. Level 3.
    """

    table: int
    job: int
    attempt: str
    base_main: str
    base_dlq: str
    main: str
    dlq: str
    dlq_rows: int  # more, or fewer, than before
    result: str
    columns: list[tuple[str, str]]
    partitions: list[str]
    now_ms: int


@command(
    since=4,
    bounds={
        "table": ANY,
        "job": ANY,
        "rows": (-(2**53), 2**53),
        "dlq_rows": (-(2**53), 2**53),
        "now_ms": TIME,
    },
)
class TableReplace(Command, tag=75, frozen=True, gc=False):
    """Commit, in the meta group, a job that left fewer rows than there were: like `TableCommit`, with
    a difference as its rows. Level 4."""

    table: int
    job: int
    attempt: str
    base_main: str
    base_dlq: str
    main: str
    dlq: str
    rows: int
    dlq_rows: int
    now_ms: int
    result: str


@command(since=1, bounds={"now_ms": TIME})
class TableCreate(Command, tag=60, frozen=True, gc=False):
    """Create, in the meta group, a table of the streams whose canonical names begin with
    `prefix`."""

    name: str
    prefix: str
    now_ms: int


@command(since=1, bounds={"table": ANY, "now_ms": TIME})
class TableOpen(Command, tag=61, frozen=True, gc=False):
    """Return the open job of a table or open its next one, in the meta group."""

    table: int
    now_ms: int


@command(since=1, bounds={"table": ANY, "job": ANY})
class TablePlanned(Command, tag=62, frozen=True, gc=False):
    """Record in the meta group that every group has applied the job's `ClaimRanges`."""

    table: int
    job: int


@command(
    since=1,
    bounds={
        "table": ANY,
        "job": ANY,
        "rows": AMOUNT,
        "dlq_rows": (-(2**53), 2**53),
        "now_ms": TIME,
    },
)
class TableCommit(Command, tag=63, frozen=True, gc=False):
    """Move the table and DLQ pointers and the job number in the meta group, by one
    compare-and-swap."""

    table: int
    job: int
    attempt: str
    base_main: str
    base_dlq: str
    main: str
    dlq: str
    rows: int
    dlq_rows: int
    now_ms: int
    result: str = ""  # key of the job's result object


@command(since=1, bounds={"table": ANY, "job": ANY})
class TableAbandon(Command, tag=64, frozen=True, gc=False):
    """Abandon the open job in the meta group; it will never commit."""

    table: int
    job: int


@command(
    since=1,
    bounds={"table": WIDE, "job": COUNTER, "committed": COUNTER, "bytes_max": ANY},
    rows=("again", (None, WIDE, COUNTER, COUNTER)),
)
class ClaimRanges(Command, tag=65, frozen=True, gc=False):
    """Claim records for a table's job, in a stream group. `committed`: last committed job.
    `without`: prefixes of other tables."""

    table: int
    job: int
    committed: int
    prefix: str
    without: list[str]
    bytes_max: int
    fresh: bool
    # (name, uid, record, end): set aside, to be read again
    again: list[tuple[str, int, int, int]] = msgspec.field(default_factory=list)
