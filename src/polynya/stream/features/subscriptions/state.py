"""The state of subscriptions in a group: those whose owner group it is, and all watches on this
group's streams."""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from polynya.stream.features.subscriptions.commands import SubscriptionConfig

GLOB = 1  # bits of `Link.kinds`
EXPLICIT = 2


class State(enum.IntEnum):
    """The state of a subscription; the transition table is in `rules.py`."""

    IDLE = 0  # nothing in flight: pending work starts a wake
    WAKING = 1  # a wake was issued: it awaits webhook delivery, or a claim through the wake stream
    LEASED = 2  # a worker holds the lease until `lease_until_ms`


class Failures(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The limit of attempts of a subscription, and the record whose handling failed last: the one
    at the cursor (`record`, `byte`) of `stream`."""

    max_attempts: int = 0  # 0: no limit
    dead_letter: str = ""  # canonical; "": none
    attempts: int = 0  # failed attempts of that record in a row
    stream: str = ""
    record: int = 0
    byte: int = 0
    until_ms: int = 0  # no claim and no delivery before
    error: str = ""

    def attempts_at(self, stream: str, record: int, byte: int) -> int:
        """Return how often the record at this cursor has failed."""
        here = (stream, record, byte) == (self.stream, self.record, self.byte)
        return self.attempts if here else 0


NO_FAILURES = Failures()


class Roster(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The workers that share lanes: until when each is counted, in the order in which they came,
    and the worker that keeps each lane ("": none)."""

    workers: dict[str, int] = {}
    keepers: list[str] = []

    def lanes_of(self, worker: str) -> list[int]:
        return [lane for lane, keeper in enumerate(self.keepers) if keeper == worker]

    def alive(self, now_ms: int) -> dict[str, int]:
        """Return the workers that are counted at a time."""
        return {worker: until for worker, until in self.workers.items() if until > now_ms}


NO_ROSTER = Roster()


class PlainSubscription(msgspec.Struct, array_like=True, gc=False):
    """The fields of a subscription that are written while no workers share its lanes."""

    id: str
    uid: int  # of this incarnation of the id
    config: SubscriptionConfig
    base_url: str  # of the last PUT: callback URLs are built from it
    created_ms: int
    streams: dict[str, None]  # explicit links, canonical names
    revision: int = 1  # of the set of watched streams
    linked: int = 0  # the latest revision known to be applied in every group
    state: int = State.IDLE
    generation: int = 0
    wake_id: str = ""  # "" while idle
    stream: str = ""  # the stream whose append caused the wake
    holder: str = ""  # in the form of `holder_of`
    lease_until_ms: int = 0  # 0: no lease
    attempts: int = 0  # failed deliveries in a row
    next_attempt_ms: int = 0  # 0: none scheduled
    failures: Failures = NO_FAILURES  # of its workers


class Subscription(PlainSubscription, array_like=True, gc=False):
    """A subscription in its owner group. (`generation`, `wake_id`) fences every action of a
    worker."""

    roster: Roster = NO_ROSTER

    def written(self) -> PlainSubscription:
        """Return it as snapshots contain it."""
        if self.roster.workers:
            return self
        known = [getattr(self, field) for field in PlainSubscription.__struct_fields__]
        return PlainSubscription(*known)


def holder_of(worker: str, claim_id: str) -> str:
    """Return the identity of a lease holder. `claim_id` is the worker's name for its claim; "" if
    it gave none."""
    return f"{worker}\0{claim_id}" if claim_id else worker


def worker_of(holder: str) -> str:
    """Return the worker in a lease holder's identity."""
    return holder.partition("\0")[0]


class Tombstone(msgspec.Struct, array_like=True, gc=False):
    """A deleted subscription that some groups may not have unlinked yet."""

    id: str
    uid: int


class Link(msgspec.Struct, array_like=True, gc=False):
    """A subscription's cursor on one stream: records before (`record`, `byte`) are processed."""

    kinds: int
    record: int
    byte: int


class LinkInfo(msgspec.Struct, array_like=True, gc=False):
    """A link for display. A stream that does not exist (yet) has its tail at 0."""

    name: str
    kinds: int
    record: int
    byte: int
    tail_record: int = 0
    tail_byte: int = 0
    stream_uid: int = 0

    @property
    def pending(self) -> bool:
        return self.tail_record > self.record

    @property
    def lag(self) -> int:
        """The number of records that are not acknowledged."""
        return max(0, self.tail_record - self.record)


class Registration(msgspec.Struct, array_like=True, gc=False):
    """The streams that a subscription watches in one group."""

    id: str
    uid: int
    revision: int
    pattern: str
    without: str  # never linked by the pattern: the subscription's own wake stream
    streams: dict[str, None]  # explicit links in this group, existing or not


class SubscriptionsImage(msgspec.Struct, array_like=True, gc=False):
    """The form of the state in snapshots. Fields are only appended, and with defaults."""

    owned: list[Subscription]  # in snapshots each as `written`
    graves: list[Tombstone]
    registrations: list[Registration]
    dropped: list[int]


class Watch:
    """A live registration: its linked streams in this group, and those with pending records (oldest
    first)."""

    __slots__ = ("linked", "matches", "pending", "registration")

    def __init__(self, registration: Registration, matches: Callable[[str], bool]) -> None:
        self.registration = registration
        self.matches = matches
        self.linked: dict[int, None] = {}  # uids
        self.pending: dict[int, None] = {}


class SubscriptionState:
    """All subscription state of one group. `wakes` is volatile: id -> (uid, a stream with new
    records). The service collects and forwards it; a loss is tolerated.

    Invariants: `awake` holds the owned ones that are not idle. A watch's `linked` holds the streams with
      a link of its id, and `pending`
    those whose tail is beyond the link."""

    __slots__ = ("awake", "by_name", "by_segment", "dropped", "graves", "owned", "wakes", "watches")

    def __init__(self) -> None:
        self.owned: dict[str, Subscription] = {}
        self.graves: dict[int, Tombstone] = {}
        self.watches: dict[str, Watch] = {}
        self.dropped: dict[
            int, None
        ] = {}  # incarnations that are over, oldest first; their late registrations are refused
        self.awake: dict[str, None] = {}
        self.by_segment: dict[
            str, dict[str, None]
        ] = {}  # first segment of patterns ("": any) -> ids
        self.by_name: dict[
            str, dict[str, None]
        ] = {}  # explicit links, existing streams or not -> ids
        self.wakes: dict[str, tuple[int, str]] = {}
