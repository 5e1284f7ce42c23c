"""The words between the pure session and a shell: what a talk asks for, and what it then hears."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

import msgspec

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # an append waits for the disk, a read perhaps for the object store
SILENCE_SECONDS = 60.0  # a live server sends something (a comment at least) more often than this


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request. `target` is path and query, percent-encoded; header names are in lower case. `silence_seconds`: how long the
    server may say nothing."""

    method: str
    target: str
    headers: dict[str, str] = {}
    body: bytes = b""
    silence_seconds: float = ANSWER_SECONDS


class HttpResponse(msgspec.Struct, frozen=True):
    """A whole answer; header names are in lower case. The head of an opened one has no `body` yet."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class Broken(msgspec.Struct, frozen=True):
    """No answer, or none that is whole. `sent`: the server may have seen the request."""

    sent: bool
    why: str


# What a talk yields. A shell does it, in this order of time, and sends what it heard.


class Send(msgspec.Struct, frozen=True):
    """Send the request and take its whole answer."""

    request: HttpRequest


class Open(msgspec.Struct, frozen=True):
    """Send the request, and take its head; what is not 200 comes with its body. One answer is open at a time: the next `Open`, `Send` or
    the end of the talk closes it."""

    request: HttpRequest


class More(msgspec.Struct, frozen=True):
    """The next bytes of what is open; none at its end."""


class Pause(msgspec.Struct, frozen=True):
    """Wait."""

    seconds: float


class Give(msgspec.Struct, frozen=True):
    """Hand this to the user, and come back when the user wants the next."""

    value: object


Effect: TypeAlias = Send | Open | More | Pause | Give


class Heard(msgspec.Struct, frozen=True):
    """What came of an effect: an answer (Send, Open), bytes (More), a break of either, or nothing (Pause, Give).

    `now` is the shell's clock in seconds, from any beginning but never going back; `luck` is drawn anew each time, from 0 to 1."""

    now: float
    luck: float
    what: HttpResponse | Broken | bytes | None = None


Result = TypeVar("Result")
Talk: TypeAlias = Generator[Effect, Heard, Result]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How failures that may pass are met: again after a pause that doubles from `pause_seconds` to `pause_seconds_max` (a random part of
    it, so that clients spread), or what the server's Retry-After says if that is longer; until `seconds` have passed since the last time
    that something succeeded."""

    seconds: float = 60.0
    pause_seconds: float = 0.1
    pause_seconds_max: float = 5.0
    retry_after_seconds_max: float = 300.0


class Trouble:
    """Failures in a row: how long to wait after each, and when to give up."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._since: float | None = None
        self._times = 0

    @property
    def is_over(self) -> bool:
        return self._since is None

    def passed(self) -> None:
        """Something succeeded."""
        self._since, self._times = None, 0

    def pause(self, heard: Heard, retry_after: float = 0.0) -> float | None:
        """Seconds to wait after a failure, or None: give up."""
        retry = self._retry
        if self._since is None:
            self._since = heard.now
        longest = min(retry.pause_seconds * 2.0 ** min(self._times, 30), retry.pause_seconds_max)
        self._times += 1
        pause = max(longest * (0.2 + 0.8 * heard.luck), min(retry_after, retry.retry_after_seconds_max) * (1 + heard.luck / 10))
        return pause if heard.now - self._since + pause <= retry.seconds else None
