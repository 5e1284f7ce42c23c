"""Entries of a replicated group that are committed and durable here go through its machine: the hot path of every member."""

from __future__ import annotations

from collections.abc import Callable

from polynya.raft import Kind
from polynya.replica.log import decode_command
from polynya.replica.member import Member, Proposal
from polynya.stream.commands import Command
from polynya.stream.replies import Reply

_COMMAND = Kind.COMMAND


def apply_committed(member: Member, on_applied: Callable[[int, Command, Reply], None], answer: Callable[[Proposal, Reply], None]) -> int:
    """All of them, in order, each once; returns how many were commands. `answer` is told of those that were proposed here."""
    committed, durable, group, count = member.committed, member.raft.durable, member.group, 0
    apply, number = group.machine.apply, group.number
    while committed and committed[0].index <= durable:
        entry = committed.popleft()
        assert entry.index == group.applied_index + 1, "entries are applied in order, once"
        group.applied_index, group.term = entry.index, entry.term
        if entry.kind != _COMMAND:
            continue
        count += 1
        command = None
        if type(entry) is Proposal:
            command, entry.command = entry.command, None  # the log keeps the entry, which needs it no more
        if command is None:
            command = decode_command(entry.payload)
        reply = apply(command, entry.place)
        on_applied(number, command, reply)
        if member.proposals and member.proposals[0] is entry:
            answer(member.proposals.popleft(), reply)
    return count
