"""Appends to several streams of a group, all or nothing, before they are proposed."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Protocol

from msgspec import structs

from polynya.cold import FaultedStreams
from polynya.local.dependencies import Proposer
from polynya.local.hooks import KEEPS_JUDGEMENTS, proposed
from polynya.local.hot_memory import HotMemory
from polynya.local.lifetimes.lifecycle import StreamLifecycle
from polynya.stream.features.appends.commands import AppendAll, TxnAppend
from polynya.stream.features.appends.together import none_appended
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import Stream

KEEPS_JUDGEMENTS.update((AppendAll, TxnAppend))  # as other appends


class Changing(Protocol):
    """The interface of the changes of profiles: the names of streams that wait for one."""

    @property
    def changes(self) -> Container[str]: ...


class AtomicAppends:
    """Stamp the appends, and refuse those that need no log entry to be refused."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        proposer: Proposer,
        lifecycle: StreamLifecycle,
        profiles: Changing,
        faulted: FaultedStreams,
        memory: HotMemory,
        now_ms: Callable[[], int],
    ) -> None:
        self._machines = machines
        self._proposer = proposer
        self._lifecycle = lifecycle
        self._profiles = profiles
        self._faulted = faulted
        self._memory = memory
        self._now_ms = now_ms

    @proposed(AppendAll, TxnAppend)
    def propose(self, group: int, command: AppendAll | TxnAppend, done: Done) -> None:
        """Propose them behind the expiry of their streams, if they are within the limits of
        memory."""
        streams = self._machines[group].directory.streams
        size = 0
        for number, part in enumerate(command.commands):
            stream = streams.get(part.name)
            refused = self._refusal(part.name, stream)
            if refused:
                done(none_appended(number, Reply(refused)))
                return
            self._lifecycle.judge_time(group, stream)
            size += 0 if part.batch is None else len(part.batch.payload)
        if size and not self._memory.has_room(group, size):
            self._memory.refuse(size, done)
            return
        now_ms = self._now_ms()
        stamped = [structs.replace(part, now_ms=now_ms) for part in command.commands]
        self._proposer.propose(group, structs.replace(command, commands=stamped), done)

    def _refusal(self, name: str, stream: Stream | None) -> Code | None:
        if stream is not None and stream.uid in self._faulted:
            return Code.STREAM_FAULTED
        return Code.NOT_YET if name in self._profiles.changes else None
