"""Errors of the embedded log."""

from __future__ import annotations

from polynya.base.errors import PolynyaError


class LogError(PolynyaError):
    """The base class of the errors of an embedded log, except `CorruptData` and `ConfigError`."""


class LogLocked(LogError):
    """Another `Log` has the directory open for writing; `pid` is its process, 0 if unknown."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class LogClosed(LogError):
    """The log was closed, or opened before a fork."""


class LogFull(LogError):
    """No space left on the disk. The write was undone; retry after making room."""


class LogFailed(LogError):
    """A write or sync failed. Nothing more is written until the log is opened again."""


class UnknownTopic(LogError, KeyError):
    """The log has no topic of this name."""

    __str__ = Exception.__str__  # without the quotes of KeyError


class UnknownCursor(LogError, KeyError):
    """The topic has no cursor of this name."""

    __str__ = Exception.__str__


class RecordTrimmed(LogError, LookupError):
    """The record was trimmed; `first` is the first that is left."""

    def __init__(self, message: str, first: int) -> None:
        super().__init__(message)
        self.first = first


class RecordMissing(LogError, LookupError):
    """The topic does not reach to this number yet; `end` is its end."""

    def __init__(self, message: str, end: int) -> None:
        super().__init__(message)
        self.end = end


class LimitExceeded(LogError, ValueError):
    """The argument is over a limit; the message names the limit. Nothing was written."""
