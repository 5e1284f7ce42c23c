"""Send reads to replicas of a group: on this core, on another core of this node, or on another
node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from polynya.base.errors import Unavailable
from polynya.local.local import LocalGroups
from polynya.routing.attempts import LOOK_SECONDS, PATIENCE_SECONDS
from polynya.routing.forwarding import Forwarding

HERE = -1
Answer = TypeVar("Answer")


class ReplicaFanOut:
    """The read router of one core. Reads change nothing, so a failed read is retried on the next
    replica."""

    def __init__(self, local: LocalGroups, core: int, cores: int) -> None:
        self._local, self._core, self._cores = local, core, cores
        self._forwarding: Forwarding | None = None

    def join(self, forwarding: Forwarding) -> None:
        """Enable routing to other nodes."""
        self._forwarding = forwarding

    async def ask(
        self,
        group: int,
        here: Callable[[], Awaitable[Answer]],
        there: Callable[[int], Awaitable[Answer]],
        *,
        local: bool = False,
    ) -> Answer:
        """Return the result of the first replica that responds. Raise the last replica's error, or
        Unavailable when none is found within the timeout. `local`: prefer this node's replica, even
        a stale one."""
        if self._forwarding is None:
            return await (here() if group in self._local.machines else there(group % self._cores))
        loop = asyncio.get_running_loop()
        begin, asked, fault = (
            loop.time(),
            set[int](),
            Unavailable("no node with a replica of the group is reachable; retry"),
        )
        # the last call may take as long again
        while loop.time() - begin <= PATIENCE_SECONDS + LOOK_SECONDS:
            place = next(
                (place for place in self._of(group, local=local) if place not in asked), None
            )
            if place is None and asked:
                break
            if place is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            asked.add(place)
            try:
                return await (here() if place == HERE else there(place))
            except Unavailable as found:
                fault = found
        raise fault

    async def ask_all(
        self,
        groups: Iterable[int],
        here: Callable[[list[int]], Awaitable[Answer]],
        there: Callable[[int, list[int]], Awaitable[Answer]],
        *,
        local: bool = False,
        missing: list[int] | None = None,
    ) -> list[Answer]:
        """Return one result for each core called. Each call covers some of the groups, and each
        group is in exactly one. Raise Unavailable when no replica of a group responds; with
        `missing`, append such groups to it instead."""
        candidates = {group: self._of(group, local=local) for group in groups}
        answers: list[Answer] = []
        while candidates:
            shares: dict[int, list[int]] = {}
            for group, places in candidates.items():
                if places:
                    shares.setdefault(places[0], []).append(group)
                elif missing is None:
                    raise Unavailable(f"no replica of group {group} responded; retry")
                else:
                    missing.append(group)
            candidates = {group: places for group, places in candidates.items() if places}
            asked = [
                here(some) if place == HERE else there(place, some)
                for place, some in shares.items()
            ]
            for some, answer in zip(
                shares.values(), await asyncio.gather(*asked, return_exceptions=True), strict=True
            ):
                if isinstance(answer, Unavailable) and self._forwarding is not None:
                    candidates |= {group: candidates[group][1:] for group in some}
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                answers.append(answer)
                for group in some:
                    del candidates[group]
        return answers

    def _of(self, group: int, *, local: bool) -> list[int]:
        """Return the cores that may serve reads of the group, best first. This core is first unless
        only other nodes reach the leader."""
        forwarding = self._forwarding
        if forwarding is None:
            return [HERE if group in self._local.machines else group % self._cores]
        here = self._local.fit(
            group
        ) and forwarding.place.node in forwarding.group_locations.map.replicas_of(group)
        others = forwarding.targets.to_read(group, local=local)
        return (
            [HERE] * here + others
            if local or forwarding.leaders.follows(group)
            else others + [HERE] * here
        )
