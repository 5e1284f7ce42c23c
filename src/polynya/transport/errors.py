"""Numeric codes of errors between cores."""

from __future__ import annotations

from polynya.base.errors import (
    CorruptData,
    NotLeader,
    OutcomeUnknown,
    PolynyaError,
    Unavailable,
    UpgradePending,
)

_TYPES: dict[int, type[PolynyaError]] = {
    1: Unavailable,
    2: OutcomeUnknown,
    3: CorruptData,
    5: UpgradePending,
}
_NUMBERS = {made: number for number, made in _TYPES.items()}
_NOT_LEADER = 4


def encode_error(error: BaseException) -> tuple[int, bytes]:
    """Encode an error as number and text. Unknown exception types become OutcomeUnknown, because
    they happened inside the handler."""
    if type(error) is NotLeader:
        return _NOT_LEADER, b"%d" % error.node
    number = next((_NUMBERS[kind] for kind in type(error).__mro__ if kind in _NUMBERS), None)
    if number is None:
        return 2, f"{type(error).__name__}: {error}".encode()
    return number, str(error).encode()


def decode_error(number: int, text: bytes) -> PolynyaError:
    if number == _NOT_LEADER and text.isdigit():
        return NotLeader(int(text))
    return _TYPES.get(number, OutcomeUnknown)(text.decode(errors="replace"))
