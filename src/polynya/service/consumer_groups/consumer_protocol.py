"""The coordinator's part for groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from typing import Protocol

from polynya.base.limits import CONSUMER_GROUPS_MAX
from polynya.service.consumer_groups.running import RunningGroup, clock_ms
from polynya.stream.features.consumer_groups.calls import (
    Answer,
    Commit,
    ConsumerHeartbeat,
    FetchOffsets,
    GroupError,
    HeartbeatAnswer,
    Leave,
    Outcomes,
)
from polynya.stream.features.consumer_groups.classic import ClassicGroup
from polynya.stream.features.consumer_groups.modern import ModernGroup
from polynya.stream.features.consumer_groups.modern_members import (
    JOIN_EPOCH,
    commit_errors,
    fetch_error,
)
from polynya.stream.features.consumer_groups.state import CONSUMER, ConsumerGroup
from polynya.stream.machine import Machine

AnyRunning = RunningGroup[ClassicGroup] | RunningGroup[ModernGroup]


class LedGroups(Protocol):
    """The groups of one Raft group that this core leads."""

    machine: Machine
    running: dict[str, AnyRunning]

    def find(self, id_: str) -> AnyRunning | None: ...

    def start_modern(self, stored: ConsumerGroup) -> RunningGroup[ModernGroup]: ...

    def drop_idle(self, id_: str) -> None: ...

    def timeouts(self, id_: str) -> tuple[int, int]: ...


async def heartbeat(led: LedGroups, call: ConsumerHeartbeat) -> Answer:
    """Answer a heartbeat of the consumer protocol."""
    running = led.find(call.group)
    if running is not None and isinstance(running.group, ClassicGroup):
        if not running.is_idle:
            why = f"group '{call.group}' has members of the classic protocol: stop them first"
            return _refused(call, GroupError.GROUP_ID_NOT_FOUND, why)
        led.drop_idle(call.group)
        running = None
    if running is None:
        stored = led.machine.consumer_groups.get(call.group)
        if call.epoch != JOIN_EPOCH:
            is_there = stored is not None and stored.kind == CONSUMER
            error = GroupError.UNKNOWN_MEMBER_ID if is_there else GroupError.GROUP_ID_NOT_FOUND
            return _refused(
                call, error, f"group '{call.group}' has no member '{call.member[:100]}'"
            )
        if stored is None and len(led.running) >= CONSUMER_GROUPS_MAX:
            why = f"the coordinator has {CONSUMER_GROUPS_MAX} groups, which is the limit"
            return _refused(call, GroupError.GROUP_MAX_SIZE_REACHED, why)
        running = led.start_modern(stored or ConsumerGroup(call.group))
    group = running.group
    assert isinstance(group, ModernGroup)
    group.session_ms, group.heartbeat_ms = led.timeouts(call.group)
    answer = await running.ask(lambda ticket: group.call(call, ticket, clock_ms()))
    led.drop_idle(call.group)
    if isinstance(answer, Outcomes):  # the coordinator has lost the group
        return _refused(call, GroupError(answer.errors[0]), None)
    return answer


async def leave(led: LedGroups, running: RunningGroup[ModernGroup], call: Leave) -> Answer:
    """Remove members for an administrator."""
    answer = await running.ask(lambda ticket: running.group.call(call, ticket, clock_ms()))
    led.drop_idle(call.group)
    return answer


def judged(group: ModernGroup, call: Commit) -> list[GroupError]:
    """Return the error of each offset of a commit."""
    count = len(call.offsets)
    if call.generation < 0 and not call.member:
        error = GroupError.UNKNOWN_MEMBER_ID if group.members else GroupError.NONE
        return [error] * count
    member = group.members.get(call.member)
    if member is None:
        return [GroupError.UNKNOWN_MEMBER_ID] * count
    partitions = [(each.topic, each.partition) for each in call.offsets]
    return list(commit_errors(member, call.generation, partitions))


def judged_fetch(group: ModernGroup, call: FetchOffsets) -> GroupError:
    """Return the error of reading offsets; without a member anybody may."""
    if not call.member or call.epoch < 0:
        return GroupError.NONE
    member = group.members.get(call.member)
    return GroupError.UNKNOWN_MEMBER_ID if member is None else fetch_error(member, call.epoch)


def _refused(call: ConsumerHeartbeat, error: GroupError, why: str | None) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, why, call.member)
