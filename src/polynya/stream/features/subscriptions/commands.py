"""Commands of subscriptions: tags 40-50, 54 and 55."""

from __future__ import annotations

import msgspec

from polynya.base.levels import WORK_QUEUE_LEVEL
from polynya.base.limits import SUBSCRIPTION_LANES_MAX
from polynya.stream.command import Command, command
from polynya.stream.command_validation import (
    ANY,
    COUNTER,
    FROM_TAIL,
    TIME,
    WIDE,
    WORD,
    bounded,
    nested,
)


@bounded({"kind": (0, 1), "lease_ttl_ms": TIME})
class SubscriptionConfig(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The normalized settings of a subscription's PUT; a repeated PUT is compared with it."""

    kind: int  # 0 webhook, 1 pull-wake
    pattern: str  # "": none
    streams: list[str]  # canonical, sorted, without repeats
    webhook_url: str
    wake_stream: str  # canonical
    lease_ttl_ms: int
    description: str | None = None


@command(since=1, bounds={"now_ms": TIME}, check=nested("config"))
class SubscriptionPut(Command, tag=40, frozen=True, gc=False):
    """Create a subscription in its owner group, or confirm that it has the same configuration."""

    id: str
    now_ms: int
    config: SubscriptionConfig
    base_url: str


@command(since=1, bounds={"now_ms": TIME})
class SubscriptionStreams(Command, tag=41, frozen=True, gc=False):
    """Change the explicit links, in the owner group."""

    id: str
    add: list[str]
    remove: list[str]
    now_ms: int


@command(since=1, bounds={"now_ms": TIME})
class SubscriptionDelete(Command, tag=42, frozen=True, gc=False):
    """Delete a subscription in its owner group. Later commands for this incarnation are refused."""

    id: str
    now_ms: int


@command(since=1, bounds={"uid": WIDE, "revision": COUNTER})
class SubscriptionLinked(Command, tag=43, frozen=True, gc=False):
    """Record in the owner group that every group applied this link revision, or dropped the links of
    a deleted subscription."""

    id: str
    uid: int
    revision: int


@command(
    since=1,
    bounds={
        "uid": WIDE,
        "event": (0, 255),
        "now_ms": TIME,
        "generation": ANY,
        "until_ms": TIME,
    },
)
class SubscriptionEvent(Command, tag=44, frozen=True, gc=False):
    """Record an event of a subscription (`subscriptions.state.Event`) in its owner group, if its
    state allows it."""

    id: str
    uid: int
    event: int
    now_ms: int
    generation: int = 0
    wake_id: str = ""
    # a stream's name (WAKE), the worker (CLAIM), a stream whose failed record was passed (HEARTBEAT,
    # DONE)
    text: str = ""
    until_ms: int = 0  # the next attempt (DELIVERED, FAILED)


@command(since=1, bounds={"uid": WIDE, "revision": COUNTER})
class LinkSubscription(Command, tag=45, frozen=True, gc=False):
    """Set everything that a subscription watches in a stream group. A newer revision replaces an
    older one."""

    id: str
    uid: int
    revision: int
    pattern: str
    without: str
    streams: list[str]


@command(since=1, bounds={"uid": WIDE})
class UnlinkSubscription(Command, tag=46, frozen=True, gc=False):
    """End this incarnation of the subscription in a stream group."""

    id: str
    uid: int


@command(since=1, bounds={"uid": WIDE}, rows=("acks", (None, WIDE, FROM_TAIL, FROM_TAIL)))
class AckLinks(Command, tag=47, frozen=True, gc=False):
    """Advance a worker's cursors in a stream group: (name, uid of the stream, record, byte).
    Cursors never go back."""

    id: str
    uid: int
    acks: list[tuple[str, int, int, int]]


@command(
    since=WORK_QUEUE_LEVEL,
    bounds={"now_ms": TIME, "max_attempts": WORD},
    check=nested("config"),
)
class SubscriptionPutLimited(Command, tag=48, frozen=True, gc=False):
    """Create or confirm a subscription with a limit of attempts, after which a record goes to the
    stream `dead_letter`."""

    id: str
    now_ms: int
    config: SubscriptionConfig
    base_url: str
    max_attempts: int
    dead_letter: str  # canonical


@command(
    since=WORK_QUEUE_LEVEL,
    bounds={
        "uid": WIDE,
        "now_ms": TIME,
        "generation": ANY,
        "record": COUNTER,
        "byte": COUNTER,
        "until_ms": TIME,
    },
)
class SubscriptionRetry(Command, tag=49, frozen=True, gc=False):
    """End a wake because the record at (`record`, `byte`) of `stream` could not be handled. No
    worker gets the subscription before `until_ms`."""

    id: str
    uid: int
    now_ms: int
    generation: int
    wake_id: str
    stream: str  # canonical
    record: int
    byte: int
    until_ms: int
    error: str


@command(
    since=WORK_QUEUE_LEVEL,
    bounds={"uid": WIDE},
    rows=("cursors", (None, WIDE, FROM_TAIL, FROM_TAIL)),
)
class ResetLinks(Command, tag=50, frozen=True, gc=False):
    """Set cursors in a stream group, forward or back: (name, uid of the stream, record, byte)."""

    id: str
    uid: int
    cursors: list[tuple[str, int, int, int]]


def _check_busy(command: SubscriptionWorker) -> str:
    wrong = [lane for lane in command.busy if not 0 <= lane < SUBSCRIPTION_LANES_MAX]
    expected = f"expected lanes below {SUBSCRIPTION_LANES_MAX}"
    return f"SubscriptionWorker.busy has {wrong[0]}; {expected}" if wrong else ""


@command(
    since=WORK_QUEUE_LEVEL,
    bounds={
        "uid": WIDE,
        "now_ms": TIME,
        "lanes": (1, SUBSCRIPTION_LANES_MAX),
        "until_ms": TIME,
    },
    check=_check_busy,
)
class SubscriptionWorker(Command, tag=54, frozen=True, gc=False):
    """Count a worker among those of a subscription until `until_ms`, and share the lanes between
    them. It keeps its `busy` lanes."""

    id: str
    uid: int
    now_ms: int
    worker: str
    lanes: int
    until_ms: int  # 0: the worker leaves
    busy: list[int]


@command(since=WORK_QUEUE_LEVEL, bounds={"uid": WIDE})
class ForgetFailure(Command, tag=55, frozen=True, gc=False):
    """Forget the failed record of a stream, and the pause that it causes."""

    id: str
    uid: int
    stream: str  # canonical
