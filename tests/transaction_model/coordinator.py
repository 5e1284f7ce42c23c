"""The coordinator's rules: the table of states in docs/design/transactions.md."""

from __future__ import annotations

from transaction_model.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_LAST,
    ONGOING,
    OUTCOMES_MAX,
    PID_SHIFT,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Acknowledge,
    Code,
    GroupState,
    Reply,
    Transaction,
    TxnAdd,
    TxnAsk,
    TxnEnd,
    TxnExpire,
    TxnHold,
    TxnInit,
    TxnMarkers,
    TxnNumber,
)

PREPARED = (PREPARE_COMMIT, PREPARE_ABORT)
UNKNOWN = (False, -1)  # the outcome of a number without an entry: aborted, no epoch
COMPLETED = (COMPLETE_COMMIT, COMPLETE_ABORT)


def apply_init(state: GroupState, command: TxnInit, now_ms: int) -> Reply:
    txn = state.transactions.get(command.id)
    if txn is None:
        if command.producer != -1:
            return Reply(Code.UNKNOWN_ID)
        txn = Transaction(command.id, new_pid(state), 0, command.timeout_ms)
        state.transactions[command.id] = txn
        return Reply(Code.OK, (txn.producer, txn.epoch))
    current, sent = (txn.producer, txn.epoch), (command.producer, command.epoch)
    if command.producer != -1 and sent != current:
        return Reply(Code.OK, current) if sent == txn.previous else Reply(Code.FENCED)
    if txn.state in PREPARED:
        return Reply(Code.CONCURRENT)
    if txn.state == ONGOING:
        prepare(state, txn, commit=False, bumped=True)
        txn.previous = sent
        return Reply(Code.CONCURRENT)
    bump(state, txn)
    txn.previous = sent
    txn.timeout_ms, txn.state = command.timeout_ms, EMPTY
    return Reply(Code.OK, (txn.producer, txn.epoch))


def apply_add(state: GroupState, command: TxnAdd, now_ms: int) -> Reply:
    txn = state.transactions.get(command.id)
    code = judge(txn, command.producer, command.epoch)
    if code is not Code.OK:
        return Reply(code)
    assert txn is not None
    if txn.state in PREPARED:
        return Reply(Code.CONCURRENT)
    if txn.state != ONGOING:
        txn.state, txn.since_ms, txn.version = ONGOING, now_ms, command.version
        txn.number += 1
        txn.streams, txn.groups = {}, {}
    for group, uid, name in command.streams:
        txn.streams[uid] = (group, name)
    for group, consumers in command.groups:
        txn.groups[consumers] = group
    return Reply(Code.OK, txn.number)


def read_number(state: GroupState, command: TxnNumber, now_ms: int) -> Reply:
    txn = state.transactions.get(command.id)
    code = judge(txn, command.producer, command.epoch)
    if code is not Code.OK:
        return Reply(code)
    assert txn is not None
    added = command.uid in txn.streams or command.group in txn.groups
    if txn.state in PREPARED:
        return Reply(Code.CONCURRENT)
    return Reply(Code.OK, txn.number) if txn.state == ONGOING and added else Reply(Code.INVALID)


def apply_end(state: GroupState, command: TxnEnd, now_ms: int) -> Reply:
    txn = state.transactions.get(command.id)
    if txn is None:
        return Reply(Code.UNKNOWN_ID)
    pair = (command.producer, command.epoch)
    if pair == txn.previous and command.version == 2 and txn.state != ONGOING:
        return repeated(txn, command.commit)
    code = judge(txn, command.producer, command.epoch)
    if code is not Code.OK:
        return Reply(code)
    if txn.state == ONGOING:
        if command.commit and is_held(state, now_ms):
            return Reply(Code.CONCURRENT)
        bumped = command.version == 2
        prepare(state, txn, command.commit, bumped)
        txn.previous = pair if bumped else txn.previous
        return Reply(Code.OK, (txn.producer, txn.epoch))
    if command.version == 1:
        return repeated(txn, command.commit) if txn.state != EMPTY else Reply(Code.INVALID)
    if txn.state in PREPARED:
        return Reply(Code.CONCURRENT)  # this ends the next one, which has not begun
    if command.commit:
        return Reply(Code.INVALID)
    bump(state, txn)
    txn.previous, txn.state = pair, EMPTY
    return Reply(Code.OK, (txn.producer, txn.epoch))


def repeated(txn: Transaction, commit: bool) -> Reply:
    """Answer an EndTxn whose transaction has been decided."""
    decided = txn.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
    if decided != commit:
        return Reply(Code.FENCED if commit else Code.INVALID)
    if txn.state in PREPARED:
        return Reply(Code.CONCURRENT)
    return Reply(Code.OK, (txn.producer, txn.epoch))


