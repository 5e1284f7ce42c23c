"""The workers that share the lanes of a subscription: who is alive, and who keeps which lane.

A lane stays at its worker while that worker reports in time. Lanes of a worker that is gone go to
those with the fewest. A worker that has too many gives them up only in its own report, one by one
to the worker with the fewest; so it knows of it, and never loses a lane that it is at work on. In
the end no worker has two more than another. The lease of a subscription alone says who may
acknowledge: this is only who should ask."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from polynya.base.limits import SUBSCRIPTION_WORKERS_MAX
from polynya.stream.command import applies, level_of
from polynya.stream.features.subscriptions.commands import SubscriptionWorker
from polynya.stream.features.subscriptions.state import NO_ROSTER, Roster
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(SubscriptionWorker)
def apply_worker(machine: Machine, command: SubscriptionWorker, position: int) -> Reply:
    """Count a worker, or let it go: OK; the detail is [its lanes, the number of workers, True if
    others have to report: a lane has another keeper, or the worker is new]. NOT_FOUND: another
    incarnation, or none. EXISTS_DIFFERENT: the other workers share another number of lanes, the
    detail. TOO_MANY workers."""
    machine.counters.raise_level(level_of(SubscriptionWorker))  # a single node gets no `SetLevel`
    subscription = machine.subscriptions.owned.get(command.id)
    if subscription is None or command.uid != subscription.uid:
        return Reply(Code.NOT_FOUND)
    roster, name = subscription.roster, command.worker
    alive = roster.alive(command.now_ms)
    is_new = name not in alive and command.until_ms > 0
    others, lanes = alive.keys() - {name}, len(roster.keepers)
    if command.until_ms:
        if others and lanes != command.lanes:
            return Reply(Code.EXISTS_DIFFERENT, subscription.uid, detail=lanes)
        if is_new and len(others) >= SUBSCRIPTION_WORKERS_MAX:
            return Reply(Code.TOO_MANY, subscription.uid)
        alive[name], lanes = command.until_ms, command.lanes
    else:
        alive.pop(name, None)
    before = [*roster.keepers, *[""] * lanes][:lanes]
    keepers = shared(before, alive, name, command.busy)
    subscription.roster = Roster(alive, keepers) if alive else NO_ROSTER
    machine.changes.subscriptions.add(command.id)
    found = [subscription.roster.lanes_of(name), len(alive), is_new or keepers != before]
    return Reply(Code.OK, subscription.uid, detail=found)


def shared(
    keepers: list[str], alive: Collection[str], reporting: str, busy: Collection[int]
) -> list[str]:
    """Return the keeper of each lane after a report. `alive`: the workers, in the order in which
    they came; `busy`: lanes that the reporting one is at work on."""
    counts = dict.fromkeys(alive, 0)
    for keeper in keepers:
        if keeper in counts:
            counts[keeper] += 1
    keepers = [keeper if keeper in counts else "" for keeper in keepers]

    def give(lane: int) -> None:
        fewest = min(counts, key=counts.__getitem__)
        keepers[lane] = fewest
        counts[fewest] += 1

    for lane, keeper in enumerate(keepers):
        if not keeper and counts:
            give(lane)
    spare = [
        lane for lane, keeper in enumerate(keepers) if keeper == reporting and lane not in busy
    ]
    while spare and _has_too_many(counts, reporting):
        counts[reporting] -= 1
        give(spare.pop())
    return keepers


def _has_too_many(counts: dict[str, int], worker: str) -> bool:
    """Report whether a worker has more than its share, or a full share while another one has less
    than any share and none has more."""
    own, most = counts[worker], -(-sum(counts.values()) // len(counts))
    return own > most or (own == max(counts.values()) and own - min(counts.values()) >= 2)
