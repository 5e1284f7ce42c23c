"""The snapshots of a stream as operations: the methods that `blocking.Stream` and `aio.AsyncStream`
share."""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.client import errors
from polynya.client.calls import call, decoded, header, is_true, stream_target
from polynya.client.messages import HttpRequest, HttpResponse, Operation
from polynya.client.streams import Subject
from polynya.client.values import JSON_TYPE, Json, encode, is_json, split_array, to_bytes

_MULTIPART = "multipart/mixed; boundary="


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot in the list of a stream. One that is `superseded` can be read for ten minutes; one
    that is `behind_trim` does not cover all records that are gone."""

    offset: str
    bytes: int
    content_type: str
    digest: str  # `sha-256=` and hexadecimal digits
    created_at: str
    origin: str = ""  # the clients'
    superseded: bool = False
    behind_trim: bool = False


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a stream after all records before `offset`, where reading goes on."""

    offset: str
    content_type: str
    body: bytes

    @property
    def value(self) -> Any:
        """The body of a JSON snapshot, decoded; of others the bytes."""
        return msgspec.json.decode(self.body) if is_json(self.content_type) else self.body


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """The newest snapshot of a stream (None: there is none) and the records behind it: values of a
    JSON stream, else one piece of bytes. Reading goes on at `offset`; there is nothing more if
    `up_to_date`."""

    snapshot: Snapshot | None
    records: list[Any]
    offset: str
    up_to_date: bool = False
    closed: bool = False


class _Listed(msgspec.Struct, frozen=True):
    snapshots: list[SnapshotInfo]


def publish_snapshot(
    stream: Subject,
    offset: str,
    body: Json,
    *,
    content_type: str = JSON_TYPE,
    incarnation: str = "",
) -> Operation[bool]:
    """Publish the state after all records before `offset`, as JSON by default, else as bytes or text.
    Return False if it had been published already.

    `incarnation`, that of `head()`, refuses a stream that was created again meanwhile. Raises
    `Refused` with the code SNAPSHOT_OLDER if there is a newer one."""
    headers = {"content-type": content_type}
    if incarnation:
        headers["stream-incarnation"] = incarnation
    data = encode(body) if is_json(content_type) else to_bytes(body)
    request = HttpRequest("PUT", _target(stream, offset), headers, data)
    what = f"publish a snapshot of '{stream.name}'"
    return (
        yield from call(
            request, stream._retry, what, lambda answer: answer.status == 201, repeatable=True
        )
    )


def snapshots(stream: Subject) -> Operation[list[SnapshotInfo]]:
    """Return the snapshots of the stream that can be read, in the order of their offsets."""
    what = f"snapshots of '{stream.name}'"

    def take(answer: HttpResponse) -> list[SnapshotInfo]:
        return decoded(answer, _Listed, what, "the response is no list of snapshots").snapshots

    request = HttpRequest("GET", f"{stream_target(stream.name)}/snapshots")
    return (yield from call(request, stream._retry, what, take, repeatable=True))


def snapshot(stream: Subject, offset: str) -> Operation[Snapshot]:
    """Return the snapshot at an offset. Raises `Refused` if there is none, or if its grace is
    over. `bootstrap` returns the newest one."""
    what = f"snapshot of '{stream.name}'"

    def take(answer: HttpResponse) -> Snapshot:
        return Snapshot(
            offset=header(answer, "stream-snapshot-offset", what),
            content_type=header(answer, "content-type", what),
            body=answer.body,
        )

    request = HttpRequest("GET", _target(stream, offset))
    return (yield from call(request, stream._retry, what, take, repeatable=True))


def delete_snapshot(stream: Subject, offset: str) -> Operation[bool]:
    """Delete the snapshot at an offset; return False if there is none. Raises `Refused` with the code
    SNAPSHOT_NEEDED if records before it are trimmed and no other one covers them."""
    what = f"delete a snapshot of '{stream.name}'"
    request = HttpRequest("DELETE", _target(stream, offset))
    try:
        yield from call(request, stream._retry, what, lambda _: None, repeatable=True)
    except errors.ClientError as error:
        if error.code == "NO_SNAPSHOT":
            return False
        raise
    return True


def bootstrap(stream: Subject) -> Operation[Bootstrap]:
    """Return the newest snapshot and the records behind it. Follow the stream with
    `tail(bootstrap.offset)`. Raises `Trimmed` if no snapshot covers the records that are gone."""
    what = f"bootstrap of '{stream.name}'"
    request = HttpRequest("GET", f"{stream_target(stream.name)}/bootstrap")
    return (
        yield from call(
            request, stream._retry, what, lambda answer: _parsed(answer, what), repeatable=True
        )
    )


def _parsed(answer: HttpResponse, what: str) -> Bootstrap:
    parts = _parts(answer, what)
    if not 1 <= len(parts) <= 2:
        raise _damaged(answer, what)
    (about, tail), found = parts[-1], None
    if len(parts) == 2:
        fields, body = parts[0]
        found = Snapshot(
            offset=fields.get("stream-snapshot-offset", ""),
            content_type=fields.get("content-type", ""),
            body=body,
        )
    is_array = is_json(about.get("content-type", ""))
    records = [msgspec.json.decode(each) for each in split_array(tail, what)] if is_array else []
    return Bootstrap(
        snapshot=found,
        records=records if is_array else [tail] if tail else [],
        offset=header(answer, "stream-next-offset", what),
        up_to_date=is_true(answer, "stream-up-to-date"),
        closed=is_true(answer, "stream-closed"),
    )


def _parts(answer: HttpResponse, what: str) -> list[tuple[dict[str, str], bytes]]:
    """Return the headers and the body of each part."""
    kind = header(answer, "content-type", what)
    if not kind.startswith(_MULTIPART):
        raise _damaged(answer, what)
    mark = b"\r\n--" + kind.removeprefix(_MULTIPART).encode()
    first, *parts = (b"\r\n" + answer.body).split(mark)
    if first or not parts or not parts.pop().startswith(b"--"):
        raise _damaged(answer, what)
    found = []
    for part in parts:
        head, _, body = part.partition(b"\r\n\r\n")
        lines = (line.partition(": ") for line in head.decode("latin-1").split("\r\n"))
        found.append(({name.lower(): value for name, _, value in lines}, body))
    return found


def _damaged(answer: HttpResponse, what: str) -> errors.AnswerDamaged:
    return errors.AnswerDamaged(
        f"{what}: the response is not a snapshot and records in multipart/mixed",
        status=answer.status,
    )


def _target(stream: Subject, offset: str) -> str:
    return f"{stream_target(stream.name)}/snapshot/{offset}"
