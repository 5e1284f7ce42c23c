"""Error codes of HTTP: status, outcome of the request, message. The error page of the documentation
is generated from here.

The body is `{"error": {"code", "message", "request_id"}}`. The header `Stream-Outcome` is `refused`
(nothing was applied) or `unknown` (it may have been applied). After `unknown`, retry with the same
producer sequence, or read back. A response without the header was applied.
"""

from __future__ import annotations

import msgspec

from polynya.base.errors import OutcomeUnknown, Unavailable, UpgradePending
from polynya.stream.replies import Code

REFUSED = "refused"
UNKNOWN = "unknown"
CATALOG = "/iceberg/"  # errors of these paths have the format of Iceberg's REST specification
REGISTRY = "/registry"  # errors of these paths also have that of Confluent's schema registry


class ErrorCode(msgspec.Struct, frozen=True):
    """An error code. `retry_after`: seconds to wait before a retry; None when a retry cannot
    help."""

    code: str
    status: int
    message: str
    outcome: str = REFUSED
    retry_after: int | None = None


_TABLE = (
    ErrorCode("BAD_REQUEST_LINE", 400, "the request line is malformed"),
    ErrorCode("BAD_HEADER", 400, "a header line is malformed"),
    ErrorCode("DUPLICATE_HEADER", 400, "a header that must be unique is repeated"),
    ErrorCode("HOST_MISSING", 400, "an HTTP/1.1 request needs a Host header"),
    ErrorCode("BOTH_LENGTHS", 400, "Content-Length and Transfer-Encoding exclude each other"),
    ErrorCode("TRANSFER_CODING", 400, "the only supported transfer coding is chunked"),
    ErrorCode("BAD_LENGTH", 400, "Content-Length must be a number of bytes"),
    ErrorCode("BAD_CHUNK", 400, "the chunked body is malformed"),
    ErrorCode("BARE_LF", 400, "lines must end in CR LF"),
    ErrorCode("BAD_TARGET", 400, "the path or the query is malformed"),
    ErrorCode("INVALID_NAME", 400, "the path is not a valid stream name"),
    ErrorCode("INVALID_HEADER", 400, "a header has an invalid value"),
    ErrorCode("INVALID_PARAMETER", 400, "a query parameter has an invalid value"),
    ErrorCode(
        "UNKNOWN_PARAMETER",
        400,
        "the name of a query parameter is close to a known one; see `strict_parameters`",
    ),
    ErrorCode(
        "NOT_SUPPORTED",
        400,
        "the request names a condition or parameter that this server does not support",
    ),
    ErrorCode(
        "INVALID_OFFSET", 400, "the offset must be -1, now, or an offset returned by this server"
    ),
    ErrorCode(
        "OFFSET_REQUIRED", 400, "live reads need an offset: -1 for the start, now for the tail"
    ),
    ErrorCode(
        "OFFSET_BEYOND_TAIL",
        400,
        "the offset lies beyond the tail of the stream, which Stream-Next-Offset names",
    ),
    ErrorCode("INVALID_JSON", 400, "the body is not acceptable JSON"),
    ErrorCode(
        "DIGEST_MISMATCH",
        400,
        "the body does not have the digest of Content-Digest or Repr-Digest; nothing was stored, "
        "send the request again",
    ),
    ErrorCode(
        "INVALID_CODING", 400, "the body is not what its Content-Encoding says; nothing was stored"
    ),
    ErrorCode(
        "EMPTY_BODY",
        400,
        "the body is empty: an append needs one, or Stream-Closed: true to close the stream",
    ),
    ErrorCode(
        "EMPTY_ARRAY", 400, "an empty JSON array appends nothing; [[]] appends one as a record"
    ),
    ErrorCode(
        "CONTENT_TYPE_REQUIRED",
        400,
        "an append needs the stream's Content-Type, such as application/json",
    ),
    ErrorCode("PRODUCER_EPOCH_START", 400, "a new Producer-Epoch must start at Producer-Seq 0"),
    ErrorCode(
        "SUB_OFFSET",
        400,
        "Stream-Fork-Sub-Offset goes beyond what was appended after the fork offset",
    ),
    ErrorCode("FORK_DEPTH", 400, "forks of forks are too deep"),
    ErrorCode("INVALID_REQUEST", 400, "the body is not valid for this path"),
    ErrorCode(
        "TABLE_NAME",
        400,
        "a table name has at most 63 letters, digits and _, and does not end in __dlq",
    ),
    ErrorCode(
        "TABLE_COLUMN", 400, "a declared column needs a field and a type that columns can have"
    ),
    ErrorCode(
        "TABLE_PARTITION",
        400,
        "a partition is a column, a period of a time, or a number of buckets: day(timestamp)",
    ),
    ErrorCode(
        "TABLE_PAYLOAD",
        400,
        "a payload is registry, registry:URL, avro:SCHEMA or protobuf:MESSAGE:SCHEMA",
    ),
    ErrorCode(
        "TABLE_SNAPSHOTS", 400, "a table keeps 1 to 500 snapshots, and those of at most a year"
    ),
    ErrorCode(
        "TABLE_TAG",
        400,
        "a tag has at most 64 letters, digits, '_', '.' and '-', and names a snapshot that is kept",
    ),
    ErrorCode(
        "TABLE_TRANSFORM", 400, "a transform is an SQL statement or MODULE:FUNCTION of Python"
    ),
    ErrorCode("TOPIC_INVALID", 400, "the topic's name, partitions or a config is invalid"),
    ErrorCode("TABLE_PREFIX", 400, "a table's prefix must be the beginning of legal stream names"),
    ErrorCode(
        "SQL_INVALID",
        400,
        "the query cannot run: it is not a SELECT, reads other tables, or is invalid",
    ),
    ErrorCode("SQL_TOO_LARGE", 400, "the query exceeds its limit of time or memory; reduce it"),
    ErrorCode("UNAUTHORIZED", 401, "a token is required: Authorization: Bearer, and the token"),
    ErrorCode("TOKEN_REFUSED", 401, "the token is unknown, or no longer valid"),
    ErrorCode(
        "TOKEN_IN_URL",
        401,
        "access_token in a URL is accepted only for live=sse and /v1/live, with a token that expires within an "
        "hour",
    ),
    ErrorCode("FORBIDDEN", 403, "the token does not allow this"),
    ErrorCode(
        "ADMIN_PORT_ONLY",
        403,
        "without access control, cluster and store operations are accepted only on the admin port",
    ),
    ErrorCode(
        "CONSOLE_READ_ONLY",
        403,
        "the console of this node only shows: its setting `console.acts` is false",
    ),
    ErrorCode(
        "ORIGIN_NOT_ALLOWED",
        403,
        "pages of this origin may only read; `cors_origins` lists those that may write",
    ),
    ErrorCode(
        "PRODUCER_STALE",
        403,
        "the Producer-Epoch is stale; the response header Producer-Epoch has the newer one",
    ),
    ErrorCode("NOT_FOUND", 404, "there is no such stream"),
    ErrorCode("TABLE_NOT_FOUND", 404, "there is no such table"),
    ErrorCode(
        "TABLE_RUN_NOT_FOUND",
        404,
        "this node knows no such run of the table: it keeps the last ones, until it stops",
    ),
    ErrorCode("TOPIC_NOT_FOUND", 404, "there is no such Kafka topic"),
    ErrorCode("TOKEN_NOT_FOUND", 404, "no active token has this id or name"),
    ErrorCode("NODE_NOT_FOUND", 404, "the cluster has no such node"),
    ErrorCode("GROUP_NOT_FOUND", 404, "there is no such group"),
    ErrorCode("TRANSACTION_NOT_FOUND", 404, "there is no such transactional id"),
    ErrorCode("NO_ROUTE", 404, "no route matches this path"),
    ErrorCode("NO_SNAPSHOT", 404, "the stream has no snapshot"),
    ErrorCode(
        "NOT_COMPLETE",
        404,
        "the stream does not reach the end of this chunk yet; read the stream at its offsets",
    ),
    ErrorCode("NO_REDUCER", 404, "there is no such reducer, or none is bound to the stream"),
    ErrorCode("MODULE_NOT_FOUND", 404, "no module with this SHA-256 is stored"),
    ErrorCode("KEY_NOT_FOUND", 404, "the state of the reducer has no such key"),
    ErrorCode(
        "METHOD_NOT_ALLOWED",
        405,
        "this path does not allow this method; the header Allow lists those that it does",
    ),
    ErrorCode("NOT_ACCEPTABLE", 406, "the answer has no form that Accept names"),
    ErrorCode("REQUEST_TIMEOUT", 408, "the request did not arrive in time"),
    ErrorCode(
        "TABLE_RUNS_OFF",
        409,
        "this node runs no syncs, rebuilds and replays of tables; the message has why. The command "
        "'polynya table sync' runs them where Spark is installed",
    ),
    ErrorCode(
        "TRANSACTION_NOT_OPEN",
        409,
        "no transaction of this id is open: it has been committed or aborted",
    ),
    ErrorCode(
        "KAFKA_PARTITION",
        409,
        "the name is that of a partition of a Kafka topic: write to it with a Kafka client (a mirror "
        "takes records after 'polynya mirror --cut-over'), and delete the topic with 'polynya topic "
        "rm'",
    ),
    ErrorCode(
        "NONE_APPENDED",
        409,
        "one of many appends is refused, so none was applied: `item` is its number from 0, `reason` "
        "the code that it has alone, and the status is that of this code",
    ),
    ErrorCode(
        "PROFILE_CONFLICT",
        409,
        "the stream cannot have this profile: it is leased, or the node has no object store",
    ),
    ErrorCode("TOPIC_CONFLICT", 409, "the topic's present state does not allow this"),
    ErrorCode(
        "GROUP_NOT_EMPTY",
        409,
        "the consumer group has members: stop its consumers, or wait for the end of their sessions",
    ),
    ErrorCode("EXISTS_DIFFERENT", 409, "the stream exists with another configuration"),
    ErrorCode(
        "DELETED_IN_USE",
        409,
        "the stream was deleted, but forks still need its data: the name cannot be used yet",
    ),
    ErrorCode("STREAM_CLOSED", 409, "the stream is closed; Stream-Next-Offset is its final offset"),
    ErrorCode("CONTENT_TYPE_MISMATCH", 409, "the Content-Type differs from the stream's"),
    ErrorCode("SEQ_REGRESSION", 409, "Stream-Seq must be greater than the last one, byte by byte"),
    ErrorCode(
        "OFFSET_CONFLICT",
        409,
        "the tail is not at Stream-Expected-Offset; Stream-Next-Offset names it",
    ),
    ErrorCode(
        "PRODUCER_GAP", 409, "Producer-Seq skips ahead; Producer-Expected-Seq names the next one"
    ),
    ErrorCode(
        "PRODUCER_CONFLICT",
        409,
        "this Producer-Seq was appended with another body; nothing was appended",
    ),
    ErrorCode("TABLE_HAS_DERIVED", 409, "other tables are derived from this one; drop them first"),
    ErrorCode("TABLE_EXISTS", 409, "a table with this name or prefix exists"),
    ErrorCode("JOB_PREEMPTED", 409, "another planner has taken over the table's job; retry"),
    ErrorCode("TABLE_LEASED", 409, "another worker syncs the table, or did so a moment ago"),
    ErrorCode(
        "JOB_CONFLICT",
        409,
        "the table's job cannot commit: another job did, or its base has changed",
    ),
    ErrorCode(
        "CLUSTER_REFUSED",
        409,
        "the operation is impossible or unsafe in the cluster's present state; the message has "
        "the reason",
    ),
    ErrorCode(
        "SNAPSHOT_OLDER",
        409,
        "the origin has a newer snapshot, which Stream-Snapshot-Offset names: publish a later one",
    ),
    ErrorCode(
        "SNAPSHOT_CONFLICT",
        409,
        "the origin has another snapshot at this offset; Stream-Snapshot-Offset names its newest one",
    ),
    ErrorCode(
        "SNAPSHOT_NEEDED",
        409,
        "the records before the snapshot are trimmed, and nothing else covers them: publish a newer "
        "snapshot first",
    ),
    ErrorCode("SNAPSHOT_ORIGINS", 409, "the stream has snapshots of as many origins as it may"),
    ErrorCode(
        "REDUCER_REVISION",
        409,
        "the reducer has another revision by now, or its pattern does not fit the stream",
    ),
    ErrorCode(
        "REDUCER_STOPPED",
        409,
        "the reducer is stopped, as it computed two states for the same records; the first one "
        "stays: 'polynya reduce add' begins a new revision",
    ),
    ErrorCode(
        "REDUCER_FAULT",
        409,
        "the reducer cannot take the records of this stream; the message has why",
    ),
    ErrorCode(
        "REDUCERS_FULL", 409, "the cluster has as many reducers, or faults of one, as it may"
    ),
    ErrorCode(
        "PARTS_GONE",
        409,
        "the body of the snapshot is no longer stored: the stream was created again or the upload "
        "took longer than ten minutes; send it again",
    ),
    ErrorCode("GONE", 410, "the stream was deleted"),
    ErrorCode(
        "TRIMMED",
        410,
        "the offset lies before the first retained record, which Stream-Retained-Offset names",
    ),
    ErrorCode(
        "STREAM_RECREATED",
        410,
        "the stream was deleted and recreated since this reader's last event; read from its start",
    ),
    ErrorCode(
        "CURSOR_GONE",
        410,
        "no node keeps this cursor any more; open the streams at the offsets of their last events: "
        "stream=NAME@OFFSET",
    ),
    ErrorCode(
        "VERSION_GONE",
        410,
        "the stream has another version: it was created again, restored or compacted; GET "
        "STREAM/incarnation names the present one",
    ),
    ErrorCode("SNAPSHOT_GONE", 410, "the snapshot was superseded and its grace is over"),
    ErrorCode(
        "INCARNATION_MISMATCH",
        412,
        "the stream is not the incarnation that Stream-Incarnation names",
    ),
    ErrorCode(
        "PRECONDITION",
        412,
        "the tail is not at the offset of If-Match or Stream-Record-Match, the attributes are not "
        "those of If-Match, or the stream (or its attributes) exists and If-None-Match is *",
    ),
    ErrorCode("BODY_TOO_LARGE", 413, "the body exceeds the size limit; split it"),
    ErrorCode(
        "APPEND_EXCEEDS_MEMORY_LIMIT",
        413,
        "the data is larger than `cold.max_hot_bytes_per_group`, so it can never be accepted; "
        "split it, or raise the limit",
    ),
    ErrorCode(
        "TOO_MANY_RECORDS", 413, "the body has more JSON values than one append allows; split it"
    ),
    ErrorCode(
        "CONTENT_ENCODING",
        415,
        "the Content-Encoding is not supported: send the body as gzip, deflate or uncompressed",
    ),
    ErrorCode("RANGE_NOT_SATISFIABLE", 416, "the snapshot has nothing of this range"),
    ErrorCode("EXPECTATION", 417, "the only supported expectation is 100-continue"),
    ErrorCode(
        "HOST_NOT_ALLOWED",
        421,
        "without access control, a node serves only its own hosts and those in `allowed_hosts`",
    ),
    ErrorCode(
        "CROSS_GROUP",
        422,
        "`close` and `stream_seq` of appends that are applied together need streams of one group: give "
        "their names the same part in braces, such as {o7}/order",
    ),
    ErrorCode(
        "KAFKA_BATCH_UNREADABLE",
        422,
        "a Kafka producer compressed a record batch wrongly, or too far; go on at "
        "Stream-Next-Offset",
    ),
    ErrorCode(
        "PRODUCER_LIMIT",
        429,
        "the stream has reached its limit of active producers",
        retry_after=60,
    ),
    ErrorCode(
        "RATE_LIMIT",
        429,
        "the requests or bytes per second exceed the token's limits",
        retry_after=1,
    ),
    ErrorCode(
        "CONNECTION_QUOTA",
        429,
        "the token has reached its limit of open connections",
        retry_after=5,
    ),
    ErrorCode(
        "STREAM_QUOTA",
        429,
        "the token has reached its limit of streams under its prefixes",
        retry_after=60,
    ),
    ErrorCode(
        "SNAPSHOT_STAGED",
        429,
        "the stream has too many parts that no snapshot names",
        retry_after=60,
    ),
    ErrorCode(
        "SNAPSHOT_TOO_SOON",
        429,
        "too many superseded snapshots can still be read: publish less often",
        retry_after=10,
    ),
    ErrorCode(
        "TABLE_RUNS_FULL",
        429,
        "as many runs of tables wait on this node as may; retry when one has ended",
        retry_after=30,
    ),
    ErrorCode("HEADERS_TOO_LARGE", 431, "request line and headers exceed the size limit"),
    ErrorCode("INTERNAL", 500, "internal error; the server's log has the request id", UNKNOWN),
    ErrorCode(
        "DATA_DAMAGED",
        503,
        "required data is missing or damaged; run 'polynya store verify', and see the log",
        UNKNOWN,
    ),
    ErrorCode(
        "NO_SQL",
        501,
        "this server does not run SQL; 'polynya sql --local' does, where polynya[lake] is installed",
    ),
    ErrorCode("CLUSTER_STARTING", 503, "the cluster is still forming", retry_after=1),
    ErrorCode(
        "STREAM_FAULTED",
        503,
        "the stream's recent data is damaged on this node, so it accepts no appends; see /readyz "
        "and the log",
        retry_after=60,
    ),
    ErrorCode("UNAVAILABLE", 503, "temporarily unavailable; nothing was applied", retry_after=1),
    ErrorCode(
        "OUTCOME_UNKNOWN", 503, "the outcome is unknown: only an idempotent retry is safe", UNKNOWN
    ),
    ErrorCode("NO_MEMORY", 503, "the server is out of memory; retry later", UNKNOWN, retry_after=5),
    ErrorCode(
        "MEMORY_PRESSURE",
        503,
        "too much data is waiting to be flushed to the object store; retry later",
        retry_after=1,
    ),
    ErrorCode(
        "REQUEST_MEMORY_LIMIT",
        503,
        "request bodies in flight use all of their memory limit; retry later",
        retry_after=1,
    ),
    ErrorCode(
        "RESPONSE_MEMORY_LIMIT",
        503,
        "unread responses use all of their memory limit; read them, or retry later",
        retry_after=1,
    ),
    ErrorCode(
        "UPGRADE_PENDING",
        503,
        "the request needs a feature of this release, and some nodes of the cluster still run an "
        "older one: finish the upgrade",
        retry_after=5,
    ),
    ErrorCode(
        "TRANSACTION_OPEN",
        503,
        "a transaction is open at the offset of the condition, or has an append of the same producer: "
        "its records may yet come before",
        retry_after=1,
    ),
    ErrorCode(
        "NO_WORKER",
        503,
        "the state needs a worker of reducers: 'polynya reduce run', or the setting reduce.workers",
        retry_after=10,
    ),
    ErrorCode("SQL_BUSY", 503, "too many SQL queries are running; retry later", retry_after=1),
    ErrorCode(
        "CONNECTION_LIMIT", 503, "the server has reached its connection limit", retry_after=1
    ),
    ErrorCode(
        "SLOW_READER", 503, "the reader was too slow for the stream; resume from the last event"
    ),
    ErrorCode(
        "LIVE_LIMIT",
        503,
        "the prefix or pattern has too many streams for one connection, or all connections of the "
        "core follow too many",
        retry_after=5,
    ),
    ErrorCode("HTTP_VERSION", 505, "this server speaks HTTP/1.1, and HTTP/2 where it is on"),
    ErrorCode(
        "MEMORY_FULL",
        507,
        "the memory for unflushed data is full, and the object store has no room or is not "
        "configured: free space on its disk",
    ),
    ErrorCode("DISK_FULL", 507, "the journal's disk is full"),
    ErrorCode(
        "ATTRS_FULL",
        507,
        "the attributes of the streams of this group have all of their memory: make those of some "
        "smaller, or delete them",
    ),
)

