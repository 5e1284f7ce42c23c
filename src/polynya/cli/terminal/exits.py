"""Exit codes of commands, the errors that carry them, and the exit of the process."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import IO, Any

import click

LIBRARY = "obstore"  # the object-store library, whose threads outlive a call
OK = 0
REFUSED = 1  # the server or this tool refused: the message gives the reason
USAGE = 2  # the command line or a setting is wrong
UNREACHABLE = 3  # the server is unreachable or busy: nothing was applied, retry
UNKNOWN = 4  # it may or may not have been applied
INTERRUPTED = 130  # Ctrl-C
BROKEN_PIPE = 141  # the reader of stdout closed it


class Ended(click.ClickException):
    """The end of a command with an error. `code` is the server's error code, if any; `hint` is the
    next step."""

    exit_code = REFUSED

    def __init__(
        self, message: str, *, code: str = "", hint: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.request_id = request_id

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, the server's code and request id, and the next step to stderr."""
        tail = (f" [{self.code}]" if self.code else "") + (
            f" (request {self.request_id})" if self.request_id else ""
        )
        click.echo(
            f"polynya: {self.message}{tail}" + (f"\n  {self.hint}" if self.hint else ""),
            file=file,
            err=True,
        )


class Misused(Ended):
    """The command line or a setting is wrong."""

    exit_code = USAGE


class Refused(Ended):
    """The server refused; a retry fails too. `status` is its HTTP status."""

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", hint: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message, code=code, hint=hint, request_id=request_id)
        self.status = status


class Unreachable(Ended):
    """No server was reachable and nothing was applied; the command can be repeated."""

    exit_code = UNREACHABLE


class Busy(Unreachable):
    """The server is busy and nothing was applied; the command can be repeated."""


class Unknown(Ended):
    """The outcome is unknown."""

    exit_code = UNKNOWN


class ProcessExit:
    """Create it before a command runs; `code` is the exit code.

    The library's threads release Python objects shortly after a call has returned. If the
    interpreter is finalizing then, they abort it with SIGABRT although the command succeeded. So if
    the library is loaded, the process exits before finalization. This handler is registered first
    and therefore runs last. A thread that still reads stdin gets the same exit: finalization would
    abort on its buffer lock.
    """

    def __init__(self) -> None:
        self.code = REFUSED  # after a traceback
        atexit.register(self._end)

    def ended(self, end: SystemExit) -> None:
        """Set the exit code as the interpreter would."""
        self.code = end.code if isinstance(end.code, int) else OK if end.code is None else REFUSED

    def _end(self) -> None:
        if LIBRARY in sys.modules or any(thread.daemon for thread in threading.enumerate()):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
            os._exit(self.code)
