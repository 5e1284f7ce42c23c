"""The state of subscriptions in a group: those whose home it is, and what any subscription watches of this group's streams (F17)."""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from polynya.stream.commands import SubscriptionConfig

GLOB = 1  # bits of `Link.kinds`
EXPLICIT = 2


class State(enum.IntEnum):
    """Where a subscription stands; the table of what may happen is in `subscriptions.py`."""

    IDLE = 0  # nothing in flight: pending work starts a wake
    WAKING = 1  # a wake was issued: to be delivered to the webhook, or written to the wake stream and to be claimed
    LEASED = 2  # somebody works on it, until `lease_until_ms`


class Subscription(msgspec.Struct, array_like=True, gc=False):
    """A subscription in its home group. (`generation`, `wake_id`) is the fence of everything that a worker may do."""

    id: str
    uid: int  # of this life of the id
    config: SubscriptionConfig
    base_url: str  # of the last PUT: callback URLs are built from it
    created_ms: int
    streams: dict[str, None]  # explicit links, canonical names
    revision: int = 1  # of what it watches
    linked: int = 0  # the revision that every group is known to have applied
    state: int = State.IDLE
    generation: int = 0
    wake_id: str = ""  # "" while idle
    stream: str = ""  # whose append woke it
    holder: str = ""  # as `holder_of` gives it
    lease_until_ms: int = 0  # 0: no lease runs
    attempts: int = 0  # failed deliveries in a row
    next_attempt_ms: int = 0  # 0: none is due


def holder_of(worker: str, claim_id: str) -> str:
    """Who has a lease. `claim_id`: what the worker calls the claim by which it got it; "" when it has no word for it."""
    return f"{worker}\0{claim_id}" if claim_id else worker


def worker_of(holder: str) -> str:
    return holder.partition("\0")[0]


class Tombstone(msgspec.Struct, array_like=True, gc=False):
    """A deleted subscription of which some groups may not know yet."""

    id: str
    uid: int


class Link(msgspec.Struct, array_like=True, gc=False):
    """A subscription's cursor on one stream: records before (`record`, `byte`) are processed."""

    kinds: int
    record: int
    byte: int


class LinkInfo(msgspec.Struct, array_like=True, gc=False):
    """A link as it is shown. A stream that does not exist (yet) has its tail at 0."""

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


class Registration(msgspec.Struct, array_like=True, gc=False):
    """What a subscription watches in one group."""

    id: str
    uid: int
    revision: int
    pattern: str
    without: str  # never linked by the pattern: the subscription's own wake stream
    streams: dict[str, None]  # explicit ones of this group, existing or not


class SubscriptionsImage(msgspec.Struct, array_like=True, gc=False):
    """What a snapshot keeps. Fields are only appended, and with defaults."""

    homes: list[Subscription]
    graves: list[Tombstone]
    registrations: list[Registration]
    dropped: list[int]


class Watch:
    """A registration at work: which of the group's streams are linked, and which of those have pending records (oldest first)."""

    __slots__ = ("linked", "matches", "pending", "registration")

    def __init__(self, registration: Registration, matches: Callable[[str], bool]) -> None:
        self.registration = registration
        self.matches = matches
        self.linked: dict[int, None] = {}  # uids
        self.pending: dict[int, None] = {}


class SubscriptionState:
    """All of one group. `wakes` is volatile: id -> (uid, a stream with news), for the shell to take and pass on; it may be lost.

    Invariants: `awake` holds the homes that are not idle; a watch's `linked` are the streams that have a link of its id, and
    `pending` those of them whose tail is beyond the link.
    """

    __slots__ = ("awake", "by_name", "by_segment", "dropped", "graves", "homes", "wakes", "watches")

    def __init__(self) -> None:
        self.homes: dict[str, Subscription] = {}
        self.graves: dict[int, Tombstone] = {}
        self.watches: dict[str, Watch] = {}
        self.dropped: dict[int, None] = {}  # lives that are over: a late registration of one is refused; oldest first
        self.awake: dict[str, None] = {}
        self.by_segment: dict[str, dict[str, None]] = {}  # first segment of patterns ("": any) -> ids
        self.by_name: dict[str, dict[str, None]] = {}  # explicit links, existing streams or not -> ids
        self.wakes: dict[str, tuple[int, str]] = {}
