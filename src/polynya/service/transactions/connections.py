"""The ages of the connections that use a transactional id.

A client that loses its connection repeats its requests on a new one. Those on the former one may
arrive later; in Kafka's first protocol they would change the next transaction, as it has the same
epoch. So a request of the present epoch is refused on a connection that is older than the newest
one of its id, or than the term of the leader. The core that leads the id's group remembers the ages
of its node's connections.
"""

from __future__ import annotations

import asyncio

import msgspec

from polynya.base.errors import NotLeader
from polynya.base.limits import TRANSACTION_CONNECTIONS_MAX
from polynya.service.node_service import NodeService

CONNECTIONS = 75  # messages between cores


class ConnectionUse(msgspec.Struct, array_like=True, gc=False):
    """A request about a transactional id. `opened`: the time of the first request of its connection,
    on the monotonic clock of the machine, which all cores of a node share."""

    group: int
    id: str
    producer: int  # -1: the request fences all former instances
    epoch: int
    opened: float
    node: int


class TransactionConnections:
    """The newest connection of each transactional id that this core leads."""

    def __init__(self, service: NodeService, node: int) -> None:
        self._service, self._node = service, node
        self._newest: dict[str, float] = {}
        self._led_since: dict[int, float] = {}
        service.rpc.serve(CONNECTIONS, ConnectionUse, bool | None, self._judge)

    def leadership_changed(self, group: int) -> None:
        """Note that a term of a group began or ended here."""
        self._led_since[group] = asyncio.get_running_loop().time()

    async def admit(
        self, group: int, id_: str, pair: tuple[int, int], opened: float
    ) -> bool | None:
        """Report whether a request may come on a connection; None: another node leads the group. If
        it has the present pair, its connection is the newest one from here on. Raises PolynyaError."""
        use = ConnectionUse(group, id_, *pair, opened, self._node)
        admitted: bool | None = await self._service.rpc.at_home(
            group, CONNECTIONS, use, self._judge
        )
        return admitted

    async def _judge(self, use: ConnectionUse) -> bool | None:
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
        self._newest.pop(use.id, None)
        self._newest[use.id] = max(newest, use.opened)
        if len(self._newest) > TRANSACTION_CONNECTIONS_MAX:
            del self._newest[next(iter(self._newest))]
        return True
