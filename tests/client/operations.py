"""Talks played without a server: outcomes in, effects and given values out. The clock is what
pauses have added up to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from polynya.client.messages import (
    Broken,
    Deliver,
    EffectResult,
    HttpRequest,
    HttpResponse,
    Open,
    Operation,
    Pause,
    ReadMore,
    Send,
)

LUCK = 1.0  # pauses are as long as they can be


class Played:
    """The trace of an operation: requests `asked`, `pauses` in seconds, values `given`. It ended
    with `result` or `error`, or awaits more input."""

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []
        self.pauses: list[float] = []
        self.given: list[Any] = []
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = False

    @property
    def targets(self) -> list[str]:
        return [request.target for request in self.asked]


def play(
    operation: Operation[Any],
    outcomes: Iterable[HttpResponse | Broken | bytes],
    *,
    into: Played | None = None,
) -> Played:
    """Play until the operation or the outcomes end. Each `Send`, `Open` and `ReadMore` takes one
    outcome and is noted in `into`."""
    played, waiting, now = into or Played(), iter(outcomes), 0.0
    effect_result: EffectResult | None = None
    try:
        while True:
            effect = next(operation) if effect_result is None else operation.send(effect_result)
            if isinstance(effect, Deliver):
                played.given.append(effect.value)
                effect_result = EffectResult(now, LUCK)
            elif isinstance(effect, Pause):
                played.pauses.append(effect.seconds)
                now += effect.seconds
                effect_result = EffectResult(now, LUCK)
            else:
                if isinstance(effect, Send | Open):
                    played.asked.append(effect.request)
                what = next(waiting, None)
                if what is None:
                    operation.close()
                    return played
                assert isinstance(what, Broken) or isinstance(what, bytes) == isinstance(
                    effect, ReadMore
                ), (effect, what)
                effect_result = EffectResult(now, LUCK, what)
    except StopIteration as stop:
        played.result = stop.value
    except Exception as error:  # noqa: BLE001 (it is what the story is about)
        played.error = error
    played.ended = True
    return played


def ok(status: int = 200, body: bytes = b"", **headers: str) -> HttpResponse:
    return HttpResponse(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, body
    )


def no(status: int, code: str = "", outcome: str = "refused", **headers: str) -> HttpResponse:
    body = (
        msgspec.json.encode({"error": {"code": code, "message": "no", "request_id": "r1"}})
        if code
        else b""
    )
    more = {"stream_outcome": outcome} if outcome else {}
    return ok(status, body, **more, **headers)


def token(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


OPENED = ok(200, content_type="text/event-stream", stream_incarnation="42")
END = b""
LOST = Broken(sent=True, why="cut")
NOBODY = Broken(sent=False, why="refused")
