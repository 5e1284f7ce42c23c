"""Refusals of the registry, with the error codes of Confluent's API."""

from __future__ import annotations

from typing import Any, TypeVar

Key = TypeVar("Key", bound=tuple[Any, ...])

SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_SOFT_DELETED = 40404
SUBJECT_NOT_SOFT_DELETED = 40405
VERSION_SOFT_DELETED = 40406
VERSION_NOT_SOFT_DELETED = 40407
NO_CONFIG_OF_SUBJECT = 40408
NO_MODE_OF_SUBJECT = 40409
INCOMPATIBLE = 409
INVALID_SCHEMA = 42201
INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_MODE = 42204
NOT_PERMITTED = 42205
REFERENCE_EXISTS = 42206
INVALID_SUBJECT = 42208
STORE_ERROR = 50001


class Refused(Exception):
    """A refusal: its code begins with the status of HTTP."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return self.code if self.code < 1000 else self.code // 100


class BadSchema(ValueError):
    """The text of a schema is not valid; the message says what is wrong, and where."""


class TooComplex(Exception):
    """Two schemas have too many parts that refer to each other to be compared in time."""


class Incompatibility(ValueError):
    """One thing in a schema that a reader of another one cannot read."""

    def __init__(self, kind: str, where: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.where, self.message = kind, where, message

    def __str__(self) -> str:
        return (
            f"{{errorType:'{self.kind}', description:'{self.message}', "
            f"additionalInfo:'at {self.where}'}}"
        )


def forget_later(known: dict[Key, list[Incompatibility]], key: Key) -> None:
    """Forget the successes of pairs that were compared within one that fails: they may have counted
    it as compatible."""
    later: list[Key] = []
    for each in reversed(known):
        if each == key:
            break
        if not known[each]:
            later.append(each)
    for each in later:
        del known[each]