ERRORS: dict[str, ErrorCode] = {error.code: error for error in _TABLE}

REFUSALS: dict[int, str] = {
    Code.NOT_FOUND: "NOT_FOUND",
    Code.GONE: "GONE",
    Code.EXISTS_DIFFERENT: "EXISTS_DIFFERENT",
    Code.CLOSED: "STREAM_CLOSED",
    Code.CONTENT_TYPE: "CONTENT_TYPE_MISMATCH",
    Code.SEQ_REGRESSION: "SEQ_REGRESSION",
    Code.PRODUCER_STALE: "PRODUCER_STALE",
    Code.PRODUCER_GAP: "PRODUCER_GAP",
    Code.PRODUCER_CONFLICT: "PRODUCER_CONFLICT",
    Code.PRODUCER_EPOCH_START: "PRODUCER_EPOCH_START",
    Code.PRODUCER_LIMIT: "PRODUCER_LIMIT",
    Code.INCARNATION: "INCARNATION_MISMATCH",
    Code.OFFSET_BEYOND_TAIL: "OFFSET_BEYOND_TAIL",
    Code.SUB_OFFSET: "SUB_OFFSET",
    Code.FORK_DEPTH: "FORK_DEPTH",
    Code.ATTEMPT_REFUSED: "UNAVAILABLE",
    Code.ATTEMPT_PENDING: "UNAVAILABLE",
    Code.TRIMMED: "TRIMMED",
    Code.MEMORY_PRESSURE: "MEMORY_PRESSURE",
    Code.APPEND_EXCEEDS_MEMORY_LIMIT: "APPEND_EXCEEDS_MEMORY_LIMIT",
    Code.TOO_LARGE: "BODY_TOO_LARGE",
    Code.NOT_YET: "UNAVAILABLE",
    Code.EVICTED: "UNAVAILABLE",
    Code.DISK_FULL: "DISK_FULL",
    Code.STREAM_FAULTED: "STREAM_FAULTED",
    Code.WRONG_PROFILE: "UNAVAILABLE",
    Code.PRECONDITION: "PRECONDITION",
    Code.UNSTABLE: "TRANSACTION_OPEN",
    Code.ATTRS_FULL: "ATTRS_FULL",
    Code.SNAPSHOT_OLDER: "SNAPSHOT_OLDER",
    Code.SNAPSHOT_CONFLICT: "SNAPSHOT_CONFLICT",
    Code.SNAPSHOT_NEEDED: "SNAPSHOT_NEEDED",
    Code.SNAPSHOT_ORIGINS: "SNAPSHOT_ORIGINS",
    Code.SNAPSHOT_TOO_SOON: "SNAPSHOT_TOO_SOON",
    Code.PARTS_GONE: "PARTS_GONE",
    Code.NO_SNAPSHOT: "NO_SNAPSHOT",
    Code.NOT_A_BOUNDARY: "INVALID_OFFSET",
}


