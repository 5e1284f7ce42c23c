"""The ages of the connections that use a transactional id.

A client that loses its connection repeats its requests on a new one. Those on the former one may
arrive later; in Kafka's first protocol they would change the next transaction, as it has the same
epoch. So a request of the present epoch is refused on a connection that is older than the newest
one of its id, or than the term of the leader. The core that leads the id's group remembers the ages
of its node's connections.
"""

from __future__ import annotations

import asyncio

from polynya.base.errors import NotLeader
from polynya.base.limits import TRANSACTION_CONNECTIONS_MAX
from polynya.service.node_service import NodeService
from polynya.service.transactions.calls import ConnectionUse

CONNECTIONS = 75  # messages between cores


class TransactionConnections:
    """The newest connection of each transactional id that this core leads."""

    def __init__(self, service: NodeService, node: int) -> None:
        self._service, self._node = service, node
        self._newest: dict[str, float] = {}
        self._inits: dict[str, float] = {}  # when the newest one that was proposed had come
        self._led_since: dict[int, float] = {}
        service.rpc.serve(CONNECTIONS, ConnectionUse, bool | None, self._judge)

    def leadership_changed(self, group: int) -> None:
        """Note that a term of a group began or ended here."""
        self._led_since[group] = asyncio.get_running_loop().time()

    def use(
        self, group: int, id_: str, pair: tuple[int, int], opened: float, came: float = 0.0
    ) -> ConnectionUse:
        """Return a request of a client of this node."""
        return ConnectionUse(group, id_, *pair, opened, self._node, came)

    def is_late(self, use: ConnectionUse) -> bool:
        """Report whether a request must not be proposed any more. Ask right before it is: while it
        waited, its client may have given it up, and repeated it on another connection or node. A
        request that fences is late behind another one that came after it; a client that still waits
        for it repeats it. Raises NotLeader."""
        if use.producer >= 0 or use.node != self._node:
            return not self._judged(use)
        if use.group not in self._service.local.led:
            raise NotLeader(0)
        if use.came < max(self._inits.get(use.id, 0.0), self._led_since.get(use.group, 0.0)):
            return True
        _note(self._inits, use.id, use.came)
        return False

    async def admit(
        self, group: int, id_: str, pair: tuple[int, int], opened: float
    ) -> bool | None:
        """Report whether a request may come on a connection; None: another node leads the group. If
        it has the present pair, its connection is the newest one from here on. Raises PolynyaError."""
        use = self.use(group, id_, pair, opened)
        admitted: bool | None = await self._service.rpc.at_home(
            group, CONNECTIONS, use, self._judge
        )
        return admitted

    async def _judge(self, use: ConnectionUse) -> bool | None:
        return self._judged(use)

    def _judged(self, use: ConnectionUse) -> bool | None:
        if use.node != self._node:
            return None
        machine = self._service.local.led.get(use.group)
        if machine is None:
            raise NotLeader(0)
        known = machine.transactions.get(use.id)
        is_new = use.producer < 0
        is_present = known is not None and (use.producer, use.epoch) in (known.pair, known.previous)
        if not is_new and not is_present:
            return True  # the rule refuses it, and changes nothing
        newest = self._newest.get(use.id, 0.0)
        if not is_new and use.opened < max(newest, self._led_since.get(use.group, 0.0)):
            return False
        _note(self._newest, use.id, max(newest, use.opened))
        return True


def _note(times: dict[str, float], id_: str, time: float) -> None:
    """Remember the time of an id as the last one. The first one goes if there are too many."""
    times.pop(id_, None)
    times[id_] = time
    if len(times) > TRANSACTION_CONNECTIONS_MAX:
        del times[next(iter(times))]
