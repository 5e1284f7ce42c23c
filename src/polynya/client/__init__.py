"""The Python client: read, follow and append to the streams of a server, from blocking or asyncio
code.

The protocol logic is sans-I/O (`calls`, `verbs`, `streams`, `reading`, `producing`, `workers`). An
`Operation` is a generator that yields effects (`messages`) and receives their results together with
the time and a random number. A producer is a state machine without I/O. `blocking` and `aio` carry
out the effects over HTTP (`http`).

Guarantees:
* Every error says whether the request was applied, refused, or has an unknown outcome. The client
  never reports a refused or unknown
  request as applied.
* Requests that are safe to repeat are retried after lost connections, restarts and throttling,
  within the limits of the `Retry` policy.
* A producer stores each record once and in order, or fails and reports how many records were
  stored.
* A reader delivers every record once and in order across reconnects, and exposes its offset.
* Workers of a group receive every record at least once.
"""

from polynya.client.aio.client import AsyncClient, AsyncManyReader, AsyncReader, AsyncStream
from polynya.client.aio.producer import AsyncProducer, AsyncReceipt
from polynya.client.aio.work import AsyncWork
from polynya.client.blocking.generated.client import Client, ManyReader, Reader, Stream
from polynya.client.blocking.producer import Producer, Receipt
from polynya.client.blocking.work import Work
from polynya.client.errors import (
    AccessDenied,
    AnswerDamaged,
    ClientError,
    ConditionFailed,
    LeaseLost,
    Outcome,
    OutcomeUnknown,
    ProducerConflict,
    ProducerFailed,
    ProducerFenced,
    ProducerGap,
    Refused,
    SequenceRegression,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    StreamReplaced,
    Trimmed,
    Unavailable,
)
from polynya.client.leases import Job
from polynya.client.messages import Retry
from polynya.client.operations.attributes import Attributes
from polynya.client.operations.many_appends import AppendOutcome, StreamAppend
from polynya.client.operations.reducers import ReducerFault, ReducerInfo
from polynya.client.operations.snapshots import Bootstrap, Snapshot, SnapshotInfo
from polynya.client.operations.tokens import ShortToken
from polynya.client.producing import Batching
from polynya.client.reading import Live
from polynya.client.records import NewRecord
from polynya.client.tables import ResultColumn, SqlAnswer, TableInfo
from polynya.client.values import (
    NOW,
    START,
    Appended,
    Consistency,
    Created,
    Facts,
    Leased,
    Page,
    Record,
    Trimming,
)

__all__ = [
    "NOW",
    "START",
    "AccessDenied",
    "AnswerDamaged",
    "AppendOutcome",
    "Appended",
    "AsyncClient",
    "AsyncManyReader",
    "AsyncProducer",
    "AsyncReader",
    "AsyncReceipt",
    "AsyncStream",
    "AsyncWork",
    "Attributes",
    "Batching",
    "Bootstrap",
    "Client",
    "ClientError",
    "ConditionFailed",
    "Consistency",
    "Created",
    "Facts",
    "Job",
    "LeaseLost",
    "Leased",
    "Live",
    "ManyReader",
    "NewRecord",
    "Outcome",
    "OutcomeUnknown",
    "Page",
    "Producer",
    "ProducerConflict",
    "ProducerFailed",
    "ProducerFenced",
    "ProducerGap",
    "Reader",
    "Receipt",
    "Record",
    "ReducerFault",
    "ReducerInfo",
    "Refused",
    "ResultColumn",
    "Retry",
    "SequenceRegression",
    "ShortToken",
    "Snapshot",
    "SnapshotInfo",
    "SqlAnswer",
    "Stream",
    "StreamAppend",
    "StreamClosed",
    "StreamEvent",
    "StreamExists",
    "StreamGone",
    "StreamNotFound",
    "StreamReplaced",
    "TableInfo",
    "Trimmed",
    "Trimming",
    "Unavailable",
    "Work",
]