def expected_failure(error: BaseException) -> Failure | None:
    """Return the error response to an exception that tells of no defect; None for others."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, UpgradePending):
        return Failure("UPGRADE_PENDING")
    if isinstance(error, Unavailable):
        return Failure("UNAVAILABLE", str(error))
    if isinstance(error, OutcomeUnknown):
        return Failure("OUTCOME_UNKNOWN", str(error))
    return None


class Failure(Exception):
    """An error response raised by a route. `headers` are added; an empty `message` means the
    default of the code."""

    def __init__(
        self, code: str, message: str = "", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message or ERRORS[code].message)
        self.code = code
        self.message = message or ERRORS[code].message
        self.headers = headers


def error_body(code: str, message: str, request_id: str, target: str = "") -> bytes:
    """Return the JSON body of an error, on one line."""
    error: dict[str, str | int] = {"code": code, "message": message, "request_id": request_id}
    if target.startswith(CATALOG):
        error |= {"code": ERRORS[code].status, "type": code}
    if is_registry(target):
        return msgspec.json.encode(
            {"error_code": ERRORS[code].status, "message": message, "error": error}
        )
    return msgspec.json.encode({"error": error})


def is_registry(target: str) -> bool:
    """Report whether a request is for the schema registry."""
    return target.startswith(REGISTRY) and target[len(REGISTRY) :][:1] in ("", "/", "?")
