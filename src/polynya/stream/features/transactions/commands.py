"""The commands of the coordinator of transactions: tags 110-113, 116, 117 and 124, level 4."""

from __future__ import annotations

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import (
    BACKUP_ROUND_CHARACTERS_MAX,
    GROUP_ID_BYTES_MAX,
    GROUPS_MAX,
    HOLD_MS_MAX,
    MARKED_MAX,
    TRANSACTION_TIMEOUT_MS_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
)
from polynya.stream.command import Command, command
from polynya.stream.command_validation import GROUP, TIME, WIDE, Span

EPOCH_LAST = 32766  # of a producer: the end of a transaction has the epoch after it in its markers
EPOCH: Span = (0, EPOCH_LAST)
ANY_EPOCH: Span = (-1, EPOCH_LAST + 1)
PRODUCER: Span = (-1, WIDE[1])
TIMEOUT: Span = (1, TRANSACTION_TIMEOUT_MS_MAX)
VERSION: Span = (1, 2)  # of Kafka's protocol for transactions


def _id(command: TxnInit | TxnEnd | TxnExpire | TxnForget) -> str:
    if 0 < len(command.id.encode()) <= TRANSACTIONAL_ID_BYTES_MAX:
        return ""
    return f"a transactional id has 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes"


def _added(command: TxnAdd) -> str:
    count = len(command.streams) + len(command.groups)
    if count > MARKED_MAX:
        return f"{count} participants; a transaction has at most {MARKED_MAX}"
    for group, id_ in command.groups:
        if not 0 <= group <= GROUPS_MAX or not 0 < len(id_) <= GROUP_ID_BYTES_MAX:
            return f"'{id_[:64]}' in group {group} is no consumer group"
    return _id(command)  # type: ignore[arg-type]


@command(
    since=TRANSACTION_LEVEL,
    bounds={
        "now_ms": TIME,
        "timeout_ms": TIMEOUT,
        "producer": PRODUCER,
        "epoch": ANY_EPOCH,
        "owner": WIDE,
    },
    check=_id,
)
class TxnInit(Command, tag=110, frozen=True, gc=False):
    """Give a transactional id a producer with a new epoch. Detail: (producer, epoch). Level 4.

    With a producer: only if that pair is the present one; the former one is a repeat. FENCED;
    NOT_FOUND; TXN_CONCURRENT: repeat it, a transaction is being ended; TOO_MANY: a limit."""

    id: str
    now_ms: int
    timeout_ms: int
    producer: int = -1
    epoch: int = -1
    owner: int = 0  # a hash of the principal; 0 without access control


@command(
    since=TRANSACTION_LEVEL,
    bounds={"producer": WIDE, "epoch": EPOCH, "now_ms": TIME, "version": VERSION},
    rows=("streams", (GROUP, WIDE, None)),
    check=_added,
)
class TxnAdd(Command, tag=111, frozen=True, gc=False):
    """Add participants, and begin a transaction if none is open. Detail: its number. Level 4.

    NOT_FOUND; FENCED; TXN_CONCURRENT; TOO_LARGE: too many participants; TOO_MANY: the group's
    transactions have all of their memory."""

    id: str
    producer: int
    epoch: int
    now_ms: int
    streams: list[tuple[int, int, str]]  # (group, uid, name)
    groups: list[tuple[int, str]]  # of consumer groups: (group, id)
    version: int


@command(
    since=TRANSACTION_LEVEL,
    bounds={"producer": WIDE, "epoch": EPOCH, "version": VERSION, "now_ms": TIME},
    check=_id,
)
class TxnEnd(Command, tag=112, frozen=True, gc=False):
    """Decide a transaction. Detail: the (producer, epoch) of the next one. Level 4.

    NOT_FOUND; FENCED; TXN_STATE: none is open; TXN_CONCURRENT: it was decided so, and repeats wait
    for its markers."""

    id: str
    producer: int
    epoch: int
    commit: bool
    version: int
    now_ms: int


@command(since=TRANSACTION_LEVEL, bounds={"number": WIDE, "now_ms": TIME}, check=_id)
class TxnExpire(Command, tag=113, frozen=True, gc=False):
    """Abort the transaction of this number if its timeout is over, or by `force`. Level 4.

    NOT_FOUND; TXN_STATE: it is not open; ACTIVE: its timeout is not over."""

    id: str
    number: int
    now_ms: int
    force: bool = False


@command(since=TRANSACTION_LEVEL, bounds={"producer": WIDE, "number": WIDE, "now_ms": TIME})
class TxnAsk(Command, tag=116, frozen=True, gc=False):
    """Ask for the outcome of a transaction that a participant has open. Level 4.

    Detail: None while it is open, else (commit, epoch of its markers, time of the decision). An
    unknown one is aborted from here on, with epoch -1."""

    producer: int
    number: int
    now_ms: int


@command(since=TRANSACTION_LEVEL, bounds={"used_ms": TIME}, check=_id)
class TxnForget(Command, tag=117, frozen=True, gc=False):
    """Forget an idle transactional id that was not used since `used_ms`. Level 4."""

    id: str
    used_ms: int


def _hold(command: TxnHold) -> str:
    length = len(command.backup)
    if not 0 < length <= BACKUP_ROUND_CHARACTERS_MAX:
        return (
            f"the round's name has {length} characters; expected 1 to {BACKUP_ROUND_CHARACTERS_MAX}"
        )
    if command.until_ms and command.until_ms > command.now_ms + HOLD_MS_MAX:
        return f"commits would be held for {command.until_ms - command.now_ms} ms; at most {HOLD_MS_MAX} are"
    return ""


@command(
    since=TRANSACTION_LEVEL,
    bounds={"until_ms": TIME, "now_ms": TIME},
    check=_hold,
)
class TxnHold(Command, tag=124, frozen=True, gc=False):
    """Hold the commits of the group's transactions until `until_ms` of log time; 0: hold none. From
    the first command of a backup's round on the commits are counted. Detail: (round, commits). Level 4.

    BACKUP_HOLDS: another round holds them; the detail is that round."""

    backup: str  # a round of one
    until_ms: int
    now_ms: int
