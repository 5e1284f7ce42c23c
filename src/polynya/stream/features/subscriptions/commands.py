"""Commands of subscriptions: tags 40-47."""

from __future__ import annotations

import msgspec

from polynya.stream.command import Command


class SubscriptionConfig(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The normalized settings of a subscription's PUT; a repeated PUT is compared with it."""

    kind: int  # 0 webhook, 1 pull-wake
    pattern: str  # "": none
    streams: list[str]  # canonical, sorted, without repeats
    webhook_url: str
    wake_stream: str  # canonical
    lease_ttl_ms: int
    description: str | None = None


class SubscriptionPut(Command, tag=40, frozen=True, gc=False):
    """Create a subscription in its home group, or confirm that it has the same configuration."""

    id: str
    now_ms: int
    config: SubscriptionConfig
    base_url: str


class SubscriptionStreams(Command, tag=41, frozen=True, gc=False):
    """Change the explicit links, in the home group."""

    id: str
    add: list[str]
    remove: list[str]
    now_ms: int


class SubscriptionDelete(Command, tag=42, frozen=True, gc=False):
    """Delete a subscription in its home group. Later commands for this incarnation are refused."""

    id: str
    now_ms: int


class SubscriptionLinked(Command, tag=43, frozen=True, gc=False):
    """Record in the home group that every group applied this link revision, or dropped the links of
    a deleted subscription."""

    id: str
    uid: int
    revision: int


class SubscriptionEvent(Command, tag=44, frozen=True, gc=False):
    """Record an event of a subscription (`subscriptions.state.Event`) in its home group, if its
    state allows it."""

    id: str
    uid: int
    event: int
    now_ms: int
    generation: int = 0
    wake_id: str = ""
    text: str = ""  # a stream's name (WAKE), the worker (CLAIM)
    until_ms: int = 0  # the next attempt (DELIVERED, FAILED)


class LinkSubscription(Command, tag=45, frozen=True, gc=False):
    """Set everything that a subscription watches in a stream group. A newer revision replaces an
    older one."""

    id: str
    uid: int
    revision: int
    pattern: str
    without: str
    streams: list[str]


class UnlinkSubscription(Command, tag=46, frozen=True, gc=False):
    """End this incarnation of the subscription in a stream group."""

    id: str
    uid: int


class AckLinks(Command, tag=47, frozen=True, gc=False):
    """Advance a worker's cursors in a stream group: (name, uid of the stream, record, byte).
    Cursors never go back."""

    id: str
    uid: int
    acks: list[tuple[str, int, int, int]]
