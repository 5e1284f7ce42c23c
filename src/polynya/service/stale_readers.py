"""Move live readers from a replica without a leader to a node whose replica has one."""

from __future__ import annotations

import asyncio

from polynya.base.errors import PolynyaError
from polynya.local.local import LocalGroups
from polynya.routing import messages
from polynya.routing.directory import Directory
from polynya.routing.rpc import Rpc
from polynya.routing.send import Targets
from polynya.transport.handshake import node_of

ASKED_AT_ONCE = 16  # one call may take as long as an election


class StaleReaders:
    """The monitor of one core's live readers. Call `look` about once a second, apart from work that
    must not wait for other nodes."""

    def __init__(
        self, local: LocalGroups, directory: Directory, targets: Targets, rpc: Rpc
    ) -> None:
        self._local, self._rpc = local, rpc
        self._directory, self._targets = directory, targets
        # groups whose readers were disconnected; readers that stay want local state
        self._logged: set[int] = set()

    async def look(self) -> None:
        """Disconnect readers of groups whose leader only another node reaches. While no node
        reaches a leader, the readers stay."""
        watched = {uid >> 48: uid for uid in self._local.feeds.uids()}
        deaf = {
            group
            for group in watched
            if group in self._local.machines and not self._directory.knows(group)
        }
        self._logged &= deaf
        some = sorted(deaf - self._logged)
        for begin in range(0, len(some), ASKED_AT_ONCE):
            await asyncio.gather(
                *(
                    self._look_at(group, watched[group])
                    for group in some[begin : begin + ASKED_AT_ONCE]
                )
            )

    async def _look_at(self, group: int, uid: int) -> None:
        if await self._is_heard_elsewhere(group, uid) and not self._directory.knows(group):
            self._logged.add(group)
            self._local.cut_readers(group)

    async def _is_heard_elsewhere(self, group: int, uid: int) -> bool:
        machine = self._local.machines.get(group)  # the group may have left during the calls
        stream = None if machine is None else machine.directory.by_uid.get(uid)
        others = [core_id for core_id in self._targets.to_read(group) if node_of(core_id)]
        if stream is None or not others:
            return False
        try:
            await self._rpc.ask(others[0], messages.INFO, messages.Attach(group, stream.name))
        except PolynyaError:
            return False
        return True
