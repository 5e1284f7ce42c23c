"""The start of a new history after a restore, from copies of the groups' states that were taken one
after the other.

First survey every state, twice if there are forks; then call `reborn` on each. This reconciles what
the groups record about each other. The counters jump, so that data written after the copies, and
lost, is never mistaken for new data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from polynya.base.limits import MARKED_MAX
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.features.packs.commands import ReleasePack
from polynya.stream.features.subscriptions.state import State
from polynya.stream.features.tables.state import Table
from polynya.stream.features.transactions.rules import markers_of, outcome_of
from polynya.stream.features.transactions.state import (
    OUTCOMES_MAX,
    Transaction,
    TransactionOutcome,
    TransactionState,
)
from polynya.stream.parts import Fork
from polynya.stream.snapshots.encode import Image
from polynya.stream.state.model import Pack, Pin, Stream, StreamExtras
from polynya.stream.state.record_gaps import JUMP, Offset

REVISION_JUMP = 1 << 32  # of link revisions: other groups' copies may have later ones
# more streams than a group makes between two copies; the 48-bit counter lasts for 65,000 histories
UID_JUMP = 1 << 32

# more Kafka producers than begin between two copies; 47 bits last for 32,000 histories
PRODUCER_ID_JUMP = 1 << 32


# more elections than a group has after a copy; 31 bits last for 2,000 histories
EPOCH_JUMP = 1 << 20


class StreamLoss(msgspec.Struct, frozen=True):
    """A loss in a stream: the records from `record` to before `end`."""

    name: str
    uid: int
    record: int
    end: int
    what: str


class ForkHistory(msgspec.Struct, frozen=True):
    """A stream that inherits from another one."""

    name: str
    attempt: str
    record: int
    byte: int
    first_record: int


class ForkOrigin(msgspec.Struct, frozen=True):
    """A stream that others inherit from: its kept range, its pins (`attempts`), and its own fork
    point."""

    first_record: int
    first_byte: int
    next_record: int
    attempts: frozenset[str]
    fork: Fork | None


class Survey:
    """The facts that the groups record about each other. `rename` gives a pack's key in the new
    store."""

    def __init__(self, rename: Callable[[str], str] = lambda key: key) -> None:
        self.rename = rename
        self.forks: dict[int, dict[str, ForkHistory]] = {}  # uid of the source -> attempt -> fork
        self.origins: dict[int, ForkOrigin] = {}
        self.subscriptions: set[int] = set()  # uids
        self.packs: dict[
            int, dict[str, list[int]]
        ] = {}  # owner group -> pack -> groups that hold it
        self.tables: dict[int, Table] = {}  # tables with rows, by uid
        self.claimed: dict[
            int, dict[int, int]
        ] = {}  # group -> table -> the latest job that claimed there
        self.epoch_bases: list[int] = []  # of the histories before
        self.term = 0  # the highest one of a group
        self.outcomes: dict[tuple[int, int], TransactionOutcome] = {}  # by producer and number
        # tables to continue; set before any call of `reborn`
        self.kept: frozenset[int] = frozenset()

    def add(self, image: Image, term: int = 0) -> None:
        """Add a group's state, and its term if known. First pass over all groups."""
        self.epoch_bases = max(self.epoch_bases, image.epoch_bases, key=len)
        self.term = max(self.term, term)
        for key, held in image.held.items():
            self.packs.setdefault(held.owner_group, {}).setdefault(self.rename(key), []).append(
                image.group
            )
        for transaction in image.transactions:
            for outcome in transaction.outcomes:
                self.outcomes[outcome.producer, outcome.number] = outcome
        if image.subscriptions is not None:
            self.subscriptions.update(each.uid for each in image.subscriptions.owned)
        self.tables |= {
            table.uid: table for table in image.tables if table.committed and not table.dropped_ms
        }
        if image.group:
            self.claimed[image.group] = image.claimed_jobs
        for stream in image.streams:
            fork = stream.fork
            if fork is not None and not (stream.extras is not None and stream.extras.detached):
                found = ForkHistory(
                    stream.name, fork.attempt, fork.record, fork.byte, fork.first_record
                )
                self.forks.setdefault(fork.source_uid, {})[fork.attempt] = found

    def agree_on_tables(self) -> bool:
        """Report whether all groups agree with the meta group: each has seen the claims of each
        table's last committed job. If no later job committed, their claims state exactly which
        records are rows."""
        return all(
            jobs.get(uid, 0) >= table.committed
            for uid, table in self.tables.items()
            for jobs in self.claimed.values()
        )

    def next_epoch_base(self) -> int:
        """Return a base that exceeds every leader epoch of the histories before."""
        highest = (self.epoch_bases[-1] if self.epoch_bases else 0) + self.term
        return (highest // EPOCH_JUMP + 1) * EPOCH_JUMP

    def last_job(self, uid: int) -> int:
        """Return the highest job number of a table that any group has seen."""
        return max([self.tables[uid].job, *(jobs.get(uid, 0) for jobs in self.claimed.values())])

    def add_origins(self, image: Image) -> None:
        """Add the fork sources of a group's state. Second pass over all groups, needed only with
        forks."""
        for stream in image.streams:
            if stream.uid in self.forks:
                fork = None if stream.extras is not None and stream.extras.detached else stream.fork
                pins = frozenset(stream.pins or ())
                self.origins[stream.uid] = ForkOrigin(
                    stream.first_record, stream.first_byte, stream.next_record, pins, fork
                )

    def begin_of(self, fork: Fork, first: int) -> Offset | None:
        """Return where a stream with this fork begins now, or None if everything inherited from
        record `first` on still exists."""
        whole = (fork.record, fork.byte)
        origin = self.origins.get(fork.source_uid)
        # the source is gone, was copied too early, or lost its end with the disks
        if origin is None or origin.next_record < fork.record:
            return whole
        begin: Offset | None = None
        if origin.fork is not None and first < origin.fork.record:
            begin = self.begin_of(origin.fork, first)
        if fork.attempt not in origin.attempts:
            begin = max(begin or (0, 0), (origin.first_record, origin.first_byte))
        return min(begin, whole) if begin is not None and begin[0] > first else None


def reborn(image: Image, survey: Survey, *, now_ms: int) -> list[StreamLoss]:
    """Turn a group's state into the first of the new history. Returns the losses."""
    image.held = {survey.rename(key): held for key, held in image.held.items()}
    image.packs = {
        key: Pack(sorted(groups), now_ms)
        for key, groups in survey.packs.get(image.group, {}).items()
    }
    image.released = []
    image.writers = []  # no process of the old cluster goes on
    image.hold = None  # of the backup itself
    image.outbox = [message for message in image.outbox if not isinstance(message[2], ReleasePack)]
    image.uid_counter += UID_JUMP
    image.producer_id_counter += PRODUCER_ID_JUMP
    image.epoch_bases = [*survey.epoch_bases, survey.next_epoch_base()]
    image.map = None  # it describes the nodes of the old cluster
    image.watches = [watch for watch in image.watches if watch.table in survey.kept]
    image.claimed_jobs = {uid: job for uid, job in image.claimed_jobs.items() if uid in survey.kept}
    live = [table for table in image.tables if not table.dropped_ms]
    image.tables = [
        _table(table, image, number, survey, now_ms) for number, table in enumerate(live, 1)
    ]
    image.uid_counter += len(image.tables)
    _subscriptions(image, survey)
    _transactions(image, now_ms)
    _open_parts(image, survey, now_ms)
    notes: list[StreamLoss] = []
    for stream in image.streams:
        notes += _fork(stream, survey)
        _pins(stream, survey, now_ms)
        stream.tables = {
            uid: claim for uid, claim in (stream.tables or {}).items() if uid in survey.kept
        } or None
        _jump(stream)
    return notes


def _table(table: Table, image: Image, number: int, survey: Survey, now_ms: int) -> Table:
    """Return the table with its open job abandoned, under a job number that no group has seen. A
    table that is not kept starts over under a new uid, with its definition only."""
    if table.uid not in survey.kept:
        fresh = Table(
            image.group << 48 | image.uid_counter + number, table.name, table.prefix, now_ms
        )
        fresh.others, fresh.typed, fresh.hold = table.others, table.typed, table.hold
        fresh.columns, fresh.partitions = table.columns, table.partitions
        fresh.transform = table.transform
        return fresh
    table.job = survey.last_job(table.uid)
    table.abandoned, table.planned = table.job > table.committed, False
    return table


def _fork(stream: Stream, survey: Survey) -> list[StreamLoss]:
    """Adjust a fork to a source that is missing or has fewer records."""
    fork = stream.fork
    if (
        fork is None
        or stream.first_record >= fork.record
        or (stream.extras is not None and stream.extras.detached)
    ):
        return []
    position = survey.begin_of(fork, stream.first_record)
    if position is None:
        return []
    begin = stream.first_record
    stream.first_record, stream.first_byte = position
    if position[0] >= fork.record:
        stream.extras = stream.extras or StreamExtras()
        stream.extras.detached = True
    for pin in (stream.pins or {}).values():
        pin.first_record = max(pin.first_record, min(position[0], pin.record))
    return [
        StreamLoss(
            stream.name,
            stream.uid,
            begin,
            stream.first_record,
            f"{fork.source_name}, the source of the fork, no longer has these records",
        )
    ]


def _pins(stream: Stream, survey: Survey, now_ms: int) -> None:
    forks = survey.forks.get(stream.uid, {})
    for attempt, pin in list((stream.pins or {}).items()):
        pin.confirmed = attempt in forks
        # a fork of lost records: it inherits nothing from this stream
        if pin.record > stream.next_record and not stream.deleted:
            del (stream.pins or {})[attempt]
    stream.pins = stream.pins or None
    for attempt, fork in forks.items():
        if fork.record > stream.next_record:
            continue
        if attempt not in (stream.pins or {}) and fork.record > stream.first_record:
            stream.pins = stream.pins or {}
            first_record = max(fork.first_record, stream.first_record)
            stream.pins[attempt] = Pin(
                fork.name, fork.record, fork.byte, now_ms, confirmed=True, first_record=first_record
            )


def _jump(stream: Stream) -> None:
    """Skip record numbers, so that the next one differs from every lost one. A closed stream lost
    nothing after its end."""
    if stream.closed or stream.deleted:
        return
    tail = stream.next_record
    stream.next_record += JUMP
    for link in (stream.links or {}).values():
        if link.record >= tail:
            link.record = stream.next_record


def _transactions(image: Image, now_ms: int) -> None:
    """Give each transactional id a new producer: a client of the old history must not end the
    second half of a transaction whose first half is lost. Decisions stay, and open transactions are
    aborted."""
    for transaction in image.transactions:
        if transaction.state == TransactionState.ONGOING:
            _abort(image, transaction, now_ms)
        transaction.producer = image.group << 47 | image.producer_id_counter
        transaction.epoch, transaction.previous = 0, (-1, -1)
        image.producer_id_counter += 1


def _abort(image: Image, transaction: Transaction, now_ms: int) -> None:
    """Abort an open transaction, as its timeout does."""
    transaction.state = TransactionState.COMPLETE_ABORT
    for group, markers in markers_of(transaction, commit=False, bumped=True, now_ms=now_ms):
        image.message_counter += 1
        image.outbox.append((image.message_counter, group, markers))
        transaction.messages.append(image.message_counter)
        transaction.state = TransactionState.PREPARE_ABORT
    outcome = outcome_of(transaction, commit=False, bumped=True, now_ms=now_ms)
    transaction.outcomes = [*transaction.outcomes, outcome][-OUTCOMES_MAX:]


def _open_parts(image: Image, survey: Survey, now_ms: int) -> None:
    """End what transactions have open in the streams and consumer groups of this group, as a copy
    of their coordinator has decided; else they are aborted. No batch and no offset waits for an
    answer."""
    parts: dict[tuple[int, int, int], tuple[list[tuple[int, str]], list[str]]] = {}
    for key, uid, name in _open(image):
        uids, groups = parts.setdefault(key, ([], []))
        if uid:
            uids.append((uid, name))
        else:
            groups.append(name)
    for (producer, number, epoch), (uids, groups) in sorted(parts.items()):
        outcome = survey.outcomes.get(
            (producer, number), TransactionOutcome(producer, number, False, epoch, now_ms)
        )
        commit, decided_ms = outcome.commit, outcome.decided_ms
        batch = control_batch(producer, outcome.epoch, commit=commit, decided_ms=decided_ms)
        members = [*((each, "") for each in uids), *(((0, ""), each) for each in groups)]
        for begin in range(0, len(members), MARKED_MAX):
            some = members[begin : begin + MARKED_MAX]
            streams = [stream for stream, group in some if not group]
            names = [group for _, group in some if group]
            markers = TxnMarkers(
                producer, outcome.epoch, number, commit, batch, streams, names, now_ms
            )
            image.message_counter += 1
            image.outbox.append((image.message_counter, image.group, markers))


def _open(image: Image) -> Iterator[tuple[tuple[int, int, int], int, str]]:
    """Yield what is open: (producer, number, epoch), and the uid and name of a stream or 0 and the
    id of a consumer group."""
    for stream in image.streams:
        opened = stream.kafka.open if stream.kafka is not None else {}
        for producer, each in opened.items():
            yield (producer, each.number, each.epoch), stream.uid, stream.name
    for group in image.consumer_groups:
        for producer, pending in group.pending.items():
            yield (producer, pending.number, 0), 0, group.id


def _subscriptions(image: Image, survey: Survey) -> None:
    """Reset subscriptions to idle and relink them everywhere; remove the registrations of missing
    ones."""
    subscribed = image.subscriptions
    if subscribed is None:
        return
    for each in subscribed.owned:
        each.state, each.wake_id, each.stream, each.holder = State.IDLE, "", "", ""
        each.lease_until_ms = each.attempts = each.next_attempt_ms = 0
        each.generation += 1
        each.revision += REVISION_JUMP
        each.linked = 0
    gone = {
        registration.id
        for registration in subscribed.registrations
        if registration.uid not in survey.subscriptions
    }
    subscribed.registrations = [
        each for each in subscribed.registrations if each.uid in survey.subscriptions
    ]
    # from a copy taken after the subscription ended; its owner group's copy is older
    subscribed.dropped = [uid for uid in subscribed.dropped if uid not in survey.subscriptions]
    for stream in image.streams if gone else []:
        stream.links = {
            each: link for each, link in (stream.links or {}).items() if each not in gone
        } or None
