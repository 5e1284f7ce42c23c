"""Requests that the audit log records: the act that each stands for, and its outcome."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polynya.base.limits import TOKEN_NAME_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.front.http.api.buckets import PROFILE
from polynya.front.http.api.cluster import act_of
from polynya.front.http.api.table_runs import VERBS
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import CONSOLE
from polynya.front.http.protocol.extension import Handler, Request, Response
from polynya.front.http.reducers.routes import VERIFY

ActOf = Callable[[Request], str]
"""The audit name of a request; empty if it is not audited."""
Record = Callable[[str, str, str, str, str, str], None]
"""Records an act, its target, the caller, its address, the outcome and the request's id."""


_TABLE_VERBS = ("alter", "retry", *VERBS, "cancel")


def audited(act_of: ActOf, handler: Handler, record: Record) -> Handler:
    """Wrap a handler to record audited requests and their outcome."""

    async def noted(request: Request) -> Response:
        name = act_of(request)
        if not name:
            return await handler(request)
        outcome = "failed"
        try:
            response = await handler(request)
            outcome = str(response.status)
            return response
        except Failure as failure:
            outcome = failure.code
            raise
        finally:
            principal = request.principal
            who = "anybody" if principal is None else f"{principal.id} {principal.name}"
            record(name, _target(name, request), who, request.remote, outcome, request.request_id)

    return noted


def table_act(request: Request) -> str:
    if request.method == "POST":
        verb = request.segments[-1] if request.segments else ""
        return f"table.{verb}" if verb in _TABLE_VERBS else ""
    return {"PUT": "table.create", "DELETE": "table.drop"}.get(request.method, "")


def subscription_act(request: Request) -> str:
    """Return the audit name of a change of a subscription itself. Its links, claims and
    acknowledgements come from workers, by the thousand."""
    if request.segments[2:] == ("reset",):
        return "subscription.reset"
    if len(request.segments) != 2 or request.segments[0] != "subscriptions":
        return ""
    acts = {"PUT": "subscription.create", "DELETE": "subscription.delete"}
    return acts.get(request.method, "")


def bucket_act(request: Request) -> str:
    if request.method in ("GET", "HEAD"):
        return ""
    return "bucket.profile" if request.segments[1:] == (PROFILE,) else "bucket.retention"


def reducer_act(request: Request) -> str:
    """Return the audit name of a change of a reducer itself, and of a verification, which may stop
    it. Faults come from workers."""
    if request.segments[1:] == (VERIFY,):
        return "reducer.verify" if request.method == "POST" else ""
    if len(request.segments) != 1:
        return ""
    return {"PUT": "reducer.put", "DELETE": "reducer.delete"}.get(request.method, "")


def module_act(request: Request) -> str:
    return "reducer.module" if request.method == "PUT" else ""


def cluster_act(request: Request) -> str:
    return act_of(request.segments) if request.method == "POST" else ""


def admin_act(request: Request) -> str:
    """Return the audit name of an admin request. Plans and commits come by the thousand and are not
    audited."""
    first = request.segments[0]
    if first == "flush":
        return "flush"
    if first == "backup":
        return "backup" if request.method == "POST" else ""
    if first == "jwts":
        return "jwt.revoke" if request.method == "POST" else ""
    return (
        {"POST": "token.create", "DELETE": "token.revoke"}.get(request.method, "")
        if first == "tokens"
        else ""
    )


class _Named(msgspec.Struct):
    name: str


def _target(act: str, request: Request) -> str:
    """Return the audited path. For a new token, add the name from the body."""
    if act != "token.create":
        return request.path
    try:
        return f"{request.path}/{msgspec.json.decode(request.body, type=_Named).name[:TOKEN_NAME_BYTES_MAX]}"
    except UNREADABLE:
        return request.path


def profile_act(request: Request) -> str:
    return "stream.profile" if request.method == "POST" else ""


def topic_act(request: Request) -> str:
    """Return the audit name of a change of a topic. Records are audited if the console sends
    them."""
    if request.method == "POST":
        return "topic.produce" if CONSOLE in request.headers else ""
    acts = {"PUT": "topic.create", "PATCH": "topic.change", "DELETE": "topic.delete"}
    return acts.get(request.method, "")


def registry_act(request: Request) -> str:
    """Return the audit name of a deletion or a setting of the schema registry. Serializers register
    by the thousand: a registration is audited if the console sends it."""
    if request.method == "POST" and request.segments[2:] == ("versions",):
        is_registration = request.segments[0] == "subjects" and CONSOLE in request.headers
        return "schema.register" if is_registration else ""
    if request.method == "DELETE" and request.segments[:1] == ("subjects",):
        return "schema.delete"
    kinds = {"config": "schema.config", "mode": "schema.mode"}
    changes = request.method in ("PUT", "DELETE") and request.segments
    return kinds.get(request.segments[0], "") if changes else ""


def transaction_act(request: Request) -> str:
    return {"POST": "transaction.abort"}.get(request.method, "")


def group_act(request: Request) -> str:
    return {"POST": "group.reset", "DELETE": "group.delete"}.get(request.method, "")
