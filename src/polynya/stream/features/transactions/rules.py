"""The rules of the coordinator: the table of states in docs/design/transactions.md.

The pair of producer and epoch is judged before the state, so that a fenced client changes nothing.
A decision puts the markers into the outbox, one message for each group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from polynya.base.limits import (
    MARKED_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_IDLE_MS,
    TRANSACTIONAL_IDS_MAX,
)
from polynya.stream.command import applies, level_of
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.features.transactions.commands import (
    EPOCH_LAST,
    TxnAdd,
    TxnAsk,
    TxnEnd,
    TxnExpire,
    TxnForget,
    TxnHold,
    TxnInit,
)
from polynya.stream.features.transactions.state import (
    PREPARED,
    CommitHold,
    Transaction,
    TransactionOutcome,
    TransactionState,
)
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(TxnInit)
_COUNTER = (1 << 47) - 1
_NONE = (-1, -1)
UNKNOWN = (False, -1)  # aborted, no epoch
_ONGOING = TransactionState.ONGOING


@applies(TxnInit)
def apply_init(machine: Machine, command: TxnInit, position: int) -> Reply:
    """Fence the former instances of a transactional id. See TxnInit."""
    known = machine.transactions
    transaction = known.get(command.id)
    sent = (command.producer, command.epoch)
    if transaction is None:
        if command.producer != -1:
            return Reply(Code.NOT_FOUND)
        if not _make_room(machine, command):
            return Reply(Code.TOO_MANY)
        transaction = Transaction(command.id, _next_producer(machine), 0, owner=command.owner)
        known.add(transaction)
    elif command.producer != -1 and sent != transaction.pair:
        is_repeat = sent == transaction.previous
        return Reply(Code.OK, detail=transaction.pair) if is_repeat else Reply(Code.FENCED)
    elif transaction.state in PREPARED:
        return Reply(Code.TXN_CONCURRENT)
    elif transaction.state == _ONGOING:
        _decide(machine, transaction, commit=False, bumped=True, now_ms=command.now_ms)
        transaction.previous = sent if command.producer != -1 else _NONE
        return Reply(Code.TXN_CONCURRENT)
    else:
        _bump(machine, transaction)
        transaction.previous = sent if command.producer != -1 else _NONE
        known.set_owner(transaction, command.owner)
    transaction.state = TransactionState.EMPTY
    transaction.timeout_ms = command.timeout_ms
    _used(machine, transaction)
    return Reply(Code.OK, detail=transaction.pair)


@applies(TxnAdd)
def apply_add(machine: Machine, command: TxnAdd, position: int) -> Reply:
    """Add participants to the open transaction, or begin one. See TxnAdd."""
    known = machine.transactions
    transaction = known.get(command.id)
    refused = _judge(transaction, command)
    if refused is not None or transaction is None:
        return Reply(refused or Code.NOT_FOUND)
    if transaction.state in PREPARED:
        return Reply(Code.TXN_CONCURRENT)
    new = [each for each in command.streams if each[1] not in transaction.streams]
    groups = [each for each in command.groups if each[1] not in transaction.groups]
    count = len(transaction.streams) + len(transaction.groups) + len(new) + len(groups)
    if count > MARKED_MAX:
        return Reply(Code.TOO_LARGE)
    if (new or groups) and known.bytes > TRANSACTION_BYTES_MAX:
        return Reply(Code.TOO_MANY)
    if transaction.state != _ONGOING:
        transaction.number += 1
        transaction.state, transaction.since_ms = _ONGOING, command.now_ms
        transaction.version = command.version
    elif not new and not groups:
        return Reply(Code.OK, detail=transaction.number)
    known.add_participants(transaction, new, groups)
    _used(machine, transaction)
    return Reply(Code.OK, detail=transaction.number)


@applies(TxnEnd)
def apply_end(machine: Machine, command: TxnEnd, position: int) -> Reply:
    """Commit or abort the open transaction. See TxnEnd."""
    transaction = machine.transactions.get(command.id)
    pair, is_new = (command.producer, command.epoch), command.version == 2
    if (
        transaction is not None
        and is_new
        and pair == transaction.previous
        and transaction.state != _ONGOING
    ):
        return _repeated(transaction, commit=command.commit)
    refused = _judge(transaction, command)
    if refused is not None or transaction is None:
        return Reply(refused or Code.NOT_FOUND)
    if transaction.state == _ONGOING:
        if command.commit and _is_held(machine):
            return Reply(Code.TXN_HELD)
        _decide(machine, transaction, commit=command.commit, bumped=is_new, now_ms=command.now_ms)
        return Reply(Code.OK, detail=transaction.pair)
    if not is_new:
        if transaction.state == TransactionState.EMPTY:
            return Reply(Code.TXN_STATE)
        return _repeated(transaction, commit=command.commit)
    if transaction.state in PREPARED:
        return Reply(Code.TXN_CONCURRENT)  # this ends the next one, which has not begun
    if command.commit:
        return Reply(Code.TXN_STATE)
    _bump(machine, transaction)
    transaction.previous, transaction.state = pair, TransactionState.EMPTY
    _used(machine, transaction)
    return Reply(Code.OK, detail=transaction.pair)


@applies(TxnExpire)
def apply_expire(machine: Machine, command: TxnExpire, position: int) -> Reply:
    """Abort an open transaction, and fence its producer. See TxnExpire."""
    transaction = machine.transactions.get(command.id)
    if transaction is None:
        return Reply(Code.NOT_FOUND)
    if transaction.state != _ONGOING or transaction.number != command.number:
        return Reply(Code.TXN_STATE)
    if not command.force and command.now_ms < transaction.until_ms:
        return Reply(Code.ACTIVE)
    _decide(machine, transaction, commit=False, bumped=True, now_ms=command.now_ms)
    return Reply(Code.OK)


@applies(TxnAsk)
def apply_ask(machine: Machine, command: TxnAsk, position: int) -> Reply:
    """Answer an orphan. Nothing can contradict the answer later. See TxnAsk."""
    transaction = machine.transactions.by_producer.get(command.producer)
    unknown = Reply(Code.OK, detail=(*UNKNOWN, command.now_ms))
    machine.counters.raise_level(_LEVEL)
    if transaction is None:
        machine.counters.skip_producer_id(command.producer & _COUNTER)
        return unknown
    for outcome in transaction.outcomes:
        if (outcome.producer, outcome.number) == (command.producer, command.number):
            return Reply(Code.OK, detail=(outcome.commit, outcome.epoch, outcome.decided_ms))
    if transaction.producer != command.producer or command.number < transaction.number:
        return unknown
    if transaction.state == _ONGOING and command.number == transaction.number:
        return Reply(Code.OK)
    if transaction.state == _ONGOING:
        # the log has lost transactions; this one must not get a number that is answered here
        _decide(machine, transaction, commit=False, bumped=True, now_ms=command.now_ms)
    transaction.number = command.number
    _changed(machine, transaction)
    return unknown


@applies(TxnForget)
def apply_forget(machine: Machine, command: TxnForget, position: int) -> Reply:
    """Forget an idle id. NOT_FOUND; ACTIVE: it was used later."""
    transaction = machine.transactions.get(command.id)
    if transaction is None:
        return Reply(Code.NOT_FOUND)
    if transaction.is_active or transaction.used_ms > command.used_ms:
        return Reply(Code.ACTIVE)
    machine.transactions.remove(transaction)
    _changed(machine, transaction)
    return Reply(Code.OK)


@applies(TxnHold)
def apply_hold(machine: Machine, command: TxnHold, position: int) -> Reply:
    """Begin, extend or end the hold of a backup's round; its count goes on. See TxnHold."""
    known, hold = machine.transactions, machine.transactions.hold
    if hold is None or hold.backup != command.backup:
        if hold is not None and _is_held(machine):
            return Reply(Code.BACKUP_HOLDS, detail=hold.backup)
        hold = known.hold = CommitHold(command.backup)
    hold.until_ms = command.until_ms
    machine.counters.raise_level(_LEVEL)
    return Reply(Code.OK, detail=(hold.backup, hold.commits))


