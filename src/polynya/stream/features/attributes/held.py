"""The attributes that a group holds, and their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.limits import ATTRS_GROUP_BYTES
from polynya.stream.features.retention.trimming import extras_of, tidy
from polynya.stream.state.model import Attributes, Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


def attributes_of(stream: Stream) -> Attributes | None:
    """Return the attributes of a stream; None if it has none."""
    return None if stream.extras is None else stream.extras.attributes


def has_room(machine: Machine, stream: Stream | None, value: bytes | None) -> bool:
    """Report whether the group has room for the attributes of a stream, in place of those that it
    has. Those that are no larger always have."""
    held = None if stream is None else attributes_of(stream)
    more = (0 if value is None else len(value)) - (0 if held is None else len(held.value))
    return more <= 0 or machine.directory.attribute_bytes + more <= ATTRS_GROUP_BYTES


def hold(machine: Machine, stream: Stream, value: bytes | None) -> int:
    """Set or (None) clear the attributes of a stream, and return their revision: a number that no
    attributes of the group ever had; 0: there are none."""
    held = attributes_of(stream)
    if held is not None:
        machine.directory.attribute_bytes -= len(held.value)
    if value is None:
        if held is not None:
            extras_of(stream).attributes = None
            tidy(stream)
        return 0
    revision = machine.counters.next_revision()
    extras_of(stream).attributes = Attributes(revision, value)
    machine.directory.attribute_bytes += len(value)
    return revision
