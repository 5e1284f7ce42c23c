"""The markers of decided transactions on their way to the groups of the participants.

Each pair of a group and a target has a queue of its own. While a target fails, a single message
probes it, so that a group without a quorum costs no more than that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from polynya.service.node_service import NodeService
from polynya.stream.features.forks.commands import AcknowledgeAll
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.replies import Code, Reply

IN_FLIGHT_MAX = 256  # messages to a target
PROBE_SECONDS = 0.1  # after the first failure of a target; doubles …
PROBE_SECONDS_MAX = 1.0  # … up to this
ACKNOWLEDGED_MAX = 1024  # messages in one entry


class _Target:
    """The messages of a group for one target, those that failed first."""

    __slots__ = ("failures", "in_flight", "messages", "probe")

    def __init__(self) -> None:
        self.messages = deque[tuple[int, TxnMarkers]]()
        self.in_flight = set[int]()
        self.failures = 0  # in a row
        self.probe: asyncio.TimerHandle | None = None  # until when nothing is sent

    @property
    def room(self) -> int:
        """The number of messages that may be sent now."""
        if self.probe is not None:
            return 0
        return (1 if self.failures else IN_FLIGHT_MAX) - len(self.in_flight)


class MarkerSender:
    """The markers of the groups that this core leads. `done` hears of each message that is
    acknowledged, or to be sent again by the caller."""

    def __init__(self, service: NodeService, done: Callable[[int, int], None]) -> None:
        self._service = service
        self._done = done
        self._targets: dict[tuple[int, int], _Target] = {}  # by group and target
        self._acknowledged: dict[int, list[int]] = {}  # by group
        # called with a group whose acknowledgements go into the log now
        self.wake: Callable[[int], None] = lambda group: None
        self._logging: set[tuple[int, int]] = set()  # acknowledgements in the log, but not applied
        self.failures = 0

    def send(self, group: int, message: int, target: int, command: TxnMarkers) -> None:
        """Send a message when its target has room for it."""
        key = (group, target)
        known = self._targets.get(key)
        if known is None:
            known = self._targets[key] = _Target()
        known.messages.append((message, command))
        self._pump(key, known)

    def is_acknowledging(self, group: int, messages: Iterable[int]) -> bool:
        """Report whether the acknowledgements of these messages are on their way into the log: what
        is proposed from now on comes behind them."""
        return all((group, message) in self._logging for message in messages)

    def drop(self, group: int) -> None:
        """Forget the messages of a group that is no longer led here, or in another term."""
        for key in [key for key in self._targets if key[0] == group]:
            known = self._targets.pop(key)
            if known.probe is not None:
                known.probe.cancel()
            for message in (*known.in_flight, *(message for message, _ in known.messages)):
                self._done(group, message)
        for message in self._acknowledged.pop(group, ()):
            self._done(group, message)

    def _pump(self, key: tuple[int, int], known: _Target) -> None:
        target = key[1]
        while known.messages and known.room > 0:
            message, command = known.messages.popleft()
            known.in_flight.add(message)
            answered = partial(self._answered, key, known, message, command)
            self._service.proposals.propose_to(target, command, answered)
        if not known.messages and not known.in_flight and self._targets.get(key) is known:
            del self._targets[key]

    def _answered(
        self,
        key: tuple[int, int],
        known: _Target,
        message: int,
        command: TxnMarkers,
        reply: Reply | BaseException,
    ) -> None:
        if self._targets.get(key) is not known:
            return  # of an earlier term
        known.in_flight.discard(message)
        if isinstance(reply, BaseException) or reply.code in (Code.DISK_FULL, Code.EVICTED):
            self.failures += 1
            known.messages.appendleft((message, command))
            if known.probe is None:
                pause = min(PROBE_SECONDS * 2.0**known.failures, PROBE_SECONDS_MAX)
                known.failures += 1
                loop = asyncio.get_running_loop()
                known.probe = loop.call_later(pause, self._probe, key, known)
            return
        known.failures = 0
        if known.probe is not None:
            known.probe.cancel()
            known.probe = None
        self._acknowledge(key[0], message)
        self._pump(key, known)

    def _probe(self, key: tuple[int, int], known: _Target) -> None:
        known.probe = None
        self._pump(key, known)

    def _acknowledge(self, group: int, message: int) -> None:
        """Log the acknowledgements of one pass of the loop together."""
        if not self._acknowledged:
            asyncio.get_running_loop().call_soon(self._log)
        self._acknowledged.setdefault(group, []).append(message)

    def _log(self) -> None:
        taken, self._acknowledged = self._acknowledged, {}
        for group, messages in taken.items():
            self.wake(group)  # first: what waited is logged by the turn of the acknowledgements
            for begin in range(0, len(messages), ACKNOWLEDGED_MAX):
                some = messages[begin : begin + ACKNOWLEDGED_MAX]
                logged = partial(self._logged, group, some)
                self._logging.update((group, message) for message in some)
                self._service.proposals.propose_to(group, AcknowledgeAll(some), logged)

    def _logged(self, group: int, messages: list[int], reply: Reply | BaseException) -> None:
        for message in messages:
            self._logging.discard((group, message))
            self._done(group, message)
