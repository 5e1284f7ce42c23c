"""Appends to several streams of a group, all or nothing: the rule of `AppendAll`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from polynya.stream.command import RULES, applies, level_of
from polynya.stream.features.appends.commands import Append, AppendAll, AppendIf
from polynya.stream.features.appends.conditions import is_met, refusal_of_condition
from polynya.stream.features.appends.rules import judge_before_condition, judge_behind_condition
from polynya.stream.features.lifetimes.rules import tail_reply
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(AppendAll)


@applies(AppendAll)
def apply_append_all(machine: Machine, command: AppendAll, position: int) -> Reply:
    """Judge every part by the state before the first one; if none is refused, append all. The parts
    are of different streams, so that no append changes what another one is judged by.

    One producer is enough to repeat the whole: if all parts with a producer are repeats, so is the
    whole. If only some are, the first one is refused."""
    counters = machine.counters
    counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
    parts = command.commands
    counters.log_ms = max(counters.log_ms, *(part.now_ms for part in parts))
    judged = [judge_append(machine, part) for part in parts]
    if all_repeated(parts, judged):
        return Reply(Code.DUPLICATE, detail=[result_of(machine, part) for part in parts])
    for number, reply in enumerate(judged):
        if reply is not None:
            return none_appended(number, reply)
    for number, part in enumerate(parts):
        if part.batch is not None or part.close:
            reply = RULES[type(part)](machine, part, position + number)
            assert reply.code in (Code.OK, Code.ALREADY_CLOSED), f"it was judged: {reply}"
    return Reply(Code.OK, detail=[result_of(machine, part) for part in parts])


def all_repeated(parts: Sequence[Append], judged: Sequence[Reply | None]) -> bool:
    """Report whether all parts with a producer, at least one, are repeats."""
    repeats = [reply is not None and reply.code == Code.DUPLICATE for reply in judged]
    return any(repeats) and all(
        is_repeat or part.producer is None for is_repeat, part in zip(repeats, parts, strict=True)
    )


def none_appended(number: int, reply: Reply) -> Reply:
    """Return the refusal of the whole because of one part's."""
    return Reply(Code.NONE_APPENDED, detail=[number, msgspec.to_builtins(reply)])


def judge_append(machine: Machine, command: Append | AppendIf) -> Reply | None:
    """Return the refusal or the repeat of an append, or None if it would be appended. Changes
    nothing."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    reply = judge_before_condition(machine, stream, command)
    if reply is not None and reply.code == Code.ALREADY_CLOSED:  # nothing to do, or a condition
        reply = None
    if reply is None and stream.uid in machine.directory.leased:
        return tail_reply(Code.WRONG_PROFILE, stream)
    if reply is None and isinstance(command, AppendIf) and not is_met(stream, command.record):
        reply = refusal_of_condition(stream, command.record)
    return reply or judge_behind_condition(stream, command)


def result_of(machine: Machine, command: Append) -> list[int | bool]:
    """Return the row of a part in the reply's detail: uid, record, byte, closed."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:  # of a repeat: it ended since
        return [0, 0, 0, True]
    return [stream.uid, stream.next_record, stream.next_byte, stream.closed]
