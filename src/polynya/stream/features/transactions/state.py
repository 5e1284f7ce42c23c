"""The logged state of transactional ids, in order of their last use."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

OUTCOMES_MAX = 8  # of an id: what orphans may ask for
_ID_BYTES = 1024  # of an object in memory with its outcomes, about
_PARTICIPANT_BYTES = 192


class TransactionState(enum.IntEnum):
    """The states of a transactional id."""

    EMPTY = 0  # no transaction since the last TxnInit
    ONGOING = 1
    PREPARE_COMMIT = 2  # decided; markers are on their way
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
ACTIVE = (TransactionState.ONGOING, *PREPARED)


class TransactionOutcome(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The decision about a transaction."""

    producer: int
    number: int
    commit: bool
    epoch: int  # of its markers
    decided_ms: int  # log time of the decision


class CommitHold(msgspec.Struct, array_like=True, gc=False):
    """The commits of a group during a round of a backup: held until a log time (0: not), and counted."""

    backup: str  # the round
    until_ms: int = 0
    commits: int = 0  # decided since the round began here


class Transaction(msgspec.Struct, array_like=True, gc=False):
    """A transactional id, with its open or last transaction."""

    id: str
    producer: int
    epoch: int
    number: int = 0  # of the transaction; each begin adds 1
    state: TransactionState = TransactionState.EMPTY
    timeout_ms: int = 0
    since_ms: int = 0  # begin of the transaction
    used_ms: int = 0
    streams: dict[int, tuple[int, str]] = {}  # participants: uid -> (group, name)
    groups: dict[str, int] = {}  # consumer group -> group
    messages: list[int] = []  # markers in the outbox
    # the pair before the last bump, whose repeats are answered; (-1, -1): none
    previous: tuple[int, int] = (-1, -1)
    version: int = 0  # of the protocol that began the transaction
    owner: int = 0  # a hash of the principal that took the id last
    outcomes: list[TransactionOutcome] = []  # newest last

    @property
    def pair(self) -> tuple[int, int]:
        return self.producer, self.epoch

    @property
    def is_active(self) -> bool:
        """Report whether a transaction is open, or its markers are on their way."""
        return self.state in ACTIVE

    @property
    def until_ms(self) -> int:
        """The time at which an open transaction is over its timeout."""
        return self.since_ms + self.timeout_ms

    @property
    def size(self) -> int:
        """The approximate bytes in memory."""
        names = [*(name for _, name in self.streams.values()), *self.groups]
        return _ID_BYTES + 2 * len(self.id) + sum(map(_participant_bytes, names))


class Transactions:
    """The transactional ids of one Raft group. The idle ones are in order of their last use.

    What is beside `idle` and `active` is derived from them."""

    def __init__(self, transactions: Iterable[Transaction] = ()) -> None:
        self.idle: dict[str, Transaction] = {}
        self.active: dict[str, Transaction] = {}
        self.by_producer: dict[int, Transaction] = {}  # former ids too, while an outcome has them
        self.by_message: dict[int, Transaction] = {}  # markers in the outbox
        self.owned: dict[int, int] = {}  # owner -> its ids
        self.bytes = 0
        self.hold: CommitHold | None = None  # of the last backup
        for transaction in sorted(transactions, key=lambda each: (each.used_ms, each.id)):
            self.add(transaction)
            for outcome in transaction.outcomes:
                self.by_producer[outcome.producer] = transaction
            for message in transaction.messages:
                self.by_message[message] = transaction

    def __len__(self) -> int:
        return len(self.idle) + len(self.active)

    def __iter__(self) -> Iterator[Transaction]:
        yield from self.idle.values()
        yield from self.active.values()

    def get(self, id_: str) -> Transaction | None:
        return self.idle.get(id_) or self.active.get(id_)

    def add(self, transaction: Transaction) -> None:
        """Add an id as the last one used."""
        (self.active if transaction.is_active else self.idle)[transaction.id] = transaction
        self.by_producer[transaction.producer] = transaction
        self.bytes += transaction.size
        self._count(transaction.owner, 1)

    def remove(self, transaction: Transaction) -> None:
        """Remove an idle id."""
        del self.idle[transaction.id]
        for producer in {transaction.producer, *(each.producer for each in transaction.outcomes)}:
            self.by_producer.pop(producer, None)
        self.bytes -= transaction.size
        self._count(transaction.owner, -1)

    def use(self, transaction: Transaction, log_ms: int) -> None:
        """Make an id the last one used, after its state has changed. `log_ms` never goes back."""
        transaction.used_ms = log_ms
        self.idle.pop(transaction.id, None)
        self.active.pop(transaction.id, None)
        (self.active if transaction.is_active else self.idle)[transaction.id] = transaction

    def set_owner(self, transaction: Transaction, owner: int) -> None:
        self._count(transaction.owner, -1)
        transaction.owner = owner
        self._count(owner, 1)

    def set_producer(self, transaction: Transaction, producer: int, epoch: int) -> None:
        """Give an id another pair. A former producer stays known while an outcome has it."""
        former, transaction.producer, transaction.epoch = transaction.producer, producer, epoch
        self.by_producer[producer] = transaction
        self._drop_former(transaction, former)

    def decide(self, transaction: Transaction, outcome: TransactionOutcome) -> None:
        """Remember a decision, and forget the one before the last `OUTCOMES_MAX`."""
        outcomes = [*transaction.outcomes, outcome]
        transaction.outcomes = outcomes[-OUTCOMES_MAX:]
        for former in outcomes[:-OUTCOMES_MAX]:
            self._drop_former(transaction, former.producer)

    def add_participants(
        self,
        transaction: Transaction,
        streams: Iterable[tuple[int, int, str]],
        groups: Iterable[tuple[int, str]],
    ) -> None:
        for group, uid, name in streams:
            if uid not in transaction.streams:
                self.bytes += _participant_bytes(name)
                transaction.streams[uid] = group, name
        for group, id_ in groups:
            if id_ not in transaction.groups:
                self.bytes += _participant_bytes(id_)
                transaction.groups[id_] = group

    def clear_participants(self, transaction: Transaction) -> None:
        self.bytes -= transaction.size
        transaction.streams, transaction.groups = {}, {}
        self.bytes += transaction.size

    def longest_idle(self, owner: int | None, before_ms: int) -> Transaction | None:
        """Return the id that is idle for longest, all or that of an owner, if it was used before
        this time. Of several of one time it is the first by name: a restart keeps no other order."""
        found: Transaction | None = None
        for transaction in self.idle.values():
            if transaction.used_ms >= before_ms:
                break
            if found is not None and transaction.used_ms > found.used_ms:
                break
            if owner not in (None, transaction.owner):
                continue
            if found is None or transaction.id < found.id:
                found = transaction
        return found

    def _drop_former(self, transaction: Transaction, producer: int) -> None:
        if producer != transaction.producer and not any(
            producer == outcome.producer for outcome in transaction.outcomes
        ):
            self.by_producer.pop(producer, None)

    def _count(self, owner: int, change: int) -> None:
        count = self.owned.get(owner, 0) + change
        if count:
            self.owned[owner] = count
        else:
            self.owned.pop(owner, None)


def _participant_bytes(name: str) -> int:
    return _PARTICIPANT_BYTES + len(name)
