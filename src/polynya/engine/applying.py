"""Apply the committed and durable entries of a replicated group to its state machine: the hot path
of every member."""

from __future__ import annotations

from collections.abc import Callable, Collection

from polynya.raft import Entry, EntryKind
from polynya.replica.log import decode_command
from polynya.replica.member import Bundled, Member, Proposal, ReceivedEntry
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Bundle
from polynya.stream.replies import Reply

_COMMAND = EntryKind.COMMAND


def apply_committed(
    member: Member,
    on_applied: Callable[[int, Command, Reply], None],
    answer: Callable[[Proposal, Reply], None],
    watched: Collection[int],
) -> int:
    """Apply them in log order; return the number of commands. `answer` is called for each command
    proposed here. Without a `watched` stream, `on_applied` does not hear of appends."""
    committed, durable, group, count = member.committed, member.raft.durable, member.group, 0
    apply, number = group.machine.apply, group.number
    while committed and committed[0].index <= durable:
        entry = committed.popleft()
        assert entry.index == group.applied_index + 1, "entries are applied in order, once"
        group.applied_index, group.term = entry.index, entry.term
        if entry.kind != _COMMAND:
            continue
        command, parts = _taken(entry)
        reply = apply(command, entry.position)
        if member.proposals and member.proposals[0] is entry:
            member.proposals.popleft()
        else:
            parts = []
        if type(command) is not Bundle:
            count += 1
            if watched or type(command) is not Append:
                on_applied(number, command, reply)
            if parts:
                answer(parts[0], reply)
            continue
        count += len(command.commands)
        replies: list[Reply] = reply.detail
        if watched:
            for append, reply in zip(command.commands, replies, strict=True):
                on_applied(number, append, reply)
        for part, reply in zip(parts, replies, strict=False):
            answer(part, reply)
    return count


def _taken(entry: Entry) -> tuple[Command, list[Proposal]]:
    """Return an entry's command and its local proposals, and clear both on the entry: the log keeps
    only the payload."""
    if type(entry) is Bundled:
        parts, entry.parts = entry.parts, []
        if parts:
            return Bundle([part.command for part in parts]), parts  # type: ignore[misc]
    elif type(entry) is Proposal:
        command, entry.command = entry.command, None
        if command is not None:
            return command, [entry]
    elif type(entry) is ReceivedEntry:
        command, entry.command = entry.command, None
        if command is not None:
            return command, []
    return decode_command(entry.payload), []
