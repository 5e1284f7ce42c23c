"""The assignors of the consumer protocol: who of the members reads which partition. Pure.

`uniform` gives each about as many partitions, and moves as few as it can. `range` gives each a
range of every topic's partitions, so that members with equal subscriptions read the same numbers
of all topics. Both are deterministic, and a result is a fixed point: assigned again it stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

TopicPartition = tuple[bytes, int]  # topic id, partition
TopicPartitions = frozenset[TopicPartition]
Topics = frozenset[bytes]
Assignor = Callable[
    [Mapping[str, Topics], Mapping[bytes, int], Mapping[str, TopicPartitions]],
    dict[str, TopicPartitions],
]
"""(topics by member, number of partitions by topic, previous result) -> partitions by member."""

_ROUNDS_MAX = 100  # of balancing where the members' subscriptions differ


def uniform(
    wanted: Mapping[str, Topics],
    counts: Mapping[bytes, int],
    previous: Mapping[str, TopicPartitions],
) -> dict[str, TopicPartitions]:
    """Assign equal numbers of partitions, and keep what members have."""
    subscriptions = set(wanted.values())
    if len(subscriptions) == 1:
        return _equal(sorted(wanted), _all_partitions(next(iter(subscriptions)), counts), previous)
    return _Balance(wanted, counts, previous).result()


def ranges(
    wanted: Mapping[str, Topics],
    counts: Mapping[bytes, int],
    previous: Mapping[str, TopicPartitions],
) -> dict[str, TopicPartitions]:
    """Assign a range of each topic's partitions to each of its subscribers, in their order."""
    found: dict[str, list[TopicPartition]] = {id_: [] for id_ in wanted}
    for topic, subscribers in _subscribers(wanted).items():
        size, more = divmod(counts.get(topic, 0), len(subscribers))
        begin = 0
        for number, id_ in enumerate(subscribers):
            end = begin + size + (number < more)
            found[id_] += [(topic, partition) for partition in range(begin, end)]
            begin = end
    return {id_: frozenset(partitions) for id_, partitions in found.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": ranges}
DEFAULT = "uniform"


def _all_partitions(topics: Iterable[bytes], counts: Mapping[bytes, int]) -> list[TopicPartition]:
    """Return all partitions of topics, in order."""
    return [(topic, number) for topic in sorted(topics) for number in range(counts.get(topic, 0))]


def _subscribers(wanted: Mapping[str, Topics]) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for id_ in sorted(wanted):
        for topic in wanted[id_]:
            found.setdefault(topic, []).append(id_)
    return dict(sorted(found.items()))


def _equal(
    ids: list[str], partitions: list[TopicPartition], previous: Mapping[str, TopicPartitions]
) -> dict[str, TopicPartitions]:
    """Assign among members with the same subscription, in linear time."""
    size, more = divmod(len(partitions), len(ids))
    free = set(partitions)
    found: dict[str, list[TopicPartition]] = {}
    for id_ in ids:
        kept = sorted(previous.get(id_, frozenset()) & free)
        has_more = len(kept) > size and more > 0
        more -= has_more
        found[id_] = kept[: size + has_more]
        free.difference_update(found[id_])
    left = iter([partition for partition in partitions if partition in free])
    missing = {id_: size - len(found[id_]) for id_ in ids}
    full = [id_ for id_ in ids if missing[id_] <= 0]
    while any(count > 0 for count in missing.values()):
        for id_, count in missing.items():
            if count > 0:
                found[id_].append(next(left))
                missing[id_] = count - 1
    others = [id_ for id_ in ids if id_ not in set(full)]
    candidates = (id_ for id_ in (*others, *full) if len(found[id_]) == size)
    for partition, id_ in zip(left, candidates, strict=False):
        found[id_].append(partition)
    return {id_: frozenset(each) for id_, each in found.items()}


class _Balance:
    """An assignment among members whose subscriptions differ: each free partition goes to the
    subscriber that has least, then single ones move while that evens out two members."""

    def __init__(
        self,
        wanted: Mapping[str, Topics],
        counts: Mapping[bytes, int],
        previous: Mapping[str, TopicPartitions],
    ) -> None:
        subscribers = _subscribers(wanted)
        shared: dict[tuple[str, ...], int] = {}
        self._class_of = {  # topics with the same subscribers share a heap
            topic: shared.setdefault(tuple(ids), len(shared)) for topic, ids in subscribers.items()
        }
        self._heaps = [[(0, id_) for id_ in ids] for ids in shared]
        self._classes_of: dict[str, list[int]] = {id_: [] for id_ in wanted}
        for ids, number in shared.items():
            for id_ in ids:
                self._classes_of[id_].append(number)
        self._found: dict[str, set[TopicPartition]] = {id_: set() for id_ in wanted}
        every = _all_partitions(subscribers, counts)
        free = set(every)
        for id_ in sorted(wanted):
            kept = {each for each in previous.get(id_, ()) if each[0] in wanted[id_]} & free
            self._found[id_] = kept
            free -= kept
        for partition in sorted(free, key=lambda each: (len(subscribers[each[0]]), each)):
            self._found[self._least(partition[0])].add(partition)

    def result(self) -> dict[str, TopicPartitions]:
        """Balance, and return the partitions by member."""
        for _ in range(_ROUNDS_MAX):
            if not self._move():
                break
        return {id_: frozenset(partitions) for id_, partitions in self._found.items()}

    def _least(self, topic: bytes) -> str:
        """Return the subscriber of a topic that has least. An entry of the heap may be too low,
        and is then corrected; `_move` adds one where it would be too high."""
        heap = self._heaps[self._class_of[topic]]
        while True:
            count, id_ = heap[0]
            now = len(self._found[id_])
            if count == now:
                return id_
            if count < now:
                heapq.heapreplace(heap, (now, id_))
            else:
                heapq.heappop(heap)  # a lower one of this member is there, or comes now
                heapq.heappush(heap, (now, id_))

    def _move(self) -> bool:
        """Move partitions from members that have at least two more than another subscriber."""
        moved = False
        for id_ in sorted(self._found, key=lambda each: (-len(self._found[each]), each)):
            for partition in sorted(self._found[id_]):
                to = self._least(partition[0])
                if len(self._found[id_]) - len(self._found[to]) < 2:
                    continue
                self._found[id_].remove(partition)
                self._found[to].add(partition)
                for number in self._classes_of[id_]:
                    heapq.heappush(self._heaps[number], (len(self._found[id_]), id_))
                moved = True
        return moved
