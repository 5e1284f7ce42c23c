"""The command that sets the attributes of a stream: tag 14."""

from __future__ import annotations

from polynya.base.levels import ATTRIBUTES_LEVEL
from polynya.base.limits import ATTRS_BYTES_MAX
from polynya.stream.command import Command, command, its_name
from polynya.stream.command_validation import COUNTER, TIME, WIDE

ANY_REVISION = -1
NO_REVISION = 1 << 62  # no attributes ever have it


def fault_of_value(value: bytes | None) -> str:
    """Return why these bytes are no attributes, or ""."""
    if value is None or (2 < len(value) <= ATTRS_BYTES_MAX and value[:1] == b"{"):
        return ""
    return (
        f"the attributes have {len(value)} bytes; expected a JSON object of 3 to {ATTRS_BYTES_MAX}"
    )


@command(
    since=ATTRIBUTES_LEVEL,
    bounds={"now_ms": TIME, "uid": WIDE, "revision": (ANY_REVISION, COUNTER[1])},
    check=lambda command: fault_of_value(command.value),
    names=its_name,
)
class SetAttributes(Command, tag=14, frozen=True, gc=False):
    """Set or (None) clear the attributes of a stream. `uid`: the expected incarnation; 0: any.
    `revision`: that of the attributes which are replaced; 0: there are none. Level 4.

    The reply's detail is the revision afterwards, also of a refusal with PRECONDITION."""

    name: str
    value: bytes | None  # a JSON object, with its members in the order of their names
    now_ms: int
    uid: int = 0
    revision: int = ANY_REVISION
