"""Appends on a condition: the rule of `AppendIf`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.command import applies, level_of
from polynya.stream.features.appends.commands import AppendIf
from polynya.stream.features.appends.rules import (
    AddBatch,
    add_batch,
    apply_append,
    judge_before_condition,
)
from polynya.stream.features.lifetimes.rules import tail_reply
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import is_stable, stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(AppendIf)


@applies(AppendIf)
def apply_append_if(
    machine: Machine, command: AppendIf, position: int, add: AddBatch = add_batch
) -> Reply:
    """Append to a stream if its tail is at the record of the condition.

    The condition is judged behind the producer, whose repeat succeeds, and before `Stream-Seq`. So
    what is checked before it is looked at again only when it does not hold."""
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
    stream = machine.directory.streams.get(command.name)
    if stream is None or is_met(stream, command.record):
        return apply_append(machine, command, position, add)
    reply = judge_before_condition(machine, stream, command, logged=add is add_batch)
    return reply or refusal_of_condition(stream, command.record)


def is_met(stream: Stream, record: int) -> bool:
    """Report whether the tail is at a record, and no transaction is open there."""
    return record == stream.next_record and is_stable(stream)


def refusal_of_condition(stream: Stream, record: int) -> Reply:
    """Return the refusal of a record that is not the tail. A tail with an open transaction may yet
    become one that the writer has not seen."""
    is_open = not is_stable(stream) and stable_of(stream)[0] <= record <= stream.next_record
    return tail_reply(Code.UNSTABLE if is_open else Code.PRECONDITION, stream)