def apply_expire(state: GroupState, command: TxnExpire, now_ms: int) -> Reply:
    txn = state.transactions.get(command.id)
    if txn is None or txn.state != ONGOING:
        return Reply(Code.INVALID)
    if txn.number != command.number:
        return Reply(Code.INVALID)
    if not command.force and now_ms < txn.since_ms + txn.timeout_ms:
        return Reply(Code.INVALID)
    pair = (txn.producer, txn.epoch)
    prepare(state, txn, commit=False, bumped=True)
    txn.previous = pair
    return Reply(Code.OK)


def apply_ask(state: GroupState, command: TxnAsk, now_ms: int) -> Reply:
    """Answer an orphan: commit or abort, and the marker's epoch; None while it is open. Nothing can
    contradict the answer later."""
    asked = (command.producer, command.number)
    for txn in state.transactions.values():
        if asked in txn.outcomes:  # also of a producer id that has been replaced
            return Reply(Code.OK, txn.outcomes[asked])
        if txn.producer == command.producer:
            return judge_asked(txn, command.number)
    state.pids = max(state.pids, (command.producer & ((1 << PID_SHIFT) - 1)) + 1)
    return Reply(Code.OK, UNKNOWN)


def judge_asked(txn: Transaction, number: int) -> Reply:
    if number == txn.number and txn.state == ONGOING:
        return Reply(Code.OK, None)
    txn.number = max(txn.number, number)
    return Reply(Code.OK, UNKNOWN)


def apply_acknowledge(state: GroupState, command: Acknowledge, now_ms: int) -> Reply:
    for message in command.messages:
        if state.outbox.pop(message, None) is None:
            continue
        for txn in state.transactions.values():
            if message in txn.messages:
                txn.messages.discard(message)
                if not txn.messages:
                    complete(txn)
    return Reply(Code.OK)


def apply_hold(state: GroupState, command: TxnHold, now_ms: int) -> Reply:
    """Begin, extend or release the hold of a backup; the count of commits goes on."""
    hold = state.hold
    if hold.backup != command.backup:
        hold.backup, hold.commits = command.backup, 0
    hold.until_ms = command.until_ms
    return Reply(Code.OK, (hold.backup, hold.commits))


def is_held(state: GroupState, now_ms: int) -> bool:
    return now_ms < state.hold.until_ms


def judge(txn: Transaction | None, producer: int, epoch: int) -> Code:
    """Judge the epoch, before the state."""
    if txn is None:
        return Code.UNKNOWN_ID
    return Code.OK if (producer, epoch) == (txn.producer, txn.epoch) else Code.FENCED


def new_pid(state: GroupState) -> int:
    state.pids += 1
    return state.number << PID_SHIFT | state.pids


def bump(state: GroupState, txn: Transaction) -> None:
    if txn.epoch >= EPOCH_LAST:
        txn.producer, txn.epoch = new_pid(state), 0
    else:
        txn.epoch += 1


def prepare(state: GroupState, txn: Transaction, commit: bool, bumped: bool) -> None:
    """Decide: the markers are in the outbox by the same apply."""
    txn.state = PREPARE_COMMIT if commit else PREPARE_ABORT
    marker_epoch = txn.epoch + 1 if bumped else txn.epoch
    state.hold.commits += commit
    txn.outcomes[txn.producer, txn.number] = (commit, marker_epoch)
    if len(txn.outcomes) > OUTCOMES_MAX:
        del txn.outcomes[next(iter(txn.outcomes))]
    for target, message in messages_of(txn, marker_epoch, commit):
        state.outbox[state.next_message] = (target, message)
        txn.messages.add(state.next_message)
        state.next_message += 1
    if bumped:
        bump(state, txn)
    if not txn.messages:
        complete(txn)


def messages_of(txn: Transaction, epoch: int, commit: bool) -> list[tuple[int, TxnMarkers]]:
    """Return the markers: one message for each group."""
    targets = sorted({group for group, _ in txn.streams.values()} | {*txn.groups.values()})
    messages = []
    for target in targets:
        uids = tuple((uid, name) for uid, (group, name) in txn.streams.items() if group == target)
        groups = tuple(name for name, group in txn.groups.items() if group == target)
        markers = TxnMarkers(txn.producer, epoch, txn.number, commit, uids, groups)
        messages.append((target, markers))
    return messages


def complete(txn: Transaction) -> None:
    txn.state = COMPLETE_COMMIT if txn.state == PREPARE_COMMIT else COMPLETE_ABORT
