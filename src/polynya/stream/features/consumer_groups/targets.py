"""The targets of a group of the consumer protocol: which topics each member reads, and which
partitions it shall have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from polynya.base.limits import GROUP_MEMBERS_BYTES_MAX, GROUP_OFFSETS_MAX, GROUP_PATTERNS_MAX
from polynya.stream.features.consumer_groups.assignors import (
    ASSIGNORS,
    DEFAULT,
    TopicPartitions,
    Topics,
)
from polynya.stream.features.consumer_groups.calls import ConsumerHeartbeat, GroupError
from polynya.stream.features.consumer_groups.modern_members import ModernMember
from polynya.stream.features.consumer_groups.modern_records import Subscription
from polynya.stream.features.consumer_groups.patterns import InvalidPattern, PatternMatches
from polynya.stream.features.consumer_groups.topic_view import TopicView

Refusal = tuple[GroupError, str]
_Key = tuple[tuple[str, ...], str, tuple[str, ...] | None]


class TargetPlanner:
    """The subscriptions of one group against the topics that exist."""

    def __init__(self, topics: TopicView) -> None:
        self.topics = topics
        self._matches: dict[str, PatternMatches] = {}
        self._wanted: dict[_Key, Topics] = {}  # equal subscriptions share the result
        self._serial = -1  # of the topics that it knows; -1: some names are left to be matched

    @property
    def is_stale(self) -> bool:
        """Report whether the topics changed since the last plan."""
        return self._serial != self.topics.serial

    def plan(self, members: Collection[ModernMember], assignor: str) -> dict[str, TopicPartitions]:
        """Return the target of each member."""
        self._follow_topics(members)
        wanted = {each.id: self.wanted(each.subscription) for each in members}
        counts = self._counts(frozenset[bytes]().union(*set(wanted.values())))
        before = {each.id: each.target for each in members}
        if sum(counts.values()) > GROUP_OFFSETS_MAX:  # topics grew: the members keep what they have
            return {
                id_: frozenset(partition for partition in partitions if partition[0] in wanted[id_])
                for id_, partitions in before.items()
            }
        return ASSIGNORS[assignor](wanted, counts, before) if wanted else {}

    def wanted(self, subscription: Subscription) -> Topics:
        """Return the ids of the topics of a subscription that exist, and that it may read."""
        reads = subscription.reads
        key = (
            tuple(subscription.topics),
            subscription.regex,
            None if reads is None else tuple(reads),
        )
        found = self._wanted.get(key)
        if found is None:
            names = {*subscription.topics, *self._matched(subscription.regex)}
            known = self.topics.by_name
            found = self._wanted[key] = frozenset(
                known[name].id for name in names if name in known and subscription.may_read(name)
            )
        return found

    def fault(
        self, call: ConsumerHeartbeat, members: Collection[ModernMember], own: ModernMember | None
    ) -> Refusal | None:
        """Return the refusal of a subscription that is malformed or too large for the group."""
        if call.assignor and call.assignor not in ASSIGNORS:
            known_ones = ", ".join(sorted(ASSIGNORS))
            why = f"the assignor '{call.assignor[:100]}' is unknown; the assignors are {known_ones}"
            return GroupError.UNSUPPORTED_ASSIGNOR, why
        if call.regex and call.regex not in self._matches:
            refusal = self._add_pattern(call.regex, members)
            if refusal is not None:
                return refusal
        if call.topics is None and call.regex is None:
            return None
        others = [each for each in members if each is not own]
        size = sum(each.subscription_bytes for each in others) + sum(map(len, call.topics or ()))
        if size > GROUP_MEMBERS_BYTES_MAX // 2:
            return GroupError.GROUP_MAX_SIZE_REACHED, "the subscriptions of the group are too large"
        names = set(call.topics or ()) | set(self._matched(call.regex or ""))
        ids = {topic.id for name in names if (topic := self.topics.by_name.get(name))}
        known = frozenset[bytes]().union(*{self.wanted(each.subscription) for each in members})
        count = sum(self._counts(ids | known).values())
        if count > GROUP_OFFSETS_MAX and not ids <= known:
            return GroupError.GROUP_MAX_SIZE_REACHED, (
                f"the group would read {count} partitions; at most {GROUP_OFFSETS_MAX}"
            )
        return None

    def _follow_topics(self, members: Collection[ModernMember]) -> None:
        self._forget_patterns(members)
        if self._serial == self.topics.serial and len(self._wanted) <= 2 * len(members) + 1:
            return
        left = [each for each in self._matches.values() if not each.update(self.topics)]
        self._serial = -1 if left else self.topics.serial
        self._wanted.clear()

    def _add_pattern(self, text: str, members: Collection[ModernMember]) -> Refusal | None:
        try:
            matches = PatternMatches(text)
        except InvalidPattern as invalid:
            return GroupError.INVALID_REGULAR_EXPRESSION, str(invalid)
        self._forget_patterns(members)
        if len(self._matches) >= GROUP_PATTERNS_MAX:
            why = f"the group has {GROUP_PATTERNS_MAX} different expressions, the limit"
            return GroupError.INVALID_REGULAR_EXPRESSION, why
        self._matches[text] = matches
        if not matches.update(self.topics):
            self._serial = -1
        return None

    def _matched(self, regex: str) -> Iterable[str]:
        if not regex:
            return ()
        matches = self._matches.get(regex)
        if matches is None:  # of a group that was loaded
            matches = self._matches[regex] = PatternMatches(regex)
            if not matches.update(self.topics):
                self._serial = -1
        return matches.names

    def _forget_patterns(self, members: Collection[ModernMember]) -> None:
        if self._matches:
            used = {each.subscription.regex for each in members}
            self._matches = {text: each for text, each in self._matches.items() if text in used}

    def _counts(self, topics: Iterable[bytes]) -> Mapping[bytes, int]:
        """Return the numbers of partitions of topics that exist."""
        view = self.topics
        return {
            topic: view.by_name[name].partitions
            for topic in topics
            if (name := view.name_of.get(topic)) is not None
        }


def preferred_assignor(members: Iterable[ModernMember]) -> str:
    """Return the assignor that most members prefer."""
    votes = Counter(each.subscription.assignor for each in members)
    del votes[""]
    return max(sorted(votes), key=lambda name: votes[name], default=DEFAULT)
