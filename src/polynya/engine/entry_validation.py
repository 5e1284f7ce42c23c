"""Validate the entries that a leader sends before they enter the log (docs/decisions/0022).

An entry must decode to a valid command (stream/command_validation.py). Once an invalid entry commits, it stops
every member that applies it, at every start. So the member rejects the entry and ignores that
leader for a while. If the leader is broken, the others elect a new one, whose log truncates the
entry. If this node's release is too old, the group goes on without it.
"""

from __future__ import annotations

import logging

from polynya.base.errors import InvalidMessage
from polynya.base.log_throttle import LogThrottle
from polynya.base.msgpack import UNREADABLE
from polynya.raft import EntryKind, Message
from polynya.raft.messages import Append
from polynya.replica.log import decode_heard
from polynya.replica.member import ReceivedEntry

DOUBT_MS = 10_000  # several election timeouts
_COMMAND = EntryKind.COMMAND
log = logging.getLogger("polynya.raft")


class EntryValidator:
    """The entry validator of one core."""

    def __init__(self) -> None:
        self._complaints = LogThrottle()
        self._doubted: dict[
            int, tuple[int, int, int]
        ] = {}  # group → the ignored node, its term as leader, and the end of the timeout

    def accept(self, message: Message, now_ms: int) -> bool:
        """Return True if the group may process the message. Decoded commands are stored with their
        entries, so that each is decoded once."""
        if self._doubted and self._is_doubted(message, now_ms):
            return False
        if type(message) is not Append or not message.entries:
            return True
        try:
            _read(message)
        except InvalidMessage as fault:
            self._doubted[message.group] = (message.sender, message.term, now_ms + DOUBT_MS)
            log.error(
                "a leader sent an invalid log entry: ignoring this leader for a while",
                extra={"error": str(fault)},
            )
            return False
        return True

    def dropped(self, node: int, fault: InvalidMessage, now_ms: int) -> None:
        """Log that a deferred message turned out to be invalid; it changed nothing."""
        times = self._complaints.due(now_ms / 1000, str(node))
        if times:
            log.warning(
                "invalid message from a node dropped",
                extra={"node": node, "reason": str(fault), "times": times},
            )

    def _is_doubted(self, message: Message, now_ms: int) -> bool:
        node, term, until_ms = self._doubted.get(message.group, (0, 0, 0))
        if now_ms >= until_ms > 0:
            del self._doubted[message.group]
            return False
        return message.sender == node and message.term == term


def _read(message: Append) -> None:
    entries = message.entries
    for number, entry in enumerate(entries):
        if entry.kind == _COMMAND:
            try:
                command = decode_heard(entry.payload)
            except (*UNREADABLE, InvalidMessage) as error:
                raise InvalidMessage(
                    f"group {message.group}: node {message.sender} sent entry {entry.index} "
                    f"without a command that this release knows ({error})"
                ) from None
            entries[number] = ReceivedEntry(
                entry.payload, entry.kind, entry.term, entry.index, entry.group, 0, command
            )
