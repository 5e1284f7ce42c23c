"""The state of tables: in the meta group the tables, in a stream group what it was told of them."""

from __future__ import annotations

import msgspec


class Failure(msgspec.Struct, array_like=True, gc=False):
    """A range of records that a table's jobs could not read."""

    uid: int  # of the stream
    stream: str  # canonical name
    record: int
    end: int
    pack: str
    offset: int  # in the pack
    reason: str
    count: int
    since_ms: int
    last_ms: int
    aside: bool = False  # the jobs go on without it
    again: bool = False  # the next job reads it again


class Watch(msgspec.Struct, array_like=True, gc=False):
    """A table in a stream group."""

    table: int
    prefixes: list[str]
    hold: bool = False
    lost: int = 0  # records of streams that ended before the table took them


class Table(msgspec.Struct, array_like=True, gc=False):
    """A table in the meta group. Pointers are object keys of Iceberg metadata, "" before the first
    commit."""

    uid: int
    name: str
    prefix: str  # of canonical stream names
    created_ms: int
    job: int = 0  # the last opened job
    committed: int = 0  # the last committed job; `job` is open if it is larger and not abandoned
    abandoned: bool = False
    planned: bool = False  # every group has claimed for the open job: its ranges are final
    opened_ms: int = 0
    main: str = ""
    dlq: str = ""
    attempt: str = ""  # of the last commit: a repeat of it succeeds
    committed_ms: int = 0
    rows: int = 0
    dlq_rows: int = 0
    result: str = ""  # key of the last committed job's result object
    others: list[str] = []  # more prefixes of canonical stream names
    typed: str = ""  # the prefix as its user spelled it; "" in tables of earlier releases
    hold: bool = False
    columns: list[tuple[str, str]] = []  # declared types: (field, type)
    failures: list[Failure] = []
    dropped_ms: int = 0  # 0: not dropped; else its files are still to be deleted …
    forgotten: bool = False  # … and all groups have forgotten it
    partitions: list[str] = []  # expressions of base/partitions.py
    moved_job: int = 0  # the job that wrote the table to its present folder; 0: the first folder
    moved_ms: int = 0  # its commit: readers of the folder before have the grace from then on
    transform: str = ""  # of a derived table
    fault: str = ""  # why the last job failed; "": it did not
    fault_ms: int = 0

    @property
    def prefixes(self) -> list[str]:
        return [self.prefix, *self.others]

    @property
    def folder(self) -> str:
        """Return the key of the folder of the table's files."""
        return folder_of(self.uid, self.moved_job)

    @property
    def open(self) -> bool:
        return self.job > self.committed and not self.abandoned


def folder_of(uid: int, job: int) -> str:
    """Return the key of the folder of a table's files that `job` moved them to, or of the first."""
    return f"tables/{uid}/{job:012d}" if job else f"tables/{uid}"


class TableClaims:
    """The tables that read streams of a group. Each stream has its claims in `Stream.tables`."""

    def __init__(self) -> None:
        self.watches: dict[int, Watch] = {}  # by uid of the table
        self.jobs: dict[int, int] = {}  # table -> the latest job that claimed here
