"""JSON of subscriptions for users, webhooks and wake streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from google_crc32c import value as crc32c
from msgspec import Raw, json

from polynya.base.names import spelled_name
from polynya.base.offsets import format_token
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.subscriptions.rules import WEBHOOK
from polynya.stream.features.subscriptions.state import (
    EXPLICIT,
    Failures,
    LinkInfo,
    State,
    Subscription,
    worker_of,
)
from polynya.stream.parts import Batch, Encoding
from polynya.subscriptions.lane_groups import lane_of
from polynya.subscriptions.messages import RetryWork

ROOT = "/v1/stream/__ds"


def link_shape(info: LinkInfo) -> dict[str, Any]:
    """Return a link as wakes and claims show it."""
    return {
        **cursor_shape(info),
        "tail_offset": format_token(info.tail_record, info.tail_byte),
        "has_pending": info.pending,
    }


def cursor_shape(info: LinkInfo) -> dict[str, Any]:
    return {
        "path": spelled_name(info.name),
        "link_type": "explicit" if info.kinds & EXPLICIT else "glob",
        "acked_offset": format_token(info.record, info.byte),
    }


def shown_shape(info: LinkInfo) -> dict[str, Any]:
    """Return a link as GET shows it."""
    tail = format_token(info.tail_record, info.tail_byte)
    return {**cursor_shape(info), "tail_offset": tail, "lag": info.lag}


def subscription_shape(
    subscription: Subscription, base_url: str, links: list[LinkInfo], kid: str
) -> dict[str, Any]:
    """Return the response to PUT and GET. `kid` is "" for pull-wake."""
    config = subscription.config
    webhook = None
    if config.kind == WEBHOOK:
        signing = {"alg": "ed25519", "kid": kid, "jwks_url": f"{base_url}{ROOT}/jwks.json"}
        webhook = {"url": config.webhook_url, "signing": signing}
    return {
        **listed_shape(subscription),
        "subscription_id": subscription.id,
        "streams": [shown_shape(info) for info in links],
        "webhook": webhook,
    }


def listed_shape(subscription: Subscription) -> dict[str, Any]:
    """Return an entry of the subscription list; it omits the links."""
    config, lane = subscription.config, lane_of(subscription)
    return {
        "id": subscription.id,
        "type": "webhook" if config.kind == WEBHOOK else "pull-wake",
        "pattern": config.pattern or None,
        "explicit_streams": len(subscription.streams),
        "webhook": {"url": config.webhook_url} if config.kind == WEBHOOK else None,
        "wake_stream": spelled_name(config.wake_stream) if config.wake_stream else None,
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": _time(subscription.created_ms),
        "status": "failed" if subscription.attempts else "active",
        "description": config.description,
        "state": State(subscription.state).name.lower(),
        "generation": subscription.generation,
        "current_holder": worker_of(subscription.holder) or None,
        "next_attempt_at": _time(subscription.next_attempt_ms) if subscription.attempts else None,
        "max_attempts": subscription.failures.max_attempts or None,
        "dead_letter_stream": spelled_name(subscription.failures.dead_letter) or None,
        "failure": failure_shape(subscription.failures),
        "workers": workers_shape(subscription),
        "group": None if lane is None else lane[0],
        "lane": None if lane is None else lane[1],
    }


def workers_shape(subscription: Subscription) -> list[dict[str, Any]]:
    """Return the workers that share lanes, as GET shows them. One whose time is over may be among
    them until another one reports."""
    roster = subscription.roster
    return [
        {"worker": worker, "lanes": roster.lanes_of(worker), "until": _time(until_ms)}
        for worker, until_ms in roster.workers.items()
    ]


def failure_shape(failures: Failures) -> dict[str, Any] | None:
    """Return the failed record that comes next, as GET and claims show it; None without one."""
    if not failures.attempts:
        return None
    return {
        "stream": spelled_name(failures.stream),
        "offset": format_token(failures.record, failures.byte),
        "attempts": failures.attempts,
        "error": failures.error,
        "retry_at": _time(failures.until_ms),
    }


def dead_letter(
    subscription: Subscription, asked: RetryWork, cursor: LinkInfo, attempts: int, now_ms: int
) -> Append:
    """Return the append of a failed record to the dead-letter stream."""
    letter = {
        "type": "dead-letter",
        "subscription_id": subscription.id,
        "stream": spelled_name(cursor.name),
        "offset": format_token(cursor.record, cursor.byte),
        "next_offset": asked.offset,
        "attempts": attempts,
        "error": asked.error,
        "worker": worker_of(subscription.holder) or None,
        "ts": now_ms,
        "record": Raw(asked.record) if asked.record else None,
    }
    return _json_append(subscription.failures.dead_letter, letter, now_ms)


def callback_url(subscription: Subscription) -> str:
    return f"{subscription.base_url}{ROOT}/subscriptions/{quote(subscription.id, safe='')}/callback"


def webhook_body(subscription: Subscription, links: list[LinkInfo], token: str) -> bytes:
    wake = {
        "subscription_id": subscription.id,
        "wake_id": subscription.wake_id,
        "generation": subscription.generation,
        "streams": [link_shape(info) for info in links],
        "callback_url": callback_url(subscription),
        "callback_token": token,
    }
    return json.encode(wake)


def wake_event(subscription: Subscription, now_ms: int) -> Append:
    """Return the append to the wake stream of a pull-wake subscription."""
    event = {
        "type": "wake",
        "subscription_id": subscription.id,
        "stream": spelled_name(subscription.stream),
        "generation": subscription.generation,
        "ts": now_ms,
    }
    return _json_append(subscription.config.wake_stream, event, now_ms)


def workers_event(subscription: Subscription, now_ms: int) -> Append:
    """Return the append that says that workers have to report: one is new, or lanes have moved."""
    event = {"type": "workers", "subscription_id": subscription.id, "ts": now_ms}
    return _json_append(subscription.config.wake_stream, event, now_ms)


def _json_append(stream: str, value: dict[str, Any], now_ms: int) -> Append:
    payload = json.encode(value) + b","
    return Append(
        stream,
        now_ms,
        "application/json",
        Batch(Encoding.JSON, 1, payload, crc32c(payload)),
    )


def _time(ms: int) -> str:
    return (
        datetime.fromtimestamp(ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
