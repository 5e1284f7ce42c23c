"""Effects and results: the messages between a `Operation` and its driver."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

import msgspec

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # an append waits for fsync, a read may wait for the object store
SILENCE_SECONDS = 60.0  # a healthy server sends at least a comment within this period


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request. `target` is path and query, percent-encoded. Header names are in lower
    case. `silence_seconds` limits how long the server may send nothing."""

    method: str
    target: str
    headers: dict[str, str] = {}
    body: bytes = b""
    silence_seconds: float = ANSWER_SECONDS


class HttpResponse(msgspec.Struct, frozen=True):
    """A complete response; header names are in lower case. The head of an opened response has no
    `body` yet. `url` is the address that responded."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    url: str = ""


class Broken(msgspec.Struct, frozen=True):
    """A failed attempt: no response, or an incomplete one. `sent`: the server may have received the
    request."""

    sent: bool
    why: str


# An operation yields these effects. The driver carries them out in order and sends back the
# results.


class Send(msgspec.Struct, frozen=True):
    """Send the request and read the complete response."""

    request: HttpRequest


class Open(msgspec.Struct, frozen=True):
    """Send the request and read the response's head; a status other than 200 includes the body.

    One response is open at a time: the next `Open` or `Send`, or the end of the operation, closes
    it."""

    request: HttpRequest


class ReadMore(msgspec.Struct, frozen=True):
    """Read the next bytes of the open response; empty at its end."""


class Pause(msgspec.Struct, frozen=True):
    """Sleep."""

    seconds: float


class Deliver(msgspec.Struct, frozen=True):
    """Hand the value to the user; resume when the user asks for the next one."""

    value: object


Effect: TypeAlias = Send | Open | ReadMore | Pause | Deliver


class EffectResult(msgspec.Struct, frozen=True):
    """The result of an effect: a response (Send, Open), bytes (ReadMore), a broken attempt of
    either, or nothing (Pause, Deliver).

    `now` is a monotonic clock in seconds. `luck` is a random number from 0 to 1, drawn for each
    result."""

    now: float
    luck: float
    what: HttpResponse | Broken | bytes | None = None


Result = TypeVar("Result")
Operation: TypeAlias = Generator[Effect, EffectResult, Result]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The policy for transient failures.

    The pause doubles from `pause_seconds` to `pause_seconds_max`, with jitter. A longer Retry-After
    of the server wins, up to `retry_after_seconds_max`. Retries stop `seconds` after the first
    failure in a row."""

    seconds: float = 60.0
    pause_seconds: float = 0.1
    pause_seconds_max: float = 5.0
    retry_after_seconds_max: float = 300.0


class Backoff:
    """Consecutive failures: computes the pause after each, and when to give up."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._since: float | None = None
        self._times = 0

    @property
    def is_over(self) -> bool:
        return self._since is None

    def passed(self) -> None:
        """Reset after a success."""
        self._since, self._times = None, 0

    def pause(self, effect_result: EffectResult, retry_after: float = 0.0) -> float | None:
        """Return the seconds to wait after a failure, or None to give up."""
        retry = self._retry
        if self._since is None:
            self._since = effect_result.now
        longest = min(retry.pause_seconds * 2.0 ** min(self._times, 30), retry.pause_seconds_max)
        self._times += 1
        pause = max(
            longest * (0.2 + 0.8 * effect_result.luck),
            min(retry_after, retry.retry_after_seconds_max) * (1 + effect_result.luck / 10),
        )
        return pause if effect_result.now - self._since + pause <= retry.seconds else None
