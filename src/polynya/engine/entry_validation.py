"""What a leader sends for the log is read before it is taken (docs/decisions/0022).

An entry that no command can be read from, or whose command makes no sense (stream/sense.py), must not get into any log: once it is committed it
ends every member that comes to it, at every start. So it is not taken, and nothing more is heard of that leader for a while: where it is the leader
that is broken, the others elect one of themselves, and what it had for the log is cut off; where it is this node that is too old, the others go on
without it.
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

DOUBT_MS = 10_000  # several elections
_COMMAND = EntryKind.COMMAND
log = logging.getLogger("polynya.raft")


class EntryValidator:
    """Of a core."""

    def __init__(self) -> None:
        self._complaints = LogThrottle()
        self._doubted: dict[int, tuple[int, int, int]] = {}  # group → a node, a term in which it leads, and until when it is doubted

    def accept(self, message: Message, now_ms: int) -> bool:
        """Whether it is for the group to hear. The commands of its entries are kept with them, so that they are read once."""
        if self._doubted and self._is_doubted(message, now_ms):
            return False
        if type(message) is not Append or not message.entries:
            return True
        try:
            _read(message)
        except InvalidMessage as fault:
            self._doubted[message.group] = (message.sender, message.term, now_ms + DOUBT_MS)
            log.error("an entry for the log makes no sense: its leader is not listened to for a while", extra={"error": str(fault)})
            return False
        return True

    def dropped(self, node: int, fault: InvalidMessage, now_ms: int) -> None:
        """A message that was held back made no sense when its turn came, and changed nothing."""
        times = self._complaints.due(now_ms / 1000, str(node))
        if times:
            log.warning("what a node says makes no sense", extra={"node": node, "reason": str(fault), "times": times})

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
                    f"group {message.group}: what node {message.sender} sends as entry {entry.index} is no command that this release knows ({error})"
                ) from None
            entries[number] = ReceivedEntry(entry.payload, entry.kind, entry.term, entry.index, entry.group, 0, command)
