"""One consumer group in work: its state machine, the calls that wait, its timer, its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from polynya.stream.features.consumer_groups.calls import Answer, GroupError, Outcomes
from polynya.stream.features.consumer_groups.classic import ClassicGroup
from polynya.stream.features.consumer_groups.commands import ConsumerGroupPut, ConsumerPut
from polynya.stream.features.consumer_groups.effects import Log
from polynya.stream.features.consumer_groups.modern import ModernGroup
from polynya.stream.replies import Code, Done, Reply

GroupT = TypeVar("GroupT", bound=ClassicGroup | ModernGroup)
Propose = Callable[[ConsumerGroupPut | ConsumerPut, Done], None]


def clock_ms() -> int:
    """Return the loop's time: sessions must not end when the wall clock jumps. It is rounded, so a
    timer for a deadline is never one millisecond early, and never set again at once."""
    return round(asyncio.get_running_loop().time() * 1000)


class RunningGroup(Generic[GroupT]):
    """A group whose Raft group this core leads. `propose` logs; `on_fault` drops this object."""

    def __init__(
        self, group: GroupT, propose: Propose, on_fault: Callable[[GroupError], None]
    ) -> None:
        self.group = group
        self._propose = propose
        self._on_fault = on_fault
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._tickets = 0
        self._logging = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._set_timer()

    async def ask(self, call: Callable[[int], None]) -> Answer:
        """Give a call to the group, with a ticket, and wait for its answer."""
        self._tickets += 1
        ticket = self._tickets
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        call(ticket)
        self.settle()
        try:
            return await future
        finally:
            self._waiting.pop(ticket, None)

    @property
    def is_idle(self) -> bool:
        """Report whether the log has all of the group, and nothing waits."""
        return self.group.is_idle and not self._logging and not self._waiting

    def settle(self) -> None:
        """Carry out the effects, and set the timer."""
        for effect in self.group.take_effects():
            if isinstance(effect, Log):
                self._log(effect)
            else:
                self._answer(effect.ticket, effect.answer)
        if not self._closed:
            self._set_timer()

    def close(self, error: GroupError) -> None:
        """Answer all that waits with an error; this core has lost the group."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for ticket in tuple(self._waiting):
            self._answer(ticket, Outcomes([error]))

    def _answer(self, ticket: int, answer: Answer) -> None:
        future = self._waiting.get(ticket)
        if future is not None and not future.done():
            future.set_result(answer)

    def _log(self, effect: Log) -> None:
        self._logging += 1

        def done(outcome: Reply | BaseException) -> None:
            self._logging -= 1
            if self._closed:
                return
            if isinstance(outcome, BaseException):
                self._on_fault(GroupError.NOT_COORDINATOR)
            elif outcome.code != Code.OK:
                full = outcome.code == Code.TOO_MANY
                self._on_fault(
                    GroupError.GROUP_MAX_SIZE_REACHED if full else GroupError.NOT_COORDINATOR
                )
            else:
                for reply in effect.then:
                    self._answer(reply.ticket, reply.answer)
                self.group.logged(effect.put)
                self.settle()

        self._propose(effect.put, done)

    def _set_timer(self) -> None:
        """Wake at the next deadline. A timer that is early enough stays: heartbeats move
        deadlines only back."""
        deadline = self.group.next_deadline()
        if deadline is None:
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() * 1000 <= deadline:
                return
            self._timer.cancel()
        self._timer = loop.call_at(max(deadline, clock_ms() + 1) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.group.tick(clock_ms())
        self.settle()