def _is_held(machine: Machine) -> bool:
    """Report whether a backup holds commits. The log time decides, so that of a dead backup
    expires."""
    hold = machine.transactions.hold
    return hold is not None and machine.counters.log_ms < hold.until_ms


def acknowledged(machine: Machine, message: int) -> None:
    """Take an acknowledged message off its transaction, which is complete with the last one."""
    transaction = machine.transactions.by_message.pop(message, None)
    if transaction is None:
        return
    transaction.messages.remove(message)
    if transaction.messages:
        _changed(machine, transaction)
    else:
        _complete(machine, transaction)


def _judge(transaction: Transaction | None, command: TxnAdd | TxnEnd) -> Code | None:
    """Return the refusal of a pair."""
    if transaction is None:
        return Code.NOT_FOUND
    return None if (command.producer, command.epoch) == transaction.pair else Code.FENCED


def _repeated(transaction: Transaction, *, commit: bool) -> Reply:
    """Answer the end of a transaction that has been decided."""
    committed = transaction.state in (
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    )
    if committed != commit:
        return Reply(Code.FENCED if commit else Code.TXN_STATE)
    if transaction.state in PREPARED:
        return Reply(Code.TXN_CONCURRENT)
    return Reply(Code.OK, detail=transaction.pair)


def _decide(
    machine: Machine, transaction: Transaction, *, commit: bool, bumped: bool, now_ms: int
) -> None:
    """Decide the open transaction. `bumped`: its end fences it, with one bump."""
    pair = transaction.pair
    outcome = outcome_of(transaction, commit=commit, bumped=bumped, now_ms=now_ms)
    machine.transactions.decide(transaction, outcome)
    if commit and machine.transactions.hold is not None:
        machine.transactions.hold.commits += 1
    transaction.state = (
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    )
    for group, markers in markers_of(transaction, commit=commit, bumped=bumped, now_ms=now_ms):
        machine.outbox.send(group, markers)
        transaction.messages.append(machine.outbox.counter)
        machine.transactions.by_message[machine.outbox.counter] = transaction
    if bumped:
        _bump(machine, transaction)
        transaction.previous = pair
    _used(machine, transaction)
    if not transaction.messages:
        _complete(machine, transaction)


