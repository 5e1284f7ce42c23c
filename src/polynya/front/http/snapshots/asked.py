"""The parts that the routes of snapshots share: the stream, the offset, the origin, and errors."""

from __future__ import annotations

from polynya.base.levels import SNAPSHOTS_LEVEL
from polynya.base.limits import SNAPSHOT_ORIGINS_MAX, SNAPSHOTS_SUPERSEDED_MAX
from polynya.base.offsets import format_token, parse_token
from polynya.front.http.protocol.errors import REFUSALS, Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.conditions import is_other_incarnation
from polynya.front.http.routes.refusals import fail_refusal, fail_reply, trimmed_message
from polynya.local.api import Position, Refusal, StreamInfo
from polynya.stream.features.marks.held import marks_at, newest
from polynya.stream.parts import Mark
from polynya.stream.replies import Code, Reply
from polynya.wire.http.snapshots import repr_digest

_BYTE_MAX = 10**18


def needs_level(exchange: Exchange) -> None:
    """Raise `Failure` until all nodes of the cluster know snapshots."""
    if exchange.context.service.level < SNAPSHOTS_LEVEL:
        raise Failure("UPGRADE_PENDING")


def parse_offset(text: str) -> tuple[int, int]:
    """Parse the offset of a snapshot: one that the server returned, or a byte position. Raises
    `Failure`."""
    at = parse_token(text)
    if at is not None:
        return at
    if text.isdecimal() and text.isascii() and len(text) <= 20:
        return Position.AT_BYTE, min(int(text), _BYTE_MAX)
    raise Failure(
        "INVALID_OFFSET",
        f"'{text[:64]}' is not the offset of a snapshot: it must be an offset returned by this "
        "server, or a byte position",
    )


async def facts(exchange: Exchange, *, local: bool = False) -> StreamInfo | None:
    """Return the stream's facts with its snapshots; None if the error has been sent."""
    info = await exchange.stream.info(local=local)
    if isinstance(info, Refusal):
        fail_refusal(exchange, info)
        return None
    return None if is_other_incarnation(exchange, info) else info


def origin_of(exchange: Exchange) -> str | None:
    """Return the origin whose snapshots a reader asks for; None: any."""
    return exchange.query.get("origin")


def newest_of(exchange: Exchange, info: StreamInfo) -> Mark | None:
    """Return the mark that the reader gets."""
    return newest(info.marks or (), info.first_record, origin_of(exchange))


def mark_at(exchange: Exchange, info: StreamInfo, at: tuple[int, int]) -> Mark | None:
    """Return the mark at an offset that can be read; None if the error has been sent."""
    now_ms = exchange.context.service.now_ms()
    found = marks_at(info.marks or (), at, now_ms, origin_of(exchange))
    if found is not None:
        return found
    mark = newest_of(exchange, info)
    if mark is not None and at < (mark.record, mark.byte) and at[0] >= 0:
        exchange.fail(
            "SNAPSHOT_GONE",
            f"the snapshot at {format_token(*at)} was superseded, or there never was one: the newest "
            f"one is at {format_token(mark.record, mark.byte)}",
            offset_headers(exchange, mark),
        )
    else:
        no_snapshot(exchange, mark)
    return None


async def begin_of(exchange: Exchange, *, local: bool) -> tuple[StreamInfo, Mark | None] | None:
    """Return the stream's facts and the snapshot to begin with. Without one the first record is
    there. None if the error has been sent: records are trimmed and no snapshot covers them."""
    info = await facts(exchange, local=local)
    if info is None:
        return None
    mark = newest_of(exchange, info)
    if mark is not None or not info.first_record:
        return info, mark
    _fail_trimmed(exchange, info)
    return None


def _fail_trimmed(exchange: Exchange, info: StreamInfo) -> None:
    at = Refusal(Code.TRIMMED, info.first_record, info.first_byte)
    exchange.fail(
        "TRIMMED",
        f"records were trimmed, and no snapshot covers them; {trimmed_message(at)}",
        [("Stream-Retained-Offset", format_token(info.first_record, info.first_byte))],
    )


