"""FindCoordinator, and the calls of this folder to the coordinator."""

from __future__ import annotations

from polynya.access.kafka_acls import Operation
from polynya.base.errors import NotLeader, PolynyaError
from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import GROUP_ID_BYTES_MAX, TRANSACTIONAL_ID_BYTES_MAX
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error
from polynya.front.kafka.leaders import is_elsewhere_led
from polynya.stream.features.consumer_groups import calls
from polynya.stream.features.consumer_groups.calls import Answer, Outcomes
from polynya.wire.kafka.generated.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_BATCHED_SINCE = 4
_GROUP, _TRANSACTION = 0, 1  # types of a coordinator's key
_COMMITS = (calls.Commit, calls.CommitInTransaction)
_OPERATIONS = {  # of the calls whose operation on the group is not Read
    calls.Describe: Operation.DESCRIBE,
    calls.FetchOffsets: Operation.DESCRIBE,
    calls.Drop: Operation.DELETE,
    calls.DropPartitionOffsets: Operation.DELETE,
}


async def ask(call: Call, made: calls.Call) -> Answer:
    """Return the coordinator's answer, if the caller may use the group. A fault is an error that
    makes a client look for the coordinator.

    A commit that was held up could come behind later ones and take the offset back. So it goes to
    no other broker, and is dropped if its client has closed the connection: it may have repeated
    it."""
    assert not isinstance(made, calls.ListAll)
    if not is_group_id(made.group):
        return Outcomes([Error.INVALID_GROUP_ID])
    if not call.caller.may_use_group(made.group, _OPERATIONS.get(type(made), Operation.READ)):
        return Outcomes([Error.GROUP_AUTHORIZATION_FAILED])
    context, is_commit = call.context, isinstance(made, _COMMITS)
    if is_commit and (
        call.connection.is_ending
        or is_elsewhere_led(context.brokers, context.groups.group_of(made.group))
    ):
        return Outcomes([Error.NOT_COORDINATOR])
    try:
        return await context.groups.call(made, here=is_commit)
    except NotLeader:
        return Outcomes([Error.NOT_COORDINATOR])
    except PolynyaError:
        return Outcomes([Error.COORDINATOR_NOT_AVAILABLE])


def is_group_id(id_: str) -> bool:
    """Report whether a group may have this id."""
    return 0 < len(id_.encode()) <= GROUP_ID_BYTES_MAX


async def find_coordinator(call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Return the broker that leads the Raft group of each consumer group."""
    if call.version >= _BATCHED_SINCE:
        keys = in_turns(call, request.coordinator_keys)
        found = [_coordinator(call, key, request.key_type) async for key in keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _coordinator(call, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinator(call: Call, key: str, kind: int) -> Coordinator:
    context = call.context
    if kind == _TRANSACTION:
        return _transaction_coordinator(call, key)
    if kind != _GROUP:
        return Coordinator(key, -1, "", -1, Error.INVALID_REQUEST, f"a key of type {kind}")
    if not is_group_id(key):
        why = f"a group's id has 1 to {GROUP_ID_BYTES_MAX} bytes"
        return Coordinator(key, -1, "", -1, Error.INVALID_GROUP_ID, why)
    if not call.caller.may_use_group(key, Operation.DESCRIBE):
        why = f"the token does not allow 'subscribe' on group '{key}'"
        return Coordinator(key, -1, "", -1, Error.GROUP_AUTHORIZATION_FAILED, why)
    return _at(call, key, context.brokers.leader_of(context.groups.group_of(key)))


def _transaction_coordinator(call: Call, key: str) -> Coordinator:
    context = call.context
    error, why = Error.NONE, ""
    if not 0 < len(key.encode()) <= TRANSACTIONAL_ID_BYTES_MAX:
        error = Error.INVALID_REQUEST
        why = f"a transactional id has 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes"
    elif not call.caller.may_use_transaction(key, Operation.DESCRIBE):
        error = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        why = f"the token does not allow 'append' on transactional id '{key}'"
    elif not context.transactions.is_ready:
        error = Error.COORDINATOR_NOT_AVAILABLE
        why = f"transactions need all nodes at level {TRANSACTION_LEVEL}: finish the upgrade"
    if error:
        return Coordinator(key, -1, "", -1, error, why)
    return _at(call, key, context.brokers.leader_of(context.transactions.group_of(key)))


def _at(call: Call, key: str, id_: int) -> Coordinator:
    broker = next(each for each in call.context.brokers.all() if each.id == id_)
    return Coordinator(key, broker.id, broker.host, broker.port, Error.NONE, None)
