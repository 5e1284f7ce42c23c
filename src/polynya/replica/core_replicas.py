"""The replicas of a core: proposals in, entries out, replies once the entries are durable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from polynya.base.errors import ConfigError, CorruptData
from polynya.replica.log import decode_command, encode_bundle
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Bundle, Produce
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply


class PendingEntry(msgspec.Struct, gc=False):
    """A proposal in flight: the bytes for the journal, and the receiver of the answer. Its index is
    assigned at the start of its turn."""

    group: int
    command: Command
    payload: bytes
    token: Any  # the proposer's; returned with the reply
    term: int = 0
    index: int = 0
    position: int = 0


class AppendRun(PendingEntry, gc=False):
    """Appends of one turn and group that form one entry, each with its own reply. Command and
    payload are the first append's until `join` combines them at the start of the turn."""

    commands: list[Append | Produce] = msgspec.field(default_factory=list)
    payloads: list[bytes] = msgspec.field(default_factory=list)
    tokens: list[Any] = msgspec.field(default_factory=list)
    size: int = 0  # bytes of `payloads`

    def join(self) -> None:
        if len(self.commands) > 1:
            self.command = Bundle(self.commands)
            self.payload = encode_bundle(self.payloads)
        self.payloads = []


class Group:
    """A replica that is its group's only voter."""

    __slots__ = ("applied_index", "last_index", "machine", "number", "term")

    def __init__(self, number: int, machine: Machine, *, term: int = 1, index: int = 0) -> None:
        self.number = number
        self.machine = machine
        self.term = term
        self.last_index = index
        self.applied_index = index


class CoreReplicas:
    """All groups of one core."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}

    def number(self, entries: Iterable[PendingEntry]) -> None:
        """Assign terms and indexes. Entries of one group must become durable in this order."""
        groups = self.groups
        for entry in entries:
            group = groups[entry.group]
            group.last_index = entry.index = group.last_index + 1
            entry.term = group.term

    def commit(self, entry: PendingEntry) -> Reply:
        """Apply an entry that is durable, and so committed (a majority of one)."""
        group = self.groups[entry.group]
        index = group.applied_index + 1
        assert entry.index == index, "entries are applied in order, once"
        group.applied_index = index
        return group.machine.apply(entry.command, entry.position)

    def retract(self, entries: list[PendingEntry]) -> None:
        """Free the indexes of entries that failed to be written and are known to exist nowhere."""
        for entry in entries:
            group = self.groups[entry.group]
            group.last_index = min(group.last_index, entry.index - 1)

    def replay(self, number: int, term: int, index: int, payload: bytes, position: int) -> Command:
        """Apply a journal entry at start, the next after the last applied one. Raises CorruptData,
        and ConfigError for an entry of a newer release."""
        group = self.groups[number]
        if index != group.applied_index + 1:
            raise CorruptData(
                f"group {number}: entry {index} follows entry {group.applied_index} in the "
                "journal: entries are missing"
            )
        group.term = max(group.term, term)
        group.last_index = group.applied_index = index
        try:
            command = decode_command(payload)
        except msgspec.ValidationError as error:  # its checksum is correct, so the entry is intact
            raise ConfigError(
                f"group {number}: entry {index} of the journal is a command that this release "
                f"does not know ({error}): start this node with the "
                "release that wrote it, or a newer one; nothing was changed"
            ) from None
        group.machine.apply(command, position)
        return command
