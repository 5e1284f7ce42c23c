"""Structured log lines on stderr: logfmt or JSON, with the fields of `extra`, and a limit on
repeats.

Every package logs through the standard `logging` under the name `polynya.PACKAGE`; fields go into
`extra`: `log.warning("flush failed", extra={"group": 3, "request_id": id, "error": text})`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

REPEATS_MAX = 5  # lines of one location in the code …
# … per window; suppressed lines are counted, and the next line reports the count
REPEATS_SECONDS = 10.0
LOCATIONS_MAX = 1024  # locations remembered
END = "polynya.end"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/+*%@,;<>[]{}()!?&#~|$^"
)


def setup(level: str, shape: str, *, core: int | None = None, stream: TextIO | None = None) -> None:
    """Send the logs of this process to `stream` (default: stderr). `core` is None in the
    supervisor."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(shape, core=core))
    handler.addFilter(Repeats())
    root = logging.getLogger("polynya")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def say_end(reason: str) -> None:
    """Log the reason for this process's end: a plain last line for people, or an object in JSON
    logs."""
    logging.getLogger(END).critical("%s", reason)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class Formatter(logging.Formatter):
    """One line per record: ts, level, logger, core, message, then the fields in the order given,
    then the traceback as one field."""

    def __init__(self, shape: str, *, core: int | None = None) -> None:
        super().__init__()
        self._render = _json if shape == "json" else _logfmt
        self._core = "supervisor" if core is None else core

    def format(self, record: logging.LogRecord) -> str:
        if record.name == END and self._render is _logfmt:
            return f"polynya: {record.getMessage()}"
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        row: dict[str, Any] = {
            "ts": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("polynya."),
            "core": self._core,
            "msg": record.getMessage(),
        }
        row.update(fields_of(record))
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return self._render(row)


class Repeats(logging.Filter):
    """A filter that passes at most `REPEATS_MAX` lines of one location per window. The next line
    carries `suppressed`, the number held back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._locations: dict[
            tuple[str, int, int], list[float]
        ] = {}  # location -> start of the window, lines passed, lines held back

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        location = (record.pathname, record.lineno, record.levelno)
        window = self._locations.get(location)
        if window is None:
            if len(self._locations) >= LOCATIONS_MAX:
                self._locations.pop(next(iter(self._locations)))
            window = self._locations[location] = [now, 0, 0]
        if now - window[0] >= REPEATS_SECONDS:
            if window[2]:
                record.suppressed = int(window[2])
            window[:] = [now, 0, 0]
        if window[1] >= REPEATS_MAX:
            window[2] += 1
            return False
        window[1] += 1
        return True


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, default=str, separators=(",", ":"))


def _logfmt(row: dict[str, Any]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in row.items())


def _quoted(value: Any) -> str:
    text = (
        "true"
        if value is True
        else "false"
        if value is False
        else ""
        if value is None
        else str(value)
    )
    if text and _PLAIN.issuperset(text):
        return text
    # escapes control characters too: log text must not control the reader's terminal
    return json.dumps(text)
