"""Setting and clearing the attributes of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.command import applies, level_of
from polynya.stream.features.attributes.commands import ANY_REVISION, SetAttributes
from polynya.stream.features.attributes.held import attributes_of, has_room, hold
from polynya.stream.features.lifetimes.rules import is_surely_expired, tail_reply
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(SetAttributes)
def apply_set_attributes(machine: Machine, command: SetAttributes, position: int) -> Reply:
    """Set or clear a stream's attributes. Refusals: NOT_FOUND, GONE, INCARNATION, EVICTED,
    PRECONDITION, ATTRS_FULL."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    machine.counters.raise_level(level_of(SetAttributes))  # a standalone node gets no `SetLevel`
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.uid and command.uid != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    return _set(machine, stream, command)


def _set(machine: Machine, stream: Stream, command: SetAttributes) -> Reply:
    held = attributes_of(stream)
    revision = 0 if held is None else held.revision
    if command.revision not in (ANY_REVISION, revision):
        reply = tail_reply(Code.PRECONDITION, stream)
    elif not has_room(machine, stream, command.value):
        reply = tail_reply(Code.ATTRS_FULL, stream)
    else:
        revision = hold(machine, stream, command.value)
        machine.changes.streams.add(stream.uid)
        reply = tail_reply(Code.OK, stream)
    reply.detail = revision
    return reply
