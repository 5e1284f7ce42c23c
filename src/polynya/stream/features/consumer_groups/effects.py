"""The effects of the state machines of groups: answers, and commands to log."""

from __future__ import annotations

import msgspec

from polynya.stream.features.consumer_groups.calls import Answer
from polynya.stream.features.consumer_groups.commands import ConsumerGroupPut, ConsumerPut


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The answer to the call of this ticket."""

    ticket: int
    answer: Answer


class Log(msgspec.Struct, frozen=True, gc=False):
    """A command to log. `then` follows if it is applied; call `logged` too."""

    put: ConsumerGroupPut | ConsumerPut
    then: list[Reply]


Effect = Reply | Log
