"""Appends on a condition: from the headers to the command, and the errors of a condition that does not
hold."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from polynya.base.levels import CONDITIONS_LEVEL
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.service.api import Service
from polynya.stream.features.appends.commands import Append, AppendIf
from polynya.stream.replies import Reply
from polynya.wire.conditions import EXPECTED, MATCH, NO_RECORD, RECORD, Condition, parse_condition
from polynya.wire.headers import BadField


def read_condition(service: Service, headers: Mapping[str, str], incarnation: int) -> Condition:
    """Return the condition of an append that has one. `incarnation` is that of
    `Stream-Incarnation`. Raises `BadField` and `Failure`."""
    condition = parse_condition(headers)
    assert condition is not None, "a header of a condition is there"
    if 0 != incarnation != condition.incarnation != 0:
        raise BadField(
            f"Stream-Incarnation is {incarnation}, and the ETag in If-Match is of the incarnation "
            f"{condition.incarnation}: send one of them"
        )
    if service.level < CONDITIONS_LEVEL:
        raise Failure("UPGRADE_PENDING")
    if condition.history not in (None, service.history):  # of before a restore
        return structs.replace(condition, record=NO_RECORD)
    return condition


def on_condition(command: Append, condition: Condition) -> AppendIf:
    """Return the append as one that is judged by its condition."""
    return AppendIf(
        command.name,
        command.now_ms,
        command.content_type,
        command.batch,
        command.producer,
        command.stream_seq,
        command.close,
        condition.incarnation or command.incarnation,
        condition.record,
    )


def refusal_code(headers: Mapping[str, str]) -> str:
    """Return the error code of a condition that does not hold, by the spelling that the request
    has."""
    return "OFFSET_CONFLICT" if EXPECTED in headers and MATCH not in headers else "PRECONDITION"


def refusal_message(headers: Mapping[str, str], reply: Reply) -> str:
    """Return the message for a condition that does not hold."""
    spelling, value = next(
        (
            (spelling, headers[name][:128])
            for name, spelling in _SPELLINGS.items()
            if name in headers
        ),
        ("the condition", "another record"),
    )
    return (
        f"the tail of the stream is {format_token(reply.record, reply.byte)}, and {spelling} is "
        f"{value}: read what was appended in between, then decide again"
    )


def tag_headers(headers: Mapping[str, str], reply: Reply) -> list[tuple[str, str]]:
    """Return the ETag of the tail, which a request with `If-Match` or `Stream-Record-Match` gets."""
    if MATCH not in headers and RECORD not in headers:
        return []
    return [("ETag", f'"{format_token(reply.record, reply.byte)}"')]


_SPELLINGS = {
    MATCH: "If-Match",
    EXPECTED: "Stream-Expected-Offset",
    RECORD: "Stream-Record-Match",
}
