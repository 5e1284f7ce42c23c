"""The ways of an append: with its payload through the log, or for a diskless stream to the writer of
this core.

A core learns the profile of a stream from its replica of the group, or from a refusal
(WRONG_PROFILE), which was not applied. The append then goes the other way. Appends behind it keep
their order: those that come after the first refusal wait until the earlier ones are refused as
well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from polynya.base.errors import Unavailable
from polynya.base.limits import DISKLESS_BYTES_PER_CORE, DISKLESS_NAMES_MAX
from polynya.local.waiting import size_of
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.replies import Code, Done, Reply

SETTLE_SECONDS = 0.05  # after the first refusal; later ones are refused within it
TURNS_MAX = 8  # of one append: a profile that changes so often is somebody's mistake
_WRONG = int(Code.WRONG_PROFILE)
Packable = Append | Produce
Propose = Callable[[int, Command, Done], None]


class DisklessWriter(Protocol):
    """The interface of the writer of this core."""

    def append(self, group: int, command: Packable, done: Done) -> None: ...


class NoWriter:
    """The writer of a node without an object store: it takes nothing."""

    def append(self, group: int, command: Packable, done: Done) -> None:
        done(
            Unavailable(
                "the stream is diskless, and this node has no object store: set `cold.backend`"
            )
        )


class _Retry:
    """The callback of an append that is re-routed, with the number of its turns."""

    __slots__ = ("done", "turns")

    def __init__(self, done: Done, turns: int) -> None:
        self.done = done
        self.turns = turns

    def __call__(self, outcome: Reply | BaseException) -> None:
        self.done(outcome)


class _Waiting(msgspec.Struct):
    """An append that waits."""

    group: int
    command: Packable
    done: Done


class _Known(msgspec.Struct):
    """A diskless stream that this core knows. `packed` counts its appends at the writer.

    `held` is None while appends may go to the writer. `refused` come before `held`."""

    packed: int = 0
    leaves: bool = False  # it is not diskless any more
    refused: list[_Waiting] = []
    held: list[_Waiting] | None = None


class DisklessRoutes:
    """The diskless streams that one core knows by `names`. `through_log` proposes an append with its
    payload, and has `refused` or `answered` called for its outcome."""

    def __init__(self, through_log: Propose) -> None:
        self.names: dict[str, _Known] = {}  # longest idle first
        self.writer: DisklessWriter = NoWriter()
        self._through_log = through_log
        self._held_bytes = 0

    def expect(self, name: str, *, settles: bool = False) -> None:
        """Send the next appends of a stream to the writer: it is diskless. `settles`: earlier ones
        may be on their way through the log, so the next wait until these are refused."""
        if name not in self.names:
            known = self._learn(name)
            if settles:
                self._settle(name, known)

    def append(self, group: int, command: Packable, done: Done) -> None:
        """Append to a stream of `names`."""
        name = command.name
        known = self.names[name] = self.names.pop(name)
        if known.held is None:
            self._pack(known, group, command, done)
        else:
            self._hold(known.held, group, command, done)

    def watching(self, group: int, command: Command, done: Done) -> Done:
        """Return the callback for a command that is proposed to the log."""
        return partial(self.answered, group, command, done)

    def answered(
        self, group: int, command: Command, done: Done, outcome: Reply | BaseException
    ) -> None:
        """Handle the outcome of an append through the log: send it the other way if it was wrong."""
        if type(outcome) is Reply and outcome.code == _WRONG:
            self.refused(group, command, done)
        else:
            done(outcome)

    def refused(self, group: int, command: Command, done: Done) -> None:
        """Handle the refusal of an append through the log: its stream is diskless."""
        retry = _retry(done)
        if retry is None or not isinstance(command, (Append, Produce)):
            done(Unavailable("the profile of the stream changes; retry"))
            return
        name = command.name
        known = self.names.get(name)
        if known is None:
            known = self._learn(name)
            self._settle(name, known)
        if known.held is None:
            self._pack(known, group, command, retry)
        elif known.leaves:
            self._hold(known.held, group, command, retry)
        else:
            self._hold(known.refused, group, command, retry)

    # --- to the writer ----------------------------------------------------------------------------

    def _settle(self, name: str, known: _Known) -> None:
        """Hold the appends of a stream until earlier ones are refused."""
        known.held = []
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settled, name, known)

    def _settled(self, name: str, known: _Known) -> None:
        """Send what waits to the writer, in order."""
        waiting = known.refused + (known.held or [])
        known.refused, known.held = [], None
        for each in waiting:
            self._release(each)
            self.append(each.group, each.command, each.done)

    def _pack(self, known: _Known, group: int, command: Packable, done: Done) -> None:
        known.packed += 1
        self.writer.append(group, command, partial(self._packed, known, group, command, done))

    def _packed(
        self,
        known: _Known,
        group: int,
        command: Packable,
        done: Done,
        outcome: Reply | BaseException,
    ) -> None:
        """Handle the outcome of an append at the writer."""
        known.packed -= 1
        if type(outcome) is Reply and outcome.code == _WRONG:
            self._leave(known)
            retry = _retry(done)
            if retry is None:
                done(Unavailable("the profile of the stream changes; retry"))
            else:
                self._through_log(group, command, retry)
        else:
            done(outcome)
        if known.leaves and not known.packed:
            self._left(command.name, known)

    def _leave(self, known: _Known) -> None:
        """Hold what comes until the writer has answered all that it has."""
        if not known.leaves:
            known.leaves = True
            known.held = known.held or []

    def _left(self, name: str, known: _Known) -> None:
        """Send what waits through the log, in order."""
        waiting = known.held or []
        known.leaves, known.held = False, None
        if self.names.get(name) is known:
            del self.names[name]
        for each in waiting:
            self._release(each)
            self._through_log(each.group, each.command, each.done)

    # --- bounds -----------------------------------------------------------------------------------

    def _learn(self, name: str) -> _Known:
        if len(self.names) >= DISKLESS_NAMES_MAX:
            idle = (
                name
                for name, known in self.names.items()
                if not known.packed and known.held is None
            )
            oldest = next(idle, None)
            if oldest is not None:
                del self.names[oldest]
        known = self.names[name] = _Known()
        return known

    def _hold(self, waiting: list[_Waiting], group: int, command: Packable, done: Done) -> None:
        size = size_of(command.batch)
        if self._held_bytes + size > DISKLESS_BYTES_PER_CORE:
            done(Unavailable("too many appends wait for the profile of their stream; retry"))
            return
        self._held_bytes += size
        waiting.append(_Waiting(group, command, done))

    def _release(self, each: _Waiting) -> None:
        self._held_bytes -= size_of(each.command.batch)


def _retry(done: Done) -> _Retry | None:
    """Return the callback for another turn; None after too many."""
    if not isinstance(done, _Retry):
        return _Retry(done, 1)
    return None if done.turns == TURNS_MAX else _Retry(done.done, done.turns + 1)