def no_snapshot(exchange: Exchange, mark: Mark | None) -> None:
    """Respond that there is no such snapshot. `mark`: the newest one."""
    if mark is None:
        exchange.fail("NO_SNAPSHOT")
        return
    exchange.fail(
        "NO_SNAPSHOT",
        "the stream has no snapshot at this offset; the newest one is at "
        f"{format_token(mark.record, mark.byte)}",
        offset_headers(exchange, mark),
    )


def path_of(exchange: Exchange, mark: Mark) -> str:
    """Return the path of a snapshot, in the spelling of the request."""
    stem = stem_of(exchange.route.path)
    origin = f"?origin={mark.origin}" if mark.origin else ""
    return f"{stem}/snapshot/{format_token(mark.record, mark.byte)}{origin}"


def stem_of(path: str) -> str:
    """Return the path of the stream of a route of snapshots."""
    for end in ("/bootstrap", "/snapshots", "/snapshot"):
        if path.endswith(end):
            return path.removesuffix(end)
    stem, found, _ = path.rpartition("/snapshot/")
    return stem if found else path


def offset_headers(exchange: Exchange, mark: Mark) -> Headers:
    """Return the headers that name a snapshot in an error."""
    return [
        ("Stream-Snapshot-Offset", format_token(mark.record, mark.byte)),
        ("Link", f'<{path_of(exchange, mark)}>; rel="snapshot"'),
    ]


def mark_headers(info: StreamInfo, mark: Mark) -> Headers:
    """Return the headers that describe a snapshot."""
    return [
        ("Stream-Snapshot-Offset", format_token(mark.record, mark.byte)),
        ("Stream-Snapshot-Digest", f"sha-256={mark.sha256.hex()}"),
        ("Repr-Digest", repr_digest(mark.sha256)),
        ("Stream-Incarnation", str(info.uid)),
    ]


def redirect(exchange: Exchange, path: str, headers: Headers | None = None) -> None:
    """Respond with 307 to another path of this server."""
    exchange.answer(307, [("Location", path), ("Cache-Control", NO_STORE), *(headers or [])])


def fail_snapshot(exchange: Exchange, reply: Reply, info: StreamInfo) -> None:
    """Respond with the error of a refused publish or drop."""
    code = REFUSALS.get(reply.code, "INTERNAL")
    if reply.code in (Code.SNAPSHOT_OLDER, Code.SNAPSHOT_CONFLICT):
        token = format_token(*reply.detail)
        exchange.fail(
            code,
            f"the newest snapshot of its origin is at {token}: "
            + (
                "publish at a later offset"
                if reply.code == Code.SNAPSHOT_OLDER
                else "at the offset of the request it has another one, with another digest"
            ),
            [("Stream-Snapshot-Offset", token)],
        )
    elif reply.code == Code.SNAPSHOT_TOO_SOON:
        seconds = max(1, -(-reply.detail // 1000))
        exchange.fail(
            code,
            f"the stream has {SNAPSHOTS_SUPERSEDED_MAX} superseded snapshots of this origin, which "
            f"can still be read: retry in {seconds} s, and publish less often",
            [("Retry-After", str(seconds))],
        )
    elif reply.code == Code.SNAPSHOT_ORIGINS:
        exchange.fail(code, f"the stream has snapshots of {SNAPSHOT_ORIGINS_MAX} origins")
    elif reply.code == Code.INCARNATION:
        exchange.fail(
            code,
            f"the stream is the incarnation {reply.uid}, and was {info.uid} when the request came: "
            "it was created again",
            [("Stream-Incarnation", str(reply.uid))] if reply.uid else [],
        )
    elif reply.code == Code.NO_SNAPSHOT:
        no_snapshot(exchange, newest_of(exchange, info))
    else:
        fail_reply(exchange, reply)
