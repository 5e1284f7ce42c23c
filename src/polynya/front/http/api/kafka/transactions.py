"""`/v1/transactions`: the transactional ids of Kafka clients, and the abort of one that is open."""

from __future__ import annotations

from itertools import islice
from typing import Any

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.names import partition_of, spelled_name, transactional_id_folder
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, json_response
from polynya.service.transactions.calls import (
    STATE_NAMES,
    STATES,
    TransactionDetails,
    TransactionRefused,
)
from polynya.service.transactions.coordinator import TransactionService
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.replies import Code

TRANSACTIONS = "/v1/transactions"
LISTED_MAX = 1000  # ids of one response
_NUMBER_DIGITS = 19


class TransactionRoutes:
    """The handler of `TRANSACTIONS` and of the paths below it."""

    def __init__(self, transactions: TransactionService) -> None:
        self._transactions = transactions

    async def handle(self, request: Request) -> Response:
        """List, describe or abort. Raises `Failure` and `Unavailable`."""
        first, *rest = request.segments or ("",)
        if first:
            raise Failure("NO_ROUTE")
        try:
            match (request.method, *filter(None, rest)):
                case ("GET" | "HEAD",):
                    return await self._list(request)
                case ("GET" | "HEAD", id_):
                    found = (await self._transactions.describe([id_])).get(id_)
                    if found is None:
                        raise Failure("TRANSACTION_NOT_FOUND")
                    return json_response(self._shown(found, whole=True))
                case ("POST", id_, "abort"):
                    was = self._shown(await self._transactions.abort(id_), whole=True)
                    state = STATE_NAMES[TransactionState.PREPARE_ABORT]
                    return json_response({**was, "state": state})
        except TransactionRefused as refused:
            is_unknown = refused.code == Code.NOT_FOUND
            code = "TRANSACTION_NOT_FOUND" if is_unknown else "TRANSACTION_NOT_OPEN"
            raise Failure(code) from None
        raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD, POST"),))

    async def _list(self, request: Request) -> Response:
        query = request.query
        prefix, after = query.get("prefix", ""), query.get("after", "")
        states = [_state(name) for name in query.get("state", "").split(",") if name]
        producers = [_number("producer", query["producer"])] if "producer" in query else []
        seconds = (
            _number("open_seconds", query["open_seconds"]) if "open_seconds" in query else None
        )
        found = await self._transactions.list_transactions(
            states=states, producers=producers, open_ms=-1 if seconds is None else seconds * 1000
        )
        named = (
            each
            for each in found
            if each.id.startswith(prefix)
            and each.id > after
            and _may_see(each.id, request.principal)
        )
        page = list(islice(named, LISTED_MAX))
        rows = [self._shown(each, whole=False) for each in page]
        return json_response(
            {"transactions": rows, "next": page[-1].id if len(page) == LISTED_MAX else None}
        )

    def _shown(self, found: TransactionDetails, *, whole: bool) -> dict[str, Any]:
        now_ms = self._transactions.now_ms()
        shown: dict[str, Any] = {
            "id": found.id,
            "state": STATE_NAMES[found.state],
            "producer": found.producer,
            "epoch": found.epoch,
            "number": found.number,
            "open_ms": None if found.since_ms < 0 else max(0, now_ms - found.since_ms),
            "timeout_ms": found.timeout_ms,
            "raft_group": found.group,
        }
        if whole:
            shown["partitions"] = [_partition(name) for _, name in found.streams]
            shown["groups"] = found.groups
        return shown


def _partition(name: str) -> dict[str, Any]:
    topic, number = partition_of(name) or (None, None)
    return {"topic": topic, "partition": number, "stream": spelled_name(name)}


def _may_see(id_: str, principal: Principal | None) -> bool:
    return principal is None or principal.may(Verb.APPEND, transactional_id_folder(id_))


def _state(name: str) -> Any:
    found = STATES.get(name)
    if found is None:
        raise Failure(
            "INVALID_REQUEST",
            f"'state' is '{name[:64]}'; expected some of {', '.join(STATES)}, with commas between",
        )
    return found


def _number(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < _NUMBER_DIGITS:
        return int(text)
    raise Failure("INVALID_REQUEST", f"'{name}' is '{text[:64]}'; expected a whole number")
