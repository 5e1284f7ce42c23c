"""The logged state of a group of the model, and its commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

EMPTY, ONGOING = "EMPTY", "ONGOING"
PREPARE_COMMIT, PREPARE_ABORT = "PREPARE_COMMIT", "PREPARE_ABORT"
COMPLETE_COMMIT, COMPLETE_ABORT = "COMPLETE_COMMIT", "COMPLETE_ABORT"
ABORTED, UNDECIDED = 4, 8  # flags of an entry
COMMIT, ABORT = "commit", "abort"
EPOCH_LAST = 7  # of a producer; the product's is 32766
PRODUCERS_MAX = 2  # of a stream
OUTCOMES_MAX = 8
RESTORED_PIDS = 10_000  # a restore leaves out so many; the product's is 2^32
PID_SHIFT = 16  # a producer's id is group << PID_SHIFT | counter; the product's is 47


class Code(Enum):
    OK = "ok"
    FENCED = "fenced"
    UNKNOWN_ID = "unknown id"
    INVALID = "invalid state"
    CONCURRENT = "concurrent"
    INCARNATION = "another incarnation"
    EVICTED = "evicted"
    TXN_ENDED = "ended"
    TXN_STATE = "transaction state"
    OTHER_OPEN = "another number is open"
    SEQUENCE = "sequence"
    NOT_COORDINATOR = "not coordinator"
    GENERATION = "generation"
    UNSTABLE = "unstable offsets"
    CHANGED = "changed meanwhile"


@dataclass(slots=True)
class Reply:
    code: Code
    value: Any = None


@dataclass(slots=True, frozen=True)
class Batch:
    """`aborted` is flag 4 of a batch. `last` stays when compaction removes records."""

    base: int
    last: int
    records: tuple[tuple[int, str, str], ...] = ()  # offset, key, value
    pid: int = -1
    epoch: int = -1
    sequence: int = -1
    number: int = 0
    control: str = ""
    aborted: bool = False

    @property
    def transactional(self) -> bool:
        return self.number > 0


@dataclass(slots=True, frozen=True)
class Entry:
    """A hot batch, or a slice of a pack. `inline`: a marker that is an entry of the index."""

    id: int
    batches: tuple[Batch, ...]
    hot: bool = False
    inline: bool = False
    flags: int = 0
    paged: bool = False

    @property
    def begin(self) -> int:
        return self.batches[0].base

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1


@dataclass(slots=True, frozen=True)
class Row:
    """An aborted transaction: its first record and its marker."""

    pid: int
    first: int
    marker: int


@dataclass(slots=True, frozen=True)
class Producer:
    epoch: int
    last: int
    receipts: tuple[tuple[int, int], ...] = ()  # sequence, base


@dataclass(slots=True, frozen=True)
class Open:
    first: int
    number: int
    since_ms: int


@dataclass(slots=True)
class Stream:
    uid: int
    name: str
    diskless: bool = False
    compacted: bool = False
    next: int = 0
    entries: list[Entry] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=dict)  # in order of use
    open: dict[int, Open] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    pins: tuple[int, ...] = ()  # ends of what forks inherit
    cleaned: int = 0

    @property
    def stable_end(self) -> int:
        return min((each.first for each in self.open.values()), default=self.next)


@dataclass(slots=True)
class Consumers:
    generation: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    pending: dict[int, tuple[int, dict[str, int]]] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Transaction:
    id: str
    producer: int
    epoch: int
    timeout_ms: int
    state: str = EMPTY
    number: int = 0
    since_ms: int = 0
    version: int = 2
    streams: dict[int, tuple[int, str]] = field(default_factory=dict)  # uid -> group, name
    groups: dict[str, int] = field(default_factory=dict)  # consumer group -> group
    messages: set[int] = field(default_factory=set)
    previous: tuple[int, int] = (-1, -1)
    outcomes: dict[tuple[int, int], tuple[bool, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Hold:
    backup: int = 0
    until_ms: int = 0
    commits: int = 0


@dataclass(slots=True)
class GroupState:
    number: int
    transactions: dict[str, Transaction] = field(default_factory=dict)
    pids: int = 0
    streams: dict[int, Stream] = field(default_factory=dict)  # by uid
    names: dict[str, int] = field(default_factory=dict)
    stubs: dict[str, Stream] = field(default_factory=dict)  # evicted, by name
    released: dict[int, Stream] = field(default_factory=dict)  # deleted, kept for forks
    consumers: dict[str, Consumers] = field(default_factory=dict)
    outbox: dict[int, tuple[int, TxnMarkers]] = field(default_factory=dict)
    next_message: int = 1
    next_entry: int = 1
    hold: Hold = field(default_factory=Hold)


# commands; `born` is the age of a client's connection, 0 within the cluster


@dataclass(slots=True, frozen=True)
class TxnInit:
    id: str
    timeout_ms: int
    producer: int = -1
    epoch: int = -1
    born: int = 0


@dataclass(slots=True, frozen=True)
class TxnAdd:
    id: str
    producer: int
    epoch: int
    version: int
    streams: tuple[tuple[int, int, str], ...] = ()  # group, uid, name
    groups: tuple[tuple[int, str], ...] = ()
    born: int = 0


@dataclass(slots=True, frozen=True)
class TxnNumber:
    """A linearizable read of the number under which a stream or group was added."""

    id: str
    producer: int
    epoch: int
    uid: int = 0
    group: str = ""


@dataclass(slots=True, frozen=True)
class TxnEnd:
    id: str
    producer: int
    epoch: int
    commit: bool
    version: int
    born: int = 0


@dataclass(slots=True, frozen=True)
class TxnExpire:
    id: str
    number: int
    force: bool = False


@dataclass(slots=True, frozen=True)
class TxnAsk:
    producer: int
    number: int


@dataclass(slots=True, frozen=True)
class TxnMarkers:
    producer: int
    epoch: int
    number: int
    commit: bool
    uids: tuple[tuple[int, str], ...]
    groups: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class TxnSettle:
    """The answer to TxnAsk, or a restore's abort. Without an epoch the producer keeps its own."""

    producer: int
    epoch: int
    number: int
    commit: bool
    uid: int = 0
    group: str = ""


