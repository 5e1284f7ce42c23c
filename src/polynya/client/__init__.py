"""The Python client: streams of a server, read, followed and appended to, from blocking and from asynchronous code.

One session decides everything: what to send, what an answer means, when to try again, where to go on (`calls`, `verbs`, `streams`,
`reading`, `producing`, `sharing`). It is pure. A *talk* is a generator that yields what it wants done (`messages`) and is sent what came of
it, with the time and a random number; a producer is a state machine of the same kind. Two shells do what they ask for: `blocking` and `aio`
(with their producers and workers), over the same HTTP (`wires`).

What it promises:
* An error says what became of the request: applied, refused, or unknown. What is refused or unknown is never taken for applied.
* What may safely be repeated is repeated, after lost connections, restarts and "not now", as long as the retry policy says.
* A producer's records are stored once each and in order, or the producer fails and says how many were.
* A reader gives every record once and in order, over any number of connections, and says where it is.
* Workers of a group are given every record at least once.
"""

from polynya.client.aio import AsyncClient, AsyncReader, AsyncStream
from polynya.client.aio_producer import AsyncProducer, AsyncReceipt
from polynya.client.aio_work import AsyncWork
from polynya.client.blocking import Client, Reader, Stream
from polynya.client.blocking_producer import Producer, Receipt
from polynya.client.blocking_work import Work
from polynya.client.errors import (
    AccessDenied,
    AnswerDamaged,
    ClientError,
    LeaseLost,
    Outcome,
    OutcomeUnknown,
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
from polynya.client.messages import Retry
from polynya.client.producing import Batching
from polynya.client.reading import Live
from polynya.client.values import NOW, START, Appended, Consistency, Created, Facts, Page, Record, Trimming
from polynya.client.workers import Job

__all__ = [
    "NOW",
    "START",
    "AccessDenied",
    "AnswerDamaged",
    "Appended",
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "AsyncReceipt",
    "AsyncStream",
    "AsyncWork",
    "Batching",
    "Client",
    "ClientError",
    "Consistency",
    "Created",
    "Facts",
    "Job",
    "LeaseLost",
    "Live",
    "Outcome",
    "OutcomeUnknown",
    "Page",
    "Producer",
    "ProducerFailed",
    "ProducerFenced",
    "ProducerGap",
    "Reader",
    "Receipt",
    "Record",
    "Refused",
    "Retry",
    "SequenceRegression",
    "Stream",
    "StreamClosed",
    "StreamExists",
    "StreamGone",
    "StreamNotFound",
    "StreamReplaced",
    "Trimmed",
    "Trimming",
    "Unavailable",
    "Work",
]
