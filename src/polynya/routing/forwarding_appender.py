"""The bound appender of a stream whose group this core may lead."""

from __future__ import annotations

from functools import partial

from polynya.local.api import AppendTo
from polynya.routing.forwarding import Forwarding
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.replies import Done


class ForwardingAppender:
    """The bound appender of one stream of a group that this core may lead. While the group is
    `direct`, an append goes to `here`, the bound appender of the local stream."""

    __slots__ = ("_forwarding", "_group", "_here")

    def __init__(self, forwarding: Forwarding, group: int, here: AppendTo) -> None:
        self._forwarding = forwarding
        self._group = group
        self._here = here

    def append(self, command: Append | Produce, done: Done) -> None:
        """Propose an append to the stream."""
        forwarding, group = self._forwarding, self._group
        if group in forwarding.direct:
            forwarding.demand.here[group] += 1
            self._here(command, partial(forwarding.answered, group, command, done))
        elif forwarding.is_diskless(group, command.name):
            forwarding.diskless.append(group, command, done)
        else:
            forwarding.propose(group, command, done)
