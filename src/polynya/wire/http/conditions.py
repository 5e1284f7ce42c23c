"""The conditions of an append: `If-Match`, `Stream-Expected-Offset` and `Stream-Record-Match` name the
tail that the stream must have.

The record number decides, as everywhere: the byte of an offset is implied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from polynya.base.offsets import parse_token
from polynya.wire.headers import BadField

MATCH = "if-match"
EXPECTED = "stream-expected-offset"
RECORD = "stream-record-match"
CONDITIONS = frozenset((MATCH, EXPECTED, RECORD))
NO_RECORD = 1 << 62  # no stream ever has its tail here

_OFFSET = r"\d{1,18}_\d{1,18}"
_ETAG = re.compile(
    rf'"([0-9a-f]{{1,16}})\.([0-9a-f]{{1,16}})-{_OFFSET}-({_OFFSET})(?::[nr])?(?::[tc])?"', re.ASCII
)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class Condition(msgspec.Struct, frozen=True):
    """The tail that the stream must have, and by an ETag its incarnation."""

    record: int
    incarnation: int = 0  # 0: any
    history: int | None = None  # of the cluster; None: any


def parse_condition(headers: Mapping[str, str]) -> Condition | None:
    """Parse the conditions of an append; None if there is none. Raises BadField for one that is
    malformed, and for two that name different tails."""
    found: Condition | None = None
    for name, (spelling, parse) in _FORMS.items():
        if name not in headers:
            continue
        condition = parse(headers[name])
        if found is None:
            found, first = condition, spelling
        elif condition.record != found.record:
            raise BadField(
                f"{first} and {spelling} disagree: they name the records {found.record} and "
                f"{condition.record}; send one of them"
            )
    return found


def _match(value: str) -> Condition:
    if value[:1] == value[-1:] == '"':
        at = parse_token(value[1:-1])
        if at is not None:
            return Condition(at[0])
        tag = _ETAG.fullmatch(value)
        if tag is not None:
            uid, history, end = tag.groups()
            return Condition(int(end.partition("_")[0]), int(uid, 16), int(history, 16))
    raise BadField(
        'If-Match must be one offset of the stream in quotes ("OFFSET"), or the ETag of a response '
        f"to HEAD or GET, not '{value[:64]}'"
    )


def _expected(value: str) -> Condition:
    at = parse_token(value)
    if at is not None:
        return Condition(at[0])
    raise BadField(
        "Stream-Expected-Offset must be an offset of the stream, as Stream-Next-Offset has it, not "
        f"'{value[:64]}'"
    )


def _record(value: str) -> Condition:
    if _NUMBER.fullmatch(value):
        return Condition(int(value))
    raise BadField(
        f"Stream-Record-Match must be the number of the next record, in digits, not '{value[:64]}'"
    )


_FORMS = {
    MATCH: ("If-Match", _match),
    EXPECTED: ("Stream-Expected-Offset", _expected),
    RECORD: ("Stream-Record-Match", _record),
}
