"""Object-store checks of a whole cluster through one node: each group by its leader, shares of
groups concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits

if TYPE_CHECKING:
    from polynya.client.aio.wire import AsyncWire

AT_ONCE = 4  # concurrent shares, limited because the store is shared
PART_SECONDS = 300.0  # one part of a check may read tens of megabytes
VAIN_MAX = 15  # attempts without progress, with pauses: longer than an election
PAUSE_SECONDS = 1.0
Answer = dict[str, Any]


class Unseen(msgspec.Struct):
    """Groups that could not be checked."""

    groups: list[int]
    why: str


class WholeStore:
    """One check. It passes each response to `heard`. `pending` of the `total` groups are not fully
    checked."""

    def __init__(
        self, admin: Client, verb: str, question: dict[str, Any], heard: Callable[[Answer], None]
    ) -> None:
        self._admin, self._verb, self._question, self._heard = admin, verb, question, heard
        self.pending: dict[int, str] = {}  # group → its last checked pack
        self._why: dict[int, str] = {}
        self._answers = self.total = 0

    @property
    def done(self) -> int:
        return self.total - len(self.pending)

    async def look(self, groups: list[int] | None = None) -> list[Unseen]:
        """Check these groups (None: all); return those that could not be checked. Raises
        `exits.Ended` if the contacted node cannot do so."""
        from polynya.client.aio.wire import AsyncWire

        wire = AsyncWire(self._admin.options)
        try:
            return await self._look_on(wire, groups)
        finally:
            await wire.close()

    async def _look_on(self, wire: AsyncWire, groups: list[int] | None) -> list[Unseen]:
        vain = 0
        plan = await self._ask(wire, "shares", {"groups": groups})
        self.pending = {
            group: "" for part in plan["shares"] + plan["leaderless"] for group in part["groups"]
        }
        self.total = len(self.pending)
        while True:
            before = self._answers
            await self._look_once(wire, plan)
            vain = vain + 1 if self._answers == before else 0
            if not self.pending or vain == VAIN_MAX:
                return self._unseen()
            await asyncio.sleep(PAUSE_SECONDS)
            plan = await self._plan_again(wire)

    async def _look_once(self, wire: AsyncWire, plan: Answer) -> None:
        """Check all groups that have a leader. Groups of a share with different cursors are checked
        separately."""
        turn = asyncio.Semaphore(AT_ONCE)
        for part in plan["leaderless"]:
            self._why.update(dict.fromkeys(part["groups"], part["why"]))
        async with asyncio.TaskGroup() as tasks:
            for share in plan["shares"]:
                at: dict[str, list[int]] = {}
                for group in share["groups"]:
                    at.setdefault(self.pending[group], []).append(group)
                for after, groups in at.items():
                    tasks.create_task(self._look_at(wire, turn, share["node"], groups, after))

    async def _look_at(
        self,
        wire: AsyncWire,
        turn: asyncio.Semaphore,
        node: int,
        groups: list[int],
        after: str | None,
    ) -> None:
        async with turn:
            try:
                while groups and after is not None:
                    groups, after = await self._part(wire, groups, after)
            except exits.Ended as fault:
                where = f"node {node}: " if node else ""
                self._why.update(dict.fromkeys(groups, where + fault.message))

    async def _part(
        self, wire: AsyncWire, groups: list[int], after: str
    ) -> tuple[list[int], str | None]:
        """Check one part; return the remaining groups and the cursor, None at the end."""
        cursor = {"after": after} if after else {}
        answer = await self._ask(wire, self._verb, {**self._question, "groups": groups, **cursor})
        if answer["left"]:
            self._why.update(
                dict.fromkeys(answer["left"], "its leadership is moving between nodes")
            )
            return [group for group in groups if group not in answer["left"]], answer["next"]
        self._answers += 1
        self._heard(answer)
        for group in groups:
            if answer["next"] is None:
                del self.pending[group]
            else:
                self.pending[group] = answer["next"]
        return groups, answer["next"]

    async def _plan_again(self, wire: AsyncWire) -> Answer:
        try:
            return await self._ask(wire, "shares", {"groups": sorted(self.pending)})
        except exits.Ended as fault:
            return {
                "shares": [],
                "leaderless": [{"groups": list(self.pending), "why": fault.message}],
            }

    async def _ask(self, wire: AsyncWire, verb: str, question: dict[str, Any]) -> Answer:
        path = f"/v1/admin/store/{verb}"
        answer = await self._admin.send_on(wire, "POST", path, body=question, seconds=PART_SECONDS)
        if not answer.is_success:
            raise self._admin.refused(answer)
        found: Answer = answer.json()
        return found

    def _unseen(self) -> list[Unseen]:
        reasons: dict[str, list[int]] = {}
        for group in sorted(self.pending):
            reasons.setdefault(self._why.get(group, "no reason was reported"), []).append(group)
        return [Unseen(groups, why) for why, groups in reasons.items()]


def spelled_groups(groups: list[int]) -> str:
    """Format group numbers: `group 3`, `groups 0, 4-7 and 9`."""
    runs: list[list[int]] = []
    for group in sorted(groups):
        if runs and group == runs[-1][-1] + 1:
            runs[-1][1:] = [group]
        else:
            runs.append([group])
    spelled = ["-".join(map(str, run)) for run in runs]
    listed = ", ".join(spelled[:-1]) + (" and " if len(spelled) > 1 else "") + spelled[-1]
    return f"group{'s' if len(groups) > 1 else ''} {listed}"
