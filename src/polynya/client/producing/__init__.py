"""The state machine of an idempotent producer: it turns records into batches, batches into
requests, and responses into receipts. It uses no clock, socket or thread.

`core` makes the requests and judges the responses. `batches` has what waits for a response, `claims`
the producer's identity and epoch, `receipts` what became of the records.

Batches are numbered from 0; the number is the batch's `Producer-Seq`. Up to `in_flight` batches are
in flight at a time. An unanswered batch is retried under its number, so the server stores it once.
The server accepts numbers only in order, so it stores nothing after a gap.

A batch that overtakes an earlier one on another connection is refused with PRODUCER_GAP. It waits
until the earlier batch is applied. Each overtaking wastes a request, so it narrows the window of
batches in flight; `STEADY_BATCHES` in order widen it again.

A producer with a given id first probes the server for its epoch and sequence; the server always
refuses the probe. The producer then takes the next epoch. That fences a live run of the same id:
its next batch is refused with PRODUCER_STALE.

A producer can close its stream, with or without last records. The closing batch is sent once all
earlier batches are applied, because a closed stream refuses their retries. The closing batch has a
number too, so it is idempotent.

The first permanent refusal ends the producer: no later batch can be stored after the missing
number.
"""

from polynya.client.producing.batches import Batching
from polynya.client.producing.claims import Names
from polynya.client.producing.core import Phase, ProducerCore

__all__ = ["Batching", "Names", "Phase", "ProducerCore"]
