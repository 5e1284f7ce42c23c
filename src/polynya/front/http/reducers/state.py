"""GET of STREAM/state: the state of a reducer after all records that are acknowledged."""

from __future__ import annotations

import asyncio

import msgspec

from polynya.base.limits import APPEND_BYTES_MAX
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.front.http.routes.pages import allowed_bytes
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.snapshots.asked import facts
from polynya.local.api import Refusal
from polynya.reducers.json_values import JSON
from polynya.reducers.keys import key_bytes
from polynya.reducers.latest import Latest
from polynya.reducers.reducer import Reducer, ReducerFault
from polynya.reducers.wasm.faults import NotInstalled
from polynya.reducers.wasm.module_reducer import ModuleReducer
from polynya.service.reducers.registry import Bound
from polynya.service.reducers.states import NoWorker, TooFarBehind, bring_up
from polynya.stream.replies import Code
from polynya.wire.headers import OCTET_STREAM

LINES = "application/x-ndjson"
_LIMIT, _LIMIT_MAX = 1000, 10_000


def show_state(exchange: Exchange) -> None:
    """Handle GET. Raises `Failure`."""
    refuse_conditions(exchange)
    _limit(exchange)
    exchange.spawn(_show(exchange), waits=True)


async def _show(exchange: Exchange) -> None:
    info = await facts(exchange)
    if info is None:
        return
    service = exchange.context.service
    bound = _chosen(exchange, await service.reducers.of_stream(info.name))
    key = (info.uid, bound.name, bound.binding.revision)
    async with service.reducers.kept.held(key) as kept, service.reducers.runs:
        service.reducers.counts.states += 1
        try:
            refusal = await bring_up(service, info, bound, kept)
            if refusal is not None or kept.reducer is None:
                fail_refusal(exchange, refusal or Refusal(Code.NOT_FOUND))
                return
            headers = [
                ("Stream-Next-Offset", format_token(kept.record, kept.byte)),
                ("Stream-Reducer", bound.binding.origin(bound.name)),
                ("Stream-Incarnation", str(info.uid)),
                ("Cache-Control", NO_STORE),
            ]
            kind, body = await asyncio.to_thread(_answer, exchange, kept.reducer, bound)
            allowed_bytes(exchange, min(len(body), APPEND_BYTES_MAX))
            exchange.answer_parts(200, [("Content-Type", kind), *headers], [body])
        except (NoWorker, NotInstalled) as missing:
            raise Failure("NO_WORKER", str(missing)) from None
        except ReducerFault as fault:
            raise Failure("REDUCER_FAULT", str(fault)) from None
        except TooFarBehind:
            raise Failure(
                "NO_WORKER",
                f"the snapshot of '{bound.name}' is too far behind the tail to answer: run a worker "
                "('polynya reduce run')",
            ) from None
        finally:
            if bound.binding.module:  # a process is not kept
                kept.drop()


def _chosen(exchange: Exchange, fitting: list[Bound]) -> Bound:
    """Return the reducer that the request names, or the only one. Raises `Failure`."""
    name = exchange.query.get("reducer")
    if name is not None:
        fitting = [each for each in fitting if each.name == name]
    if not fitting:
        raise Failure(
            "NO_REDUCER",
            "no reducer is bound to the stream"
            if name is None
            else f"no reducer '{name[:64]}' is bound to the stream",
        )
    if len(fitting) > 1:
        names = ", ".join(each.name for each in fitting)
        raise Failure("INVALID_PARAMETER", f"the stream has several reducers: reducer={names}")
    if fitting[0].binding.stopped:
        raise Failure("REDUCER_STOPPED", f"the reducer is stopped: {fitting[0].binding.stopped}")
    return fitting[0]


def _answer(exchange: Exchange, reducer: Reducer, bound: Bound) -> tuple[str, bytes]:
    """Return the type and the body of the answer. Raises `Failure`."""
    query = exchange.query
    if "key" in query:
        return _kind_of(reducer), _one(reducer, query["key"])
    if "after" not in query and "limit" not in query:
        return reducer.content_type, reducer.state()
    if not isinstance(reducer, Latest):
        raise Failure(
            "INVALID_PARAMETER",
            f"after and limit list the keys of 'latest', and the reducer is "
            f"'{bound.binding.builtin}'",
        )
    lines = (_line(*item) for item in reducer.items(query.get("after"), _limit(exchange)))
    return LINES, b"".join(lines)


def _kind_of(reducer: Reducer) -> str:
    """Return the type of what a reducer has for one key."""
    return OCTET_STREAM if isinstance(reducer, ModuleReducer) else JSON


def _one(reducer: Reducer, key: str) -> bytes:
    found = reducer.get(key_bytes(key))
    if found is None:
        raise Failure("KEY_NOT_FOUND", f"the state has no key '{key[:200]}'")
    return _line(key, found) if isinstance(reducer, Latest) else found


def _line(key: str, entry: bytes) -> bytes:
    """Return `{"key", "record", "value"}` and a newline."""
    return b'{"key":' + msgspec.json.encode(key) + b"," + entry[1:] + b"\n"


def _limit(exchange: Exchange) -> int:
    text = exchange.query.get("limit", str(_LIMIT))
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= limit <= _LIMIT_MAX:
        raise Failure(
            "INVALID_PARAMETER",
            f"limit is '{text[:32]}'; expected a number from 1 to {_LIMIT_MAX}",
        )
    return limit
