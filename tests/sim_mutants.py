"""Defects put into a core with replicas by hand, one at a time: each must be caught by a seed of the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polynya.base.errors import Unavailable
from polynya.node import replicated
from polynya.node.replicated import ReplicatedCore
from polynya.node.writing import Writes
from polynya.raft import Effects, Raft, Recovery, Role, leading, reading
from polynya.replica.member import Member


async def _at_once(core: ReplicatedCore, group: int) -> None:
    return None


def _count_alone(raft: Raft) -> None:
    if raft.durable > raft.commit and raft.log.term(raft.durable) == raft.term:
        raft.commit = raft.durable


def _without(field: str) -> Callable[..., None]:
    stage = Writes.stage

    def staged(writes: Writes, member: Member, effects: Effects) -> None:
        setattr(effects, field, None)
        stage(writes, member, effects)

    return staged


def _too_early() -> Callable[..., None]:
    stage = Writes.stage

    def staged(writes: Writes, member: Member, effects: Effects) -> None:
        stage(writes, member, effects)
        member.raft.persisted(effects.ticket, member.raft.now_ms)

    return staged


MUTANTS: dict[str, tuple[Any, str, Any]] = {  # name -> what is replaced, and by what
    "a read asks nobody": (ReplicatedCore, "linearize", _at_once),
    "a lease has no end": (reading, "has_lease", lambda raft: raft.role is Role.LEADER),
    "the leader alone is a majority": (leading, "_count", _count_alone),
    "it is said to be durable before it is": (Writes, "stage", _too_early()),
    "terms and votes are not written": (Writes, "stage", _without("hard_state")),
    "resets are not written": (Writes, "stage", _without("reset")),
    "proposals are taken before the own term's entry": (Member, "can_lead", lambda member: member.raft.role is Role.LEADER),
    "an unknown outcome is called a refusal": (replicated, "OutcomeUnknown", Unavailable),
    "a lost disk is not noticed": (Recovery, "blank", False),
    "segments go that the log needs": (ReplicatedCore, "floor_of", lambda core, number: core.journal.position),
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """With this defect."""
    owner, attribute, defect = MUTANTS[name]
    sound = getattr(owner, attribute)
    setattr(owner, attribute, defect)
    try:
        yield
    finally:
        setattr(owner, attribute, sound)
