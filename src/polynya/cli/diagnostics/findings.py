"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass

OK = "OK"
WARN = "WARN"  # it works, but not as it should
FAIL = "FAIL"  # it will not work


@dataclass(frozen=True)
class Finding:
    """`said` is what was seen; `step` is what to do about it, empty when all is well."""

    name: str
    status: str
    said: str
    step: str = ""
