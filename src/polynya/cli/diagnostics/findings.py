"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass

OK = "OK"
WARN = "WARN"  # it works, but not as it should
FAIL = "FAIL"  # it will not work


@dataclass(frozen=True)
class Finding:
    """`said` is the observation; `step` is the fix, empty if none is needed."""

    name: str
    status: str
    said: str
    step: str = ""
