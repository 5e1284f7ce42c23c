"""From a reply or a refusal of the service to headers and errors."""

from __future__ import annotations

from polynya.base.offsets import format_token
from polynya.front.http.errors import REFUSALS
from polynya.front.http.exchange import Exchange, Headers
from polynya.service.api import Refusal
from polynya.stream.replies import Code, Reply

_NAMES_TAIL = frozenset(
    (Code.CLOSED, Code.CONTENT_TYPE, Code.SEQ_REGRESSION, Code.PRODUCER_GAP, Code.PRODUCER_STALE, Code.OFFSET_BEYOND_TAIL, Code.INCARNATION)
)


def tail_headers(reply: Reply) -> Headers:
    """What every answer to a write says of the stream and of the producer."""
    headers = [("Stream-Next-Offset", format_token(reply.record, reply.byte))]
    if reply.closed:
        headers.append(("Stream-Closed", "true"))
    if reply.producer_epoch >= 0:
        headers.append(("Producer-Epoch", str(reply.producer_epoch)))
        if reply.producer_sequence >= 0:
            headers.append(("Producer-Seq", str(reply.producer_sequence)))
    if reply.code == Code.DUPLICATE and reply.first_record >= 0:
        headers.append(("Stream-Record-Start", str(reply.first_record)))
    if reply.uid:
        headers.append(("Stream-Incarnation", str(reply.uid)))
    return headers


def fail_reply(exchange: Exchange, reply: Reply, *, creating: bool = False) -> None:
    """Answer with what the command was refused for. `creating`: a soft-deleted name is then a conflict."""
    code = _code(exchange, reply, creating=creating)
    if reply.code == Code.TRIMMED:
        exchange.fail(code, trimmed_message(reply), [("Stream-Retained-Offset", format_token(reply.record, reply.byte))])
        return
    headers = tail_headers(reply) if reply.code in _NAMES_TAIL else []
    if reply.code == Code.PRODUCER_STALE:
        headers = [(name, value) for name, value in headers if name != "Producer-Seq"]
    if reply.code == Code.PRODUCER_GAP:
        headers = [(name, value) for name, value in headers if not name.startswith("Producer-")]
        headers.append(("Producer-Expected-Seq", str(reply.expected_sequence)))
        headers.append(("Producer-Received-Seq", str(reply.received_sequence)))
    exchange.fail(code, _over_hot_bound(reply) if reply.code == Code.OVER_HOT_BOUND else "", headers)


def fail_refusal(exchange: Exchange, refusal: Refusal) -> None:
    """Answer with what a read was refused for."""
    headers: Headers = []
    if refusal.code == Code.OFFSET_BEYOND_TAIL:
        headers.append(("Stream-Next-Offset", format_token(refusal.record, refusal.byte)))
    message = refusal.message
    if refusal.code == Code.TRIMMED:
        headers.append(("Stream-Retained-Offset", format_token(refusal.record, refusal.byte)))
        message = trimmed_message(refusal)
    exchange.fail(REFUSALS.get(refusal.code, "INTERNAL"), message, headers)


def trimmed_message(at: Refusal | Reply) -> str:
    """What an answer to a position before the first kept record says."""
    return f"the offset lies before the first kept record, at {format_token(at.record, at.byte)}: go on from there, or from -1"


def _over_hot_bound(reply: Reply) -> str:
    return (
        f"the data is larger than the {reply.byte:,} bytes that cold.max_hot_bytes_per_group lets wait for the object store, "
        "so it can never be taken; split it, or raise that setting"
    )


def _code(exchange: Exchange, reply: Reply, *, creating: bool) -> str:
    code = reply.code
    if creating and code == Code.GONE:
        return "DELETED_IN_USE"
    if code == Code.HOT_LIMIT and (reply.detail or not exchange.connection.front.settings.object_store):
        return "HOT_FULL"
    return REFUSALS.get(code, "INTERNAL")
