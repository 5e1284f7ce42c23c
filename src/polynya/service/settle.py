"""What crosses groups is finished here: outbox messages are sent until acknowledged, and fork attempts that a crash cut are decided."""

from __future__ import annotations

from polynya.base.errors import PolynyaError
from polynya.service.node import NodeService
from polynya.stream.commands import Acknowledge, Command, ConfirmPin, RefuseAttempt, Unpin
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply

PIN_PATIENCE_MS = 10_000  # an unconfirmed pin older than this lost its coordinator


class Settler:
    """Call `pump` after turns and `sweep` now and then; both return at once."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._machines: dict[int, Machine] = service.local.machines
        self._sending: set[tuple[int, int]] = set()
        self._settling: set[tuple[int, str]] = set()
        self.failures = 0

    def pump(self) -> None:
        """Send what is in the outboxes and not on its way yet."""
        for group, machine in self._machines.items():
            if machine.outbox:
                for message, (target, command) in tuple(machine.outbox.items()):
                    if (group, message) not in self._sending:
                        self._sending.add((group, message))
                        self._send(group, message, target, command)

    def _send(self, group: int, message: int, target: int, command: Command) -> None:
        def acknowledged(reply: Reply | BaseException) -> None:
            self._sending.discard((group, message))

        def applied(reply: Reply | BaseException) -> None:
            if isinstance(reply, BaseException):
                self.failures += 1
                self._sending.discard((group, message))  # the next sweep sends it again
                return
            self._service.propose_to(group, Acknowledge(message), acknowledged)

        self._service.propose_to(target, command, applied)

    async def sweep(self) -> None:
        """Send again what failed, and settle the pins whose coordinator is gone."""
        self.pump()
        now = self._service.now_ms()
        for group, machine in self._machines.items():
            for attempt, uid in tuple(machine.unconfirmed.items()):
                pin = machine.by_uid[uid].pins[attempt]  # type: ignore[index]
                if pin.since_ms <= now - PIN_PATIENCE_MS and (uid, attempt) not in self._settling:
                    self._settling.add((uid, attempt))
                    await self._settle_pin(group, uid, attempt, pin.target_name)

    async def _settle_pin(self, group: int, uid: int, attempt: str, target_name: str) -> None:
        service = self._service
        try:
            asked = await service.call(service.group_of(target_name), RefuseAttempt(target_name, attempt, service.now_ms()))
            created = asked.code == Code.EXISTS
            await service.call(group, ConfirmPin(uid, attempt) if created else Unpin(uid, attempt, service.now_ms()))
        except PolynyaError:
            self.failures += 1
        finally:
            self._settling.discard((uid, attempt))
