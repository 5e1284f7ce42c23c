"""The questions about transactional ids and their answers. They travel between cores and nodes."""

from __future__ import annotations

import msgspec

from polynya.stream.features.transactions.commands import TxnAdd, TxnEnd, TxnInit
from polynya.stream.features.transactions.state import Transaction, TransactionState
from polynya.stream.replies import Code

TRANSACTIONS = 76  # messages between cores
ACT = 89
SETTLED = 126

STATE_NAMES = {  # as Kafka's tools show them
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
STATES = {name: state for state, name in STATE_NAMES.items()}


class TransactionRefused(Exception):
    """A coordinator refused, and nothing changed.

    NOT_FOUND: it does not know the id. FENCED: another pair of producer and epoch. TXN_STATE: no
    transaction is open, or its outcome was another one. TXN_CONCURRENT: the markers of the last one
    are on their way: repeat. TXN_HELD: a backup holds commits: repeat. TXN_LATE: the request was
    replaced while it waited. TOO_LARGE: too many participants. TOO_MANY: no room for the id."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class ConnectionUse(msgspec.Struct, array_like=True, gc=False):
    """A request about a transactional id, and its connection. Times are of the monotonic clock of
    the machine, which all cores of a node share."""

    group: int
    id: str
    producer: int  # -1: the request fences all former instances
    epoch: int
    opened: float  # the time of the first request of its connection
    node: int
    came: float = 0.0  # the time of the request


class TransactionAct(msgspec.Struct, array_like=True, gc=False):
    """A command for a coordinator that waits there for the end of the transaction before. `use`: of a
    client's request, which is not proposed if it is late by then."""

    group: int
    command: TxnInit | TxnAdd | TxnEnd
    wait_ms: int
    use: ConnectionUse | None = None


class TransactionEnd(msgspec.Struct, array_like=True, gc=False):
    """A question for the end of the last transaction of an id, for which its coordinator waits."""

    group: int
    id: str


class TransactionQuery(msgspec.Struct, array_like=True, gc=False):
    """A question for the ids of some Raft groups. Empty lists select all."""

    groups: list[int]
    ids: list[str] = []
    states: list[TransactionState] = []
    producers: list[int] = []
    since_ms: int = -1  # only open ones that began at this time or before


class TransactionDetails(msgspec.Struct, array_like=True, gc=False):
    """A transactional id as its coordinator has it. A list has no participants."""

    id: str
    group: int  # the Raft group of its coordinator
    producer: int
    epoch: int
    number: int
    state: TransactionState
    timeout_ms: int
    since_ms: int
    used_ms: int
    version: int
    streams: list[tuple[int, str]] = []  # uid, name
    groups: list[str] = []  # consumer groups


def details_of(group: int, transaction: Transaction, *, whole: bool) -> TransactionDetails:
    """Return what callers see of an id. `whole`: with its participants."""
    streams = [(uid, name) for uid, (_, name) in transaction.streams.items()] if whole else []
    return TransactionDetails(
        transaction.id,
        group,
        transaction.producer,
        transaction.epoch,
        transaction.number,
        transaction.state,
        transaction.timeout_ms,
        transaction.since_ms if transaction.is_active else -1,
        transaction.used_ms,
        transaction.version,
        streams,
        list(transaction.groups) if whole else [],
    )
