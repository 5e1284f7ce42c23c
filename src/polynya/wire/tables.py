"""JSON messages about table jobs between drivers and the server (docs/formats/tables.md, section
"Routes")."""

from __future__ import annotations

from typing import Annotated

import msgspec

# exact in every language, and as a sum of many
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

# of an incarnation: its group is in the upper 16 bits, so from group 32 on it has more than 53
Uid = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

Difference = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class StoreRef(msgspec.Struct, frozen=True, gc=False):
    """The location of objects, without credentials; the driver has its own."""

    kind: str  # "local" or "s3"
    root: str  # absolute directory, or key prefix in the bucket ("" for none)
    bucket: str = ""
    region: str = ""
    endpoint: str = ""
    shared: bool = False  # like the setting `cold.shared`


class Merging(msgspec.Struct, frozen=True, gc=False):
    """The conditions under which drivers merge files of a table."""

    merge_files: int = 0  # files of a similar size that are merged into one; 0: never
    merge_bytes: int = 128 << 20  # files from this size on are not merged again


class Move(msgspec.Struct, frozen=True):
    """The definition of a table whose files a job wrote to a new folder."""

    columns: list[tuple[str, str]]  # declared types
    partitions: list[str]


class CommitRequest(msgspec.Struct, frozen=True):
    """A request to move the pointers of a table and its dead letters, and the job number. It fails
    if they changed since the plan."""

    uid: str
    job: Number
    attempt: str
    base_iceberg: str
    base_iceberg_dlq: str
    iceberg: str
    iceberg_dlq: str
    result: str  # key of the result object
    rows: Difference
    dead_rows: Difference
    move: Move | None = None  # the job wrote the whole table to its own folder


class AbandonRequest(msgspec.Struct, frozen=True):
    """A request to release the job's ranges, unless the job was committed."""

    uid: str
    job: Number
    reason: str = ""
    failed: bool = False  # the reason is a fault, to be shown to users


class FailedRange(msgspec.Struct, frozen=True):
    """A range of a job that could not be read."""

    stream: str  # as in the plan
    uid: Uid
    record: Number
    records: Number
    pack: str
    offset: Number
    reason: str


class FailRequest(msgspec.Struct, frozen=True):
    """A request to count failures of the job's ranges, and to abandon the job."""

    uid: str
    job: Number
    ranges: Annotated[list[FailedRange], msgspec.Meta(min_length=1, max_length=10_000)]
