"""The snapshots of a stream in the Python client: requests, retries and errors."""

from __future__ import annotations

from operations import LOST, no, ok, play

from polynya.client import AnswerDamaged, Bootstrap, Refused, Retry, Snapshot, SnapshotInfo, Trimmed
from polynya.client.operations import snapshots
from polynya.client.streams import Subject

RETRY = Retry(seconds=10.0, pause_seconds=1.0, pause_seconds_max=4.0)
STREAM = Subject("a b", None, RETRY)
AT = "0000000000000003_0000000000000006"
JSON = "application/json"


def test_a_publish_is_repeated_and_says_what_it_did() -> None:
    played = play(snapshots.publish_snapshot(STREAM, AT, {"n": 1}), [LOST, ok(204)])
    assert played.result is False
    assert played.targets == [f"/v1/stream/a%20b/snapshot/{AT}"] * 2
    assert (played.asked[0].method, played.asked[0].body) == ("PUT", b'{"n":1}')
    text = snapshots.publish_snapshot(
        STREAM, AT, "text", content_type="text/plain", incarnation="7"
    )
    played = play(text, [ok(201)])
    assert played.result is True
    assert played.asked[0].body == b"text"
    assert played.asked[0].headers["stream-incarnation"] == "7"
    older = play(snapshots.publish_snapshot(STREAM, AT, 1), [no(409, "SNAPSHOT_OLDER")])
    assert isinstance(older.error, Refused) and older.error.code == "SNAPSHOT_OLDER"


def test_they_are_listed_read_and_deleted() -> None:
    body = (
        b'{"snapshots":[{"offset":"%b","bytes":7,"content_type":"application/json",' % AT.encode()
    )
    body += b'"digest":"sha-256=00","created_at":"2030-01-01T00:00:00Z","new":1}]}'
    listed = play(snapshots.snapshots(STREAM), [ok(200, body)])
    assert listed.result == [
        SnapshotInfo(
            offset=AT,
            bytes=7,
            content_type=JSON,
            digest="sha-256=00",
            created_at="2030-01-01T00:00:00Z",
        )
    ]
    headers = {"content-type": JSON, "stream-snapshot-offset": AT}
    read = play(snapshots.snapshot(STREAM, AT), [ok(200, b'{"n":1}', **headers)])
    found = read.result
    assert found == Snapshot(offset=AT, content_type=JSON, body=b'{"n":1}')
    assert found.value == {"n": 1}
    assert (
        play(snapshots.delete_snapshot(STREAM, AT), [LOST, no(404, "NO_SNAPSHOT")]).result is False
    )
    assert play(snapshots.delete_snapshot(STREAM, AT), [ok(204)]).result is True
    needed = play(snapshots.delete_snapshot(STREAM, AT), [no(409, "SNAPSHOT_NEEDED")])
    assert isinstance(needed.error, Refused)


def answer(*parts: tuple[str, bytes], **more: str) -> tuple[bytes, dict[str, str]]:
    body = b"\r\n".join(b"--x\r\n%b\r\n\r\n%b" % (head.encode(), data) for head, data in parts)
    kind = {"content-type": "multipart/mixed; boundary=x", "stream-next-offset": AT}
    return body + b"\r\n--x--\r\n", kind | more


def test_a_bootstrap_is_a_snapshot_and_records() -> None:
    body, headers = answer(
        (f"Content-Type: text/plain\r\nStream-Snapshot-Offset: {AT}", b"a\r\n\r\nb"),
        ("Content-Type: application/json", b"[1,[2]]"),
    )
    up_to_date = {"stream-up-to-date": "true"}
    played = play(snapshots.bootstrap(STREAM), [ok(200, body, **headers, **up_to_date)])
    assert played.result == Bootstrap(
        snapshot=Snapshot(offset=AT, content_type="text/plain", body=b"a\r\n\r\nb"),
        records=[1, [2]],
        offset=AT,
        up_to_date=True,
    )
    body, headers = answer(("Content-Type: text/plain", b"all"))
    played = play(snapshots.bootstrap(STREAM), [ok(200, body, **headers)])
    assert played.result == Bootstrap(snapshot=None, records=[b"all"], offset=AT)


def test_a_damaged_or_refused_bootstrap_is_an_error() -> None:
    _, headers = answer()
    for body in (b"", b"--x--\r\n", b"nothing"):
        played = play(snapshots.bootstrap(STREAM), [ok(200, body, **headers)] * 99)
        assert isinstance(played.error, AnswerDamaged), body
    trimmed = play(snapshots.bootstrap(STREAM), [no(410, "TRIMMED")])
    assert isinstance(trimmed.error, Trimmed)
