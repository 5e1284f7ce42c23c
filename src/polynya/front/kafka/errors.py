"""Kafka's error codes, and those of the service's refusals and faults."""

from __future__ import annotations

import enum

from polynya.base.errors import CorruptData, NotLeader, OutcomeUnknown, Unavailable
from polynya.stream.replies import Code


class Error(enum.IntEnum):
    """The codes that this front answers. A client retries those that its library calls
    retriable."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOADING = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    INVALID_GROUP_ID = 24
    INVALID_SESSION_TIMEOUT = 26
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE = 45
    DUPLICATE_SEQUENCE = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INVALID_REGULAR_EXPRESSION = 128


_OF_CODE = {
    Code.OK: Error.NONE,
    Code.DUPLICATE: Error.NONE,
    Code.NOT_FOUND: Error.UNKNOWN_TOPIC_OR_PARTITION,
    Code.GONE: Error.UNKNOWN_TOPIC_OR_PARTITION,
    Code.INCARNATION: Error.UNKNOWN_TOPIC_OR_PARTITION,
    Code.CLOSED: Error.POLICY_VIOLATION,
    Code.PRODUCER_STALE: Error.INVALID_PRODUCER_EPOCH,
    Code.PRODUCER_GAP: Error.OUT_OF_ORDER_SEQUENCE,
    Code.DUPLICATE_SEQUENCE: Error.DUPLICATE_SEQUENCE,
    Code.PRODUCER_LIMIT: Error.POLICY_VIOLATION,
    Code.TOO_MANY: Error.NOT_ENOUGH_REPLICAS,  # open transactions: some of them end
    Code.OFFSET_BEYOND_TAIL: Error.OFFSET_OUT_OF_RANGE,
    Code.TRIMMED: Error.OFFSET_OUT_OF_RANGE,
    Code.MEMORY_PRESSURE: Error.NOT_ENOUGH_REPLICAS,
    Code.DISK_FULL: Error.KAFKA_STORAGE_ERROR,
    Code.STREAM_FAULTED: Error.KAFKA_STORAGE_ERROR,
    Code.TOO_LARGE: Error.MESSAGE_TOO_LARGE,
    Code.APPEND_EXCEEDS_MEMORY_LIMIT: Error.MESSAGE_TOO_LARGE,
    # the profile of the stream changes, or its state is being loaded
    Code.WRONG_PROFILE: Error.NOT_ENOUGH_REPLICAS,
    Code.NOT_YET: Error.NOT_ENOUGH_REPLICAS,
    Code.EVICTED: Error.NOT_ENOUGH_REPLICAS,
    Code.TXN_ENDED: Error.INVALID_TXN_STATE,
    Code.TXN_STATE: Error.INVALID_TXN_STATE,
}


def error_of(code: int) -> Error:
    """Return the error of a reply's or refusal's code."""
    return _OF_CODE.get(Code(code), Error.UNKNOWN)


def error_of_fault(fault: BaseException) -> Error:
    """Return the error of a failed call: retriable, and NOT_LEADER only where nothing was applied.
    A consumer that gets CORRUPT_MESSAGE ends, so damage in the store is KAFKA_STORAGE_ERROR."""
    if isinstance(fault, OutcomeUnknown):
        return Error.REQUEST_TIMED_OUT
    if isinstance(fault, CorruptData):
        return Error.KAFKA_STORAGE_ERROR
    return Error.NOT_LEADER if isinstance(fault, NotLeader | Unavailable) else Error.UNKNOWN
