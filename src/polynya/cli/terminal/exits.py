"""What a command can end with: the exit codes that scripts use, and the errors that carry them."""

from __future__ import annotations

from typing import IO, Any

import click

OK = 0
REFUSED = 1  # the server, or this tool, said no: the message says why
USAGE = 2  # the command line or a setting is wrong
UNREACHABLE = 3  # no server there, or it cannot answer now: nothing was applied, try again
UNKNOWN = 4  # it may or may not have been applied
INTERRUPTED = 130  # Ctrl-C
BROKEN_PIPE = 141  # the reader of our output went away


class Ended(click.ClickException):
    """The end of a command with a reason. `code` is the server's error code, where it had one; `hint` is the next step."""

    exit_code = REFUSED

    def __init__(self, message: str, *, code: str = "", hint: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.request_id = request_id

    def show(self, file: IO[Any] | None = None) -> None:
        """What, the server's code and request id, and the next step, to stderr."""
        tail = (f" [{self.code}]" if self.code else "") + (f" (request {self.request_id})" if self.request_id else "")
        click.echo(f"polynya: {self.message}{tail}" + (f"\n  {self.hint}" if self.hint else ""), file=file, err=True)


class Misused(Ended):
    """The command line or a setting is wrong."""

    exit_code = USAGE


class Refused(Ended):
    """The server's deterministic no. `status` is its HTTP status."""

    def __init__(self, message: str, *, status: int = 0, code: str = "", hint: str = "", request_id: str = "") -> None:
        super().__init__(message, code=code, hint=hint, request_id=request_id)
        self.status = status


class Unreachable(Ended):
    """Nothing was applied; the same command can be given again."""

    exit_code = UNREACHABLE


class Busy(Unreachable):
    """The same, and the server itself said so."""


class Unknown(Ended):
    """The outcome is not known."""

    exit_code = UNKNOWN