@dataclass(slots=True, frozen=True)
class TxnHold:
    backup: int
    until_ms: int


@dataclass(slots=True, frozen=True)
class Acknowledge:
    messages: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class TxnOffsets:
    producer: int
    epoch: int
    number: int
    group: str
    generation: int
    positions: tuple[tuple[str, int], ...]


@dataclass(slots=True, frozen=True)
class CommitOffsets:
    group: str
    positions: tuple[tuple[str, int], ...]


@dataclass(slots=True, frozen=True)
class FetchOffset:
    group: str
    stream: str


@dataclass(slots=True, frozen=True)
class JoinGroup:
    group: str


@dataclass(slots=True, frozen=True)
class Produce:
    uid: int
    name: str
    values: tuple[tuple[str, str], ...]  # key, value
    pid: int = -1
    epoch: int = -1
    sequence: int = -1
    number: int = 0


@dataclass(slots=True, frozen=True)
class CommitSlices:
    """A pack of a diskless stream: each Produce is judged alone."""

    uid: int
    produces: tuple[Produce, ...]


@dataclass(slots=True, frozen=True)
class Create:
    name: str
    uid: int
    diskless: bool = False
    compacted: bool = False


@dataclass(slots=True, frozen=True)
class Delete:
    uid: int


@dataclass(slots=True, frozen=True)
class Evict:
    """`copy` is what the store has; `mark` says of which state."""

    uid: int
    mark: Any
    copy: Stream


@dataclass(slots=True, frozen=True)
class Recall:
    name: str


@dataclass(slots=True, frozen=True)
class Fork:
    uid: int
    point: int


@dataclass(slots=True, frozen=True)
class Unpin:
    uid: int
    point: int


@dataclass(slots=True, frozen=True)
class ReplaceSlices:
    """Entries of a stream make place for others: of hot batches (Publish), or of packs."""

    uid: int
    old: tuple[int, ...]
    new: tuple[Entry, ...]
    shortened: bool = False  # by compaction


@dataclass(slots=True, frozen=True)
class Cleaned:
    """A pass of compaction was taken whole."""

    uid: int
    began: int
    cleaned: int
