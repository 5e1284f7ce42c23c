"""Complete operations across groups: send outbox messages until they are acknowledged, and decide
fork attempts that a crash interrupted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from polynya.base.errors import PolynyaError
from polynya.service.node_service import NodeService
from polynya.service.transactions.marker_sender import MarkerSender
from polynya.stream.command import Command
from polynya.stream.features.forks.commands import Acknowledge, ConfirmPin, RefuseAttempt, Unpin
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.packs.commands import ReleasePack
from polynya.stream.replies import Code, Reply

# an older unconfirmed pin has lost its coordinator, which may need long reads from the object store
# …
PIN_PATIENCE_MS = 60_000
# … a pin from before a restart of this process most likely lost it then
PIN_PATIENCE_AFTER_START_MS = 10_000
_EVERY_MESSAGE = 1 << 64


class OutboxSender:
    """The outbox sender of one core. Call `pump` after turns, `sweep` every few seconds without
    overlap, and `leadership_changed` when a group may have lost its leader here."""

    def __init__(self, service: NodeService, term: Callable[[int], int] = lambda group: 0) -> None:
        """Create it. `term` returns the term of a Raft group."""
        self._service = service
        self._term = term
        self._terms: dict[int, int] = {}  # of the groups that were pumped
        self._sending: set[tuple[int, int]] = set()
        self._pumped: dict[int, int] = {}  # group → message counter at the last scan of its outbox
        self.markers = MarkerSender(service, lambda *sent: self._sending.discard(sent))
        self._began_ms = service.now_ms()
        self.failures = 0
        # group → last message up to which pack releases may be sent; all without an object store
        self.contained: Callable[[int], int] = lambda group: _EVERY_MESSAGE

    def pump(self) -> None:
        """Send the new outbox messages. Cheap when there are none."""
        for group, machine in self._service.local.led.items():
            begin = self._pumped.get(group, 0)
            if machine.outbox.counter > begin:
                self._terms[group] = self._term(group)
                self._pumped[group] = machine.outbox.counter
                self._send_all(
                    group, list(takewhile(begin.__lt__, reversed(machine.outbox.messages)))
                )

    def leadership_changed(self, group: int) -> None:
        """Scan the whole outbox of a group in each term: what another leader put into it, or could
        not send, is sent at once."""
        if group in self._service.local.led and self._terms.get(group) == self._term(group):
            return
        if self._pumped.pop(group, None) is not None:
            self.markers.drop(group)

    async def sweep(self) -> None:
        """Retry failed messages, and decide the pins whose coordinator is gone."""
        for group, machine in self._service.local.led.items():
            self._send_all(group, list(machine.outbox.messages))
        now_ms = self._service.now_ms()
        for group, machine in tuple(self._service.local.led.items()):
            for attempt, uid in tuple(machine.forks.unconfirmed.items()):
                source = machine.directory.by_uid.get(uid)
                pin = source.pins.get(attempt) if source is not None and source.pins else None
                if pin is None or pin.confirmed:
                    continue
                patience_ms = (
                    PIN_PATIENCE_MS
                    if pin.since_ms >= self._began_ms
                    else PIN_PATIENCE_AFTER_START_MS
                )
                if pin.since_ms + patience_ms <= now_ms:
                    await self._settle_pin(group, uid, attempt, pin.target_name)

    def _send_all(self, group: int, messages: list[int]) -> None:
        machine = self._service.local.machines.get(group)
        outbox = {} if machine is None else machine.outbox.messages
        markers = []
        for message in messages:
            if (
                message in outbox
                and (group, message) not in self._sending
                and self._may_go(group, message, outbox[message][1])
            ):
                self._sending.add((group, message))
                target, command = outbox[message]
                if isinstance(command, TxnMarkers):
                    markers.append((message, target, command))
                else:
                    self._send(group, message, target, command)
        for message, target, marked in sorted(markers, key=lambda each: each[0]):
            self.markers.send(group, message, target, marked)

    def _may_go(self, group: int, message: int, command: Command) -> bool:
        """Report whether a message may be sent. A pack release waits for the state snapshot that a
        recovery would start from."""
        return not isinstance(command, ReleasePack) or message <= self.contained(group)

    def _send(self, group: int, message: int, target: int, command: Command) -> None:
        def acknowledged(reply: Reply | BaseException) -> None:
            self._sending.discard((group, message))

        def applied(reply: Reply | BaseException) -> None:
            if isinstance(reply, BaseException) or reply.code == Code.DISK_FULL:
                self.failures += 1
                self._sending.discard((group, message))  # the next sweep retries it
            else:
                self._service.proposals.propose_to(group, Acknowledge(message), acknowledged)

        self._service.proposals.propose_to(target, command, applied)

    async def _settle_pin(self, group: int, uid: int, attempt: str, target_name: str) -> None:
        """Let the target's group decide: a fork that it has not created by now it will refuse
        later."""
        service = self._service
        try:
            asked = await service.call(
                service.group_of(target_name), RefuseAttempt(target_name, attempt, service.now_ms())
            )
            created = asked.code == Code.EXISTS
            await service.call(
                group,
                ConfirmPin(uid, attempt) if created else Unpin(uid, attempt, service.now_ms()),
            )
        except PolynyaError:
            self.failures += 1
