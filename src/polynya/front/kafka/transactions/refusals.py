"""The errors of transactions, and the wait for the end of a former transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from polynya.access.kafka_acls import Operation
from polynya.base.errors import NotLeader, PolynyaError
from polynya.base.limits import TRANSACTIONAL_ID_BYTES_MAX
from polynya.base.names import APPEND_ALL_ID
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error
from polynya.front.kafka.leaders import is_elsewhere_led
from polynya.service.transactions.calls import TransactionRefused
from polynya.stream.replies import Code

WAIT_SECONDS = 0.5  # for the markers of the transaction before; clients wait 20 to 100 ms longer
INIT_WAIT_SECONDS = 1.0  # until the transaction of a fenced producer is aborted
HELD_WAIT_SECONDS = 5.0  # while a backup captures all groups
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.005, 0.08
_T = TypeVar("_T")
_OF_CODE = {
    Code.NOT_FOUND: Error.INVALID_PRODUCER_ID_MAPPING,
    Code.FENCED: Error.PRODUCER_FENCED,
    Code.TXN_STATE: Error.INVALID_TXN_STATE,
    Code.TXN_CONCURRENT: Error.CONCURRENT_TRANSACTIONS,
    Code.TXN_HELD: Error.CONCURRENT_TRANSACTIONS,
    Code.TXN_LATE: Error.NOT_COORDINATOR,
    Code.TOO_LARGE: Error.POLICY_VIOLATION,
}
_TO_REPEAT = (Code.TXN_CONCURRENT, Code.TXN_HELD)
# of a batch: an error of the coordinator is retriable, and one of the epoch lets the client abort
_OF_BATCH = {
    Error.PRODUCER_FENCED: Error.INVALID_PRODUCER_EPOCH,
    Error.CONCURRENT_TRANSACTIONS: Error.NOT_ENOUGH_REPLICAS,
    Error.COORDINATOR_NOT_AVAILABLE: Error.NOT_ENOUGH_REPLICAS,
    Error.NOT_COORDINATOR: Error.NOT_ENOUGH_REPLICAS,
}


class NotAnswered(Exception):
    """A request of a transaction that gets an error."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.name)
        self.error = error


def refusal_of_id(call: Call, id_: str, operation: Operation = Operation.WRITE) -> Error:
    """Return why the caller cannot use a transactional id anywhere in the cluster."""
    if not 0 < len(id_.encode()) <= TRANSACTIONAL_ID_BYTES_MAX or id_.startswith(APPEND_ALL_ID):
        return Error.INVALID_REQUEST
    if not call.caller.may_use_transaction(id_, operation):
        return Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return Error.NONE if call.context.transactions.is_ready else Error.COORDINATOR_NOT_AVAILABLE


def refusal_here(call: Call, id_: str, operation: Operation = Operation.WRITE) -> Error:
    """Return why this broker does not take a request about a transactional id: they do not cross
    nodes, so that the order of a client's requests is that of its connection."""
    refused = refusal_of_id(call, id_, operation)
    if refused:
        return refused
    context = call.context
    if is_elsewhere_led(context.brokers, context.transactions.group_of(id_)):
        return Error.NOT_COORDINATOR
    return Error.NONE


async def patiently(
    call: Call, id_: str, ask: Callable[[], Awaitable[_T]], seconds: float | None = None
) -> _T:
    """Return the coordinator's answer. While the former transaction of the id ends, or a backup holds
    commits, ask again. Ask, the first time too, only while the connection is open: a client that has
    closed it repeats the request elsewhere. Raises NotAnswered."""
    loop = asyncio.get_running_loop()
    pause = _FIRST_PAUSE_SECONDS
    begin = loop.time()
    deadline = begin + (WAIT_SECONDS if seconds is None else seconds)
    while True:
        if call.connection.is_ending:
            raise NotAnswered(Error.COORDINATOR_NOT_AVAILABLE)
        try:
            return await ask()
        except TransactionRefused as refused:
            if refused.code == Code.TXN_HELD:
                deadline = begin + HELD_WAIT_SECONDS
            over = loop.time() + pause > deadline
            if refused.code not in _TO_REPEAT or over:
                raise NotAnswered(error_of_refusal(refused.code)) from None
        except PolynyaError as fault:
            raise NotAnswered(error_of_coordinator(fault)) from None
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def error_of_refusal(code: Code) -> Error:
    """Return the error of a coordinator's refusal."""
    return _OF_CODE.get(code, Error.COORDINATOR_NOT_AVAILABLE)


def error_of_coordinator(fault: PolynyaError) -> Error:
    """Return the error of a coordinator that did not answer: a client looks for it again. A repeat
    is safe, also of a request whose outcome is unknown."""
    return (
        Error.NOT_COORDINATOR if isinstance(fault, NotLeader) else Error.COORDINATOR_NOT_AVAILABLE
    )


def error_of_batch(error: Error) -> Error:
    """Return the error of a batch whose transaction the coordinator refuses."""
    return _OF_BATCH.get(error, error)


def fenced(error: Error, *, known: bool) -> Error:
    """Return the error for a client that may be too old for that of a fenced producer."""
    return Error.INVALID_PRODUCER_EPOCH if error == Error.PRODUCER_FENCED and not known else error
