"""Appends on a condition: the rule of `AppendIf`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.features.appends.commands import AppendIf
from polynya.stream.features.appends.producers import judge_producer
from polynya.stream.features.appends.rules import (
    AddBatch,
    add_batch,
    apply_append,
    body_crc,
    judge_state,
    media_type,
    other_type,
)
from polynya.stream.features.lifetimes.rules import tail_reply
from polynya.stream.features.profiles.rules import judge_logged
from polynya.stream.replies import Code, Reply
from polynya.stream.state.feature_level import level_of
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import is_stable, stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(AppendIf)


def apply_append_if(
    machine: Machine, command: AppendIf, place: int, add: AddBatch = add_batch
) -> Reply:
    """Append to a stream if its tail is at the record of the condition.

    The condition is judged behind the producer, whose repeat succeeds, and before `Stream-Seq`. So
    what is checked before it is looked at again only when it does not hold."""
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
    stream = machine.directory.streams.get(command.name)
    if stream is None or (command.record == stream.next_record and is_stable(stream)):
        return apply_append(machine, command, place, add)
    reply = judge_state(stream, command)
    if reply is None and add is add_batch:
        reply = judge_logged(machine, stream, command.batch)
    if reply is None and _has_other_type(stream, command):
        reply = other_type(stream)
    if reply is None and command.producer is not None:
        crc = body_crc(machine, command.batch)
        reply = judge_producer(stream, command.producer, command.now_ms, crc)
    return reply or tail_reply(_refusal(stream, command.record), stream)


def _has_other_type(stream: Stream, command: AppendIf) -> bool:
    return command.batch is not None and media_type(command.content_type) != media_type(
        stream.content_type
    )


def _refusal(stream: Stream, record: int) -> Code:
    """Return the refusal of a record that is not the tail. A tail with an open transaction may yet
    become one that the writer has not seen."""
    is_open = not is_stable(stream) and stable_of(stream)[0] <= record <= stream.next_record
    return Code.UNSTABLE if is_open else Code.PRECONDITION
