"""The client at the other end of a connection, as handlers and access control see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from polynya.access import Principal
from polynya.access.rate_limits import Meter
from polynya.front.common.pipeline import ResponseQueue


class Peer:
    """The client of one connection. A live reader that has taken over the connection sets
    `on_lost`."""

    __slots__ = (
        "appends",
        "last_append",
        "meter",
        "on_lost",
        "principal",
        "responses",
        "template",
        "uses_reserve",
        "waiting_task",
        "waits_long",
    )

    def __init__(self, responses: ResponseQueue) -> None:
        self.responses = responses
        # sender of the last request, and of those that match `template`
        self.principal: Principal | None = None
        self.meter: Meter | None = None  # of the principal, if it has a rate limit
        self.waiting_task: asyncio.Task[None] | None = None
        self.waits_long = False  # the task may wait for another client's action
        self.on_lost: Callable[[], None] | None = None  # called once, when the connection is lost
        # the page being sent counts against the reserve of the front's response memory
        self.uses_reserve = False
        # the `AppendRequest` of the last request, if that was parsed, and so authorized
        self.last_append: Any = None
        self.template: Any = None  # the `RequestTemplate` of its appends, after the second one
        self.appends = 0

    @property
    def remote(self) -> str:
        """The peer address; empty after the connection is lost."""
        transport = self.responses.transport
        found = transport.get_extra_info("peername") if transport is not None else None
        return str(found[0]) if isinstance(found, tuple) else ""

    @property
    def unread_bytes(self) -> int:
        """Response bytes that the client has not read yet."""
        return self.responses.unread_bytes

    @property
    def waits(self) -> bool:
        """Report whether the client waits for an event, perhaps for long."""
        return self.on_lost is not None or (self.waiting_task is not None and self.waits_long)

    def forget_template(self) -> None:
        """Discard the template, so that the next request is parsed in full."""
        self.template = self.last_append = None
        self.appends = 0

    def lose(self) -> None:
        """End the waits for a client that is gone."""
        self.forget_template()
        self.responses.end()
        if self.waiting_task is not None:
            self.waiting_task.cancel()
            self.waiting_task = None
        if self.on_lost is not None:
            lost, self.on_lost = self.on_lost, None
            lost()
