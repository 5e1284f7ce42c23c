"""A job's plan as JSON: the ranges that the server claimed for a table, and their division into
tasks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from polynya.base.errors import CorruptData
from polynya.base.limits import SLICE_BYTES_MAX, TABLE_SNAPSHOTS_KEPT
from polynya.lakehouse.schema.columns import Column
from polynya.lakehouse.schema.partitions import Cut, Value
from polynya.objectstore import StoreSettings
from polynya.stream.parts import Encoding
from polynya.wire.tables import StoreRef

TASK_BYTES_MAX = 192 << 20  # payload of one task, and so of one Parquet file
TASK_BYTES_MIN = 8 << 20  # a smaller task costs more overhead than work
TASKS_PER_CORE = 2  # one long task must not leave the other cores idle
HEADER_VERSION = 2  # of a plan whose tasks are objects of their own; in version 1 it holds them


class Range(msgspec.Struct, frozen=True, gc=False):
    """One slice of a pack, or a run of its records. `record`, `byte`, `records` and `length`
    describe the whole slice, or the part of it that the stream has (`first_batch`, `batches`)."""

    stream: str  # as in /v1/stream/ URLs
    uid: int  # incarnation
    group: int
    content_type: str
    encoding: int  # of the stream, polynya.stream.parts.Encoding; Kafka batches may lie in any
    record: int  # number of the slice's first record
    byte: int  # stream position of its first byte
    records: int
    length: int  # payload bytes
    pack: str  # object key
    offset: int  # of the slice in the object
    stored: int  # bytes of the slice in the object
    crc: int  # CRC-32C of those bytes
    skip: int = 0  # records of the slice before the claimed ones
    take: int = -1  # claimed records; -1: all that follow
    first_batch: int = 0  # the stream has only a part of the slice, from this batch on …
    batches: int = 0  # … of so many batches; 0: all
    # the span in record numbers, of which some are missing; 0: none are. `skip` and `take` count
    # numbers
    numbers: int = 0
    # transactions whose batches have no rows, though the slice may not say so: producer id, first
    # record, record of the marker
    aborted: list[tuple[int, int, int]] = []

    @property
    def read_bytes(self) -> int:
        """Return the bytes that a task gets: those stored, or more if these are compressed."""
        return max(self.stored, self.length)


class TagRef(msgspec.Struct, frozen=True, gc=False):
    """A snapshot with a name: metadata files, by URI, that have it and the dead letters of its
    time."""

    snapshot: str
    job: int = 0
    time_ms: int = 0
    iceberg: str = ""
    iceberg_dlq: str = ""


class TableRef(msgspec.Struct, frozen=True, gc=False):
    """A table as the server knows it. Pointers are URIs of Iceberg metadata files, or "" before the
    first job."""

    uid: str
    name: str
    prefix: str
    location: str  # key of the table's folder in the store: "tables/UID"
    job: int = 0  # the last committed job
    iceberg: str = ""
    iceberg_dlq: str = ""
    result: str = ""  # key of the last committed job's result object
    store: StoreRef | None = None  # in the list of tables: the store of their files
    columns: list[tuple[str, str]] = []  # declared types: (field, type)
    merge_files: int = 0  # files of a similar size that are merged into one; 0: never
    merge_bytes: int = 0  # files from this size on are not merged again
    partitions: list[str] = []  # expressions of base/partitions.py
    transform: str = ""  # of a derived table: "sql:STATEMENT" or "python:MODULE:FUNCTION"
    # in the list of tables: the payload, and the ranges that are set aside
    payload: str | UnsetType = UNSET
    keep_snapshots: int = TABLE_SNAPSHOTS_KEPT  # the last ones …
    keep_ms: int = 0  # … those that were current so recently …
    tags: dict[str, TagRef] = {}  # … and those with names
    ranges_aside: int | UnsetType = UNSET


class JobPlan(msgspec.Struct, frozen=True):
    """The server's response to a request for a plan. `table` is the state that the commit must
    find. A plan without ranges is for a merge of the table's files."""

    table: TableRef
    job: int
    attempt: str  # 32 hex digits, unique to this driver
    store: StoreRef
    ranges: list[Range]
    version: int = 1
    # whether more work may follow; servers of the previous release omit it
    more: bool | None = None
    streams: list[str] = []  # the input of a derived table …
    source: TableRef | None = None  # … or the table whose rows are its input


class Merged(msgspec.Struct, frozen=True):
    """A live data file that a job replaces."""

    key: str
    rows: int
    size: int
    partition: list[Value] = []  # one value for each of the table's partitions


class Merge(msgspec.Struct, frozen=True):
    """The files of one part ("main" or "dlq") and partition that a task merges into one."""

    part: str
    files: list[Merged]


class Task(msgspec.Struct, frozen=True):
    """The work of one Spark task: ranges to decode, a merge, or files whose rows are decoded again.
    `shapes[i]` belongs to `ranges[i]`."""

    id: int
    ranges: list[Range]
    shapes: list[int]
    merge: Merge | None = None
    redo: list[Merged] = []


