"""The commands that a group sends to groups, and the fork attempts that they are about."""

from __future__ import annotations

from polynya.stream.command import Command
from polynya.stream.state.changes import Changes, remember


class Outbox:
    """Idempotent commands for groups, by message number, until they are acknowledged."""

    def __init__(self, changes: Changes) -> None:
        self.messages: dict[int, tuple[int, Command]] = {}
        self.counter = 0
        self._changes = changes

    def send(self, group: int, command: Command) -> None:
        """Put an idempotent command for a group (the own one included) into the outbox."""
        self.counter += 1
        self.messages[self.counter] = (group, command)
        self._changes.messages.add(self.counter)


class ForkAttempts:
    """The fork attempts that a group knows beside its forks."""

    def __init__(self, changes: Changes) -> None:
        # those whose pin awaits confirmation: attempt -> uid of the source
        self.unconfirmed: dict[str, int] = {}
        # those that are refused here from now on, oldest first
        self.refused: dict[str, None] = {}
        self._changes = changes

    def refuse(self, attempt: str) -> None:
        """Remember that this fork attempt must not be carried out from now on."""
        if remember(self.refused, attempt):
            self._changes.remember(self._changes.attempts, attempt)
