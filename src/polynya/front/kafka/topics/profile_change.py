"""The change of a topic's profile, which is that of all its partitions.

The topic first gets a config that names the profile which its partitions are to have. Then these get
the profile, and at last the topic itself. So any core that finds a topic between two steps can go on.
If a partition cannot change, all get the old profile again, by the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.names import REPLICATED
from polynya.front.kafka.configs import PROFILE, profile_of
from polynya.stream.features.profiles.commands import SetProfile
from polynya.stream.features.topics.commands import TopicChange
from polynya.stream.features.topics.state import PROFILE_CHANGING, Topic
from polynya.stream.replies import Code, Reply

# after this time another core goes on with a change
ALIVE_MS = 10_000
ALIVE_MS_EACH = 100  # more, for each partition


class Steps(Protocol):
    """The interface of the topics of a core that a change needs."""

    def now_ms(self) -> int:
        """Return the log time."""
        ...

    async def changed(self, command: TopicChange) -> Topic | None:
        """Propose a step, and return the topic after it; None: it changed first. Raises
        Unavailable, OutcomeUnknown."""
        ...

    async def profiles_set(self, topic: Topic, commands: Iterable[SetProfile]) -> list[Reply]:
        """Propose commands as long as the topic is as given. Raises Unavailable,
        OutcomeUnknown."""
        ...


class NotChanged(PolynyaError):
    """A partition could not change. All have the old profile."""


def is_abandoned(topic: Topic, now_ms: int) -> bool:
    """Report whether another core may go on with a change of a topic's profile, as it began long
    ago."""
    if topic.changing is None:
        return False
    return now_ms - topic.changing[1] >= ALIVE_MS + ALIVE_MS_EACH * topic.partitions


async def change(steps: Steps, topic: Topic, wanted: Mapping[str, str]) -> bool:
    """Give a settled topic configs with another profile. False: it changed first. Raises
    NotChanged, Unavailable, OutcomeUnknown."""
    marked = await _mark(steps, topic, wanted.get(PROFILE, REPLICATED))
    return marked is not None and await go_on(steps, marked, wanted)


async def go_on(steps: Steps, topic: Topic, wanted: Mapping[str, str] | None = None) -> bool:
    """Take the missing steps of a change, whose end gives the topic the configs `wanted`. False: it
    changed first. Raises NotChanged, Unavailable, OutcomeUnknown."""
    assert topic.changing is not None, "its profile changes"
    goal, before = topic.changing[0], topic.settings
    codes = await _set_all(steps, topic, goal)
    if codes == {Code.OK}:
        after = {**before, PROFILE: goal} if wanted is None else wanted
        return await _put(steps, topic, after) is not None
    old = before.get(PROFILE, REPLICATED)
    if goal != old:
        back = await _mark(steps, topic, old)
        if back is None:
            return False
        topic, codes = back, await _set_all(steps, back, old)
    if Code.NOT_YET in codes:  # the topics' leader tries again
        raise Unavailable(f"the partitions of topic '{topic.name}' change their profile; retry")
    await _put(steps, topic, before)
    raise NotChanged(f"not all partitions of topic '{topic.name}' could get the profile {goal}")


async def _mark(steps: Steps, topic: Topic, goal: str) -> Topic | None:
    return await _put(
        steps, topic, {**topic.settings, PROFILE_CHANGING: f"{goal} {steps.now_ms()}"}
    )


async def _put(steps: Steps, topic: Topic, configs: Mapping[str, str]) -> Topic | None:
    command = TopicChange(
        topic.name, topic.id, topic.revision, topic.partitions, sorted(configs.items())
    )
    return await steps.changed(command)


async def _set_all(steps: Steps, topic: Topic, goal: str) -> set[int]:
    """Give the partitions a profile. Return the codes of the replies."""
    now_ms, profile = steps.now_ms(), profile_of({PROFILE: goal})
    names = dict.fromkeys(topic.own_streams() + topic.streams)
    replies = await steps.profiles_set(topic, (SetProfile(name, profile, now_ms) for name in names))
    return {reply.code for reply in replies}