UNFRAMED = 0  # in place of a schema's id: the schema of values without one


class Writer(msgspec.Struct, frozen=True):
    """The schema of the records that carry its id: its text, and the texts that it refers to by
    name. `unknown` is the reason if there is none."""

    type: str = ""  # as in Confluent's API: AVRO, PROTOBUF or JSON
    text: str = ""
    references: list[tuple[str, str]] = []
    unknown: str = ""
    message: str = ""  # of unframed Protobuf; framed bodies have indexes


class Job(msgspec.Struct, frozen=True):
    """A plan with a fixed schema. Without ranges and tasks it is the header of the plan objects,
    which all tasks read."""

    plan: JobPlan
    columns: list[Column]
    shapes: list[dict[str, str]]  # hints of `schema.shape`, shared by streams
    tasks: list[Task]
    arrow_schema: bytes  # pyarrow's serialised schema of the table, with Parquet field ids
    arrow_schema_dlq: bytes
    discover: bool  # a task that finds a field without a column reports it instead of writing
    full: bool = False  # no more columns can be added; fields without one are skipped
    round: int = 0
    cuts: list[Cut] = []  # partitions of the main part
    folder: str = ""  # of the files; "": the table's
    strict: list[int] = []  # incarnations whose records should be JSON objects, in `redo`
    version: int = 1  # of the stored form, see `plan_objects`
    # of a table with a payload: the schemas by id; 0: that of all unframed values
    schemas: dict[int, Writer] | UnsetType = UNSET

    @property
    def writers(self) -> dict[int, Writer] | None:
        """Return the schemas by id; None for a table without a payload."""
        return None if isinstance(self.schemas, UnsetType) else self.schemas

    @property
    def location(self) -> str:
        """Return the key of the folder of the files that the job writes."""
        return self.folder or self.plan.table.location


def with_schemas(job: Job, writers: dict[int, Writer] | None) -> Job:
    """Return the job with the schemas of its table's payload; None if it has none."""
    return job if writers is None else msgspec.structs.replace(job, schemas=writers)


def store_settings(store: StoreRef) -> StoreSettings:
    """Return the store's settings in the form of the object store package."""
    return StoreSettings(
        backend=store.kind,
        root=store.root,
        shared=store.shared,
        s3_bucket=store.bucket,
        s3_region=store.region,
        s3_endpoint=store.endpoint,
    )


def check_plan(plan: JobPlan) -> JobPlan:
    """Return the plan, or raise CorruptData if no driver could run it."""
    if plan.version != 1:
        raise CorruptData(
            f"the plan has version {plan.version}, this driver supports 1: run the driver of the "
            "server's release"
        )
    if plan.job <= plan.table.job:
        raise CorruptData(f"job {plan.job} is not after the committed job {plan.table.job}")
    for part in plan.ranges:
        if part.encoding not in (Encoding.BYTES, Encoding.JSON, Encoding.KAFKA):
            raise CorruptData(
                f"'{part.stream}' has batches of encoding {part.encoding}, which this driver does "
                "not support"
            )
        end = part.skip + claimed(part)
        if not (0 <= part.skip < end <= span_of(part) and 0 <= part.uid < 1 << 63):
            raise CorruptData(
                f"the plan's range of '{part.stream}' at record {part.record} is invalid"
            )
    return plan


def claimed(part: Range) -> int:
    """Return the record numbers of the range that the job must write; some may be missing."""
    return part.take if part.take >= 0 else span_of(part) - part.skip


def span_of(part: Range) -> int:
    """Return the record numbers of the whole range."""
    return part.numbers or part.records


def layout(ranges: Sequence[Range], shapes: dict[int, int], cores: int) -> list[Task]:
    """Cut ranges into tasks of at most `TASK_BYTES_MAX`, rows ordered by stream, incarnation and
    offset. `shapes` is by uid."""
    ordered = sorted(ranges, key=lambda part: (part.stream, part.uid, part.record + part.skip))
    total = sum(part.length for part in ordered)
    count = _task_count(total, cores)
    tasks: list[Task] = []
    begin = size = 0
    for at, part in enumerate(ordered):
        size += part.length
        if size * count >= total * (len(tasks) + 1) or at == len(ordered) - 1:
            tasks.append(_task(len(tasks), ordered[begin : at + 1], shapes))
            begin = at + 1
    return tasks


def _task_count(total: int, cores: int) -> int:
    """Return a task count that gives each core equally many tasks of similar size, so that all
    cores finish together."""
    per_core = max(1, -(-total // (cores * (TASK_BYTES_MAX - SLICE_BYTES_MAX))))
    if total >= TASK_BYTES_MIN * cores * TASKS_PER_CORE:
        per_core = max(per_core, TASKS_PER_CORE)
    return max(1, min(cores * per_core, -(-total // TASK_BYTES_MIN)))


def _task(number: int, ranges: list[Range], shapes: dict[int, int]) -> Task:
    return Task(number, ranges, [shapes.get(part.uid, 0) for part in ranges])