def outcome_of(
    transaction: Transaction, *, commit: bool, bumped: bool, now_ms: int
) -> TransactionOutcome:
    """Return the decision about the open transaction."""
    producer, epoch = transaction.pair
    return TransactionOutcome(producer, transaction.number, commit, epoch + bumped, now_ms)


def markers_of(
    transaction: Transaction, *, commit: bool, bumped: bool, now_ms: int
) -> Iterator[tuple[int, TxnMarkers]]:
    """Yield the markers of this decision: one message for each group."""
    producer, epoch = transaction.producer, transaction.epoch + bumped
    batch = control_batch(producer, epoch, commit=commit, decided_ms=now_ms)
    for group, uids, groups in _targets(transaction):
        yield (
            group,
            TxnMarkers(producer, epoch, transaction.number, commit, batch, uids, groups, now_ms),
        )


def _targets(transaction: Transaction) -> list[tuple[int, list[tuple[int, str]], list[str]]]:
    """Return the participants of each group, in order."""
    targets = dict[int, tuple[list[tuple[int, str]], list[str]]]()
    for uid, (group, name) in transaction.streams.items():
        targets.setdefault(group, ([], []))[0].append((uid, name))
    for id_, group in transaction.groups.items():
        targets.setdefault(group, ([], []))[1].append(id_)
    return [(group, *targets[group]) for group in sorted(targets)]


def _complete(machine: Machine, transaction: Transaction) -> None:
    committed = transaction.state == TransactionState.PREPARE_COMMIT
    transaction.state = (
        TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    )
    machine.transactions.clear_participants(transaction)
    _used(machine, transaction)


def _bump(machine: Machine, transaction: Transaction) -> None:
    """Give an id the next epoch, or a new producer behind the last one."""
    producer, epoch = transaction.producer, transaction.epoch + 1
    if transaction.epoch >= EPOCH_LAST:
        producer, epoch = _next_producer(machine), 0
    machine.transactions.set_producer(transaction, producer, epoch)


def _next_producer(machine: Machine) -> int:
    return machine.counters.next_producer_ids(1)


def _make_room(machine: Machine, command: TxnInit) -> bool:
    """Make room for an id: the one that is idle for longest goes. An owner has at most half."""
    known = machine.transactions
    before_ms = machine.counters.log_ms - TRANSACTION_IDLE_MS
    owned = known.owned.get(command.owner, 0) if command.owner else 0
    if owned < TRANSACTIONAL_IDS_MAX // 2:
        if len(known) < TRANSACTIONAL_IDS_MAX and known.bytes < TRANSACTION_BYTES_MAX:
            return True
        longest = known.longest_idle(None, before_ms)
    else:
        longest = known.longest_idle(command.owner, before_ms)
    if longest is None:
        return False
    known.remove(longest)
    _changed(machine, longest)
    return True


def _used(machine: Machine, transaction: Transaction) -> None:
    machine.transactions.use(transaction, machine.counters.log_ms)
    _changed(machine, transaction)


def _changed(machine: Machine, transaction: Transaction) -> None:
    machine.changes.transactions.add(transaction.id)
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
