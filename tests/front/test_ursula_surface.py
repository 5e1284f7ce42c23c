"""Every header and query parameter that Ursula 0.4.1 and 0.11 know, in one table: each is judged or
refused by its name. None is passed over with a 2xx that did something else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from front_world import Answer, World, play

JSON = "application/json"
REFUSED, JUDGED, NO_ROUTE = "refused by name", "judged", "no route"
DOCS = Path(__file__).parents[2] / "docs" / "migration.md"


class Row(msgspec.Struct, frozen=True):
    """One header or parameter at one request. `value` is one that must not be passed over: a bad
    one, or one with an effect. The answer has the `status`, and in its headers or body `shows`."""

    versions: str  # of Ursula: "0.4", "0.11" or "both"
    name: str  # a parameter begins with "?"
    fate: str
    method: str
    value: str
    status: int
    shows: str = ""
    more: Mapping[str, str] = {}  # other headers, with underscores
    query: str = ""  # other parameters
    path: str = "/docs/a"
    body: str = ""


def append(versions: str, name: str, fate: str, value: str, status: int, shows: str = "") -> Row:
    return Row(
        versions,
        name,
        fate,
        "POST",
        value,
        status,
        shows,
        {} if name == "Content-Type" else {"content_type": JSON},
        body="[9]",
    )


def refused(versions: str, name: str, *methods: str) -> list[Row]:
    return [
        Row(versions, name, REFUSED, method, "1", 400, name.lstrip("?"), body="[9]")
        for method in methods
    ]


def of_admin(versions: str, name: str, path: str, method: str = "POST") -> Row:
    return Row(versions, name, NO_ROUTE, method, "1", 404, path=f"/__ursula/{path}")


def of_snapshot(
    versions: str, name: str, fate: str, method: str, value: str, status: int, shows: str = ""
) -> Row:
    path = "/docs/a/snapshot/0"
    return Row(versions, name, fate, method, value, status, shows, path=path, body="1")


KEYED = {"content_type": JSON, "producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
ROWS = (
    # appends and creations
    append("both", "Content-Type", JUDGED, "text/html", 409, "text/html"),
    append("both", "Stream-Closed", JUDGED, "true", 204, "stream-closed: true"),
    Row("both", "Stream-Closed", JUDGED, "PUT", "true", 201, "", path="/docs/new"),
    append("both", "Stream-Seq", JUDGED, "x" * 5000, 400, "Stream-Seq"),
    Row("both", "Stream-TTL", JUDGED, "PUT", "x", 400, "Stream-TTL", path="/docs/new"),
    Row(
        "both", "Stream-Expires-At", JUDGED, "PUT", "x", 400, "Stream-Expires-At", path="/docs/new"
    ),
    Row("0.4", "Stream-Seq", JUDGED, "PUT", "x" * 5000, 400, "Stream-Seq", path="/docs/new"),
    append("both", "Producer-Id", JUDGED, "p", 400, "Producer-Epoch"),
    append("both", "Producer-Epoch", JUDGED, "0", 400, "Producer-Id"),
    append("both", "Producer-Seq", JUDGED, "0", 400, "Producer-Id"),
    Row(
        "0.4",
        "Producer-Id",
        JUDGED,
        "PUT",
        "p",
        400,
        "Producer",
        path="/docs/new",
    ),
    *refused("0.11", "Producer-Digest", "POST", "PUT"),
    Row("0.4", "Stream-Attrs", JUDGED, "PUT", "1", 400, "Stream-Attrs", path="/docs/new"),
    *refused("0.4", "Stream-Attrs", "GET", "POST", "DELETE"),
    *refused("both", "Stream-Snapshot-Digest", "PUT", "POST"),
    *refused("both", "Stream-Snapshot-Match", "PUT", "POST"),
    *refused("0.11", "Stream-Snapshot-Parts", "PUT", "POST"),
    append("0.11", "Stream-Incarnation", JUDGED, "1", 412, "INCARNATION_MISMATCH"),
    Row("0.11", "Stream-Incarnation", JUDGED, "GET", "1", 412, "INCARNATION_MISMATCH"),
    Row("0.11", "Stream-Incarnation", JUDGED, "HEAD", "1", 412),
    Row("0.11", "Stream-Incarnation", JUDGED, "DELETE", "1", 412, "INCARNATION_MISMATCH"),
    Row("0.11", "Stream-Incarnation", REFUSED, "PUT", "1", 400, "Stream-Incarnation"),
    append("0.4", "Prefer", JUDGED, "return=minimal", 204),  # every append answers so
    append("both", "Content-Encoding", JUDGED, "gzip", 400, "gzip"),
    append("both", "Expect", JUDGED, "100-continue", 204),
    # reads
    Row("both", "If-None-Match", JUDGED, "GET", "*", 304),
    Row("both", "If-None-Match", JUDGED, "HEAD", "*", 304),
    *refused("both", "If-None-Match", "POST", "DELETE"),
    Row("both", "Accept", JUDGED, "GET", "application/x-ndjson", 200, "1\n2\n3\n"),
    Row("both", "?offset", JUDGED, "GET", "x", 400, "INVALID_OFFSET"),
    Row("both", "?offset", JUDGED, "GET", "4", 200, "[3]"),
    Row("both", "?max_bytes", JUDGED, "GET", "0", 400, "max_bytes"),
    Row("both", "?live", JUDGED, "GET", "x", 400, "live"),
    Row(
        "both",
        "?timeout_ms",
        JUDGED,
        "GET",
        "x",
        400,
        "timeout_ms",
        query="live=long-poll&offset=-1",
    ),
    Row(
        "both",
        "?cursor",
        JUDGED,
        "GET",
        "999999999",
        200,
        r"stream-cursor: 1\d{9}",
        query="live=long-poll&offset=-1",
    ),
    Row("0.11", "?consistency", JUDGED, "GET", "x", 400, "consistency"),
    Row("0.4", "?record", JUDGED, "GET", "x", 400, "record"),
    Row("0.4", "?record", JUDGED, "GET", "1", 200, "stream-record-start: 1"),
    Row("0.4", "?tail_records", JUDGED, "GET", "1", 200, r"\[3\]"),
    Row("0.4", "?max_records", JUDGED, "GET", "1", 200, r"\[1\]"),
    Row("0.4", "?record_view", JUDGED, "GET", "x", 400, "record_view"),
    Row("0.4", "?record_view", JUDGED, "GET", "envelope", 200, '{"record":2,"value":3}\n'),
    *[
        row
        for name in ("?record", "?tail_records", "?max_records", "?record_view")
        for row in refused("0.4", name, "HEAD", "POST", "PUT", "DELETE")
    ],
    *refused("0.4", "?incarnation", "GET", "POST"),
    *refused("0.4", "?aligned", "GET"),
    # conditions
    *refused("0.4", "Stream-Record-Match", "GET", "PUT", "DELETE"),
    # snapshots; a range of one: test_snapshots_over_http.py
    of_snapshot("both", "Range", JUDGED, "GET", "bytes=0-1", 404, "NO_SNAPSHOT"),
    of_snapshot("both", "Stream-Snapshot-Match", REFUSED, "PUT", "1", 400),
    of_snapshot("both", "Stream-Snapshot-Digest", REFUSED, "PUT", "1", 400),
    of_snapshot("0.11", "Stream-Snapshot-Parts", JUDGED, "PUT", "x", 400, "Stream-Snapshot-Parts"),
    of_snapshot("0.11", "Stream-Incarnation", JUDGED, "PUT", "1", 412, "INCARNATION_MISMATCH"),
    # the admin plane
    of_admin("both", "?min_hot_bytes", "flush-cold/docs/a"),
    of_admin("both", "?upto", "raft/1/purge"),
    of_admin("0.4", "?voters", "raft/1/membership"),
    of_admin("0.4", "?addr", "raft/1/learners/2"),
    of_admin("0.4", "?blocking", "raft/1/learners/2"),
    of_admin("0.4", "X-Ursula-Debug-Token", "debug/heap-profile", "GET"),
    of_admin("0.11", "X-Ursula-Process-Incarnation", "leadership-shed/maintenance"),
    of_admin("0.4", "X-Ursula-Backup-Format", "backup/group/1", "GET"),
)
# with access control alone: test_authorizer.py; Stream-Record-Match of appends: test_conditions.py
ELSEWHERE = frozenset(("Authorization",))


async def ask(world: World, row: Row, path: str) -> Answer:
    query = [row.query] if row.query else []
    headers = dict(row.more)
    if row.name.startswith("?"):
        query.append(f"{row.name[1:]}={row.value}")
    else:
        headers[row.name.lower().replace("-", "_")] = row.value
    target = path + ("?" + "&".join(query) if query else "")
    body = row.body.encode() if row.body and row.method in ("POST", "PUT") else None
    return await world.ask(row.method, target, body, **headers)


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{row.method} {row.name} {row.value[:9]}" for row in ROWS]
)
def test_each_is_judged_or_refused_by_its_name(row: Row) -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        assert (await world.post("docs/a", b"[1,2,3]")).status == 204
        paths = [row.path]
        if row.path == "/docs/a" and row.value != "4":  # a bare byte is Ursula's spelling alone
            paths.append("/v1/stream/docs/a")
        if row.name == "Stream-Closed":
            del paths[1:]
        for path in paths:
            answer = await ask(world, row, path)
            assert answer.status == row.status, answer
            if row.fate == REFUSED and row.method != "HEAD":
                assert answer.error == "NOT_SUPPORTED"
                assert row.name.lstrip("?") in json.loads(answer.body)["error"]["message"]
            shown = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
            if row.shows and row.method != "HEAD":
                assert re.search(row.shows, f"{shown}\n{answer.body.decode()}"), answer
            if row.status >= 300:
                assert (await world.get("docs/a")).body == b"[1,2,3]", "nothing was applied"
        if row.name == "Stream-Closed" and row.method == "PUT":
            assert (await world.head("docs/new")).headers["stream-closed"] == "true"

    play(story)


def test_the_page_of_the_docs_has_every_one() -> None:
    text = DOCS.read_text()
    for row in ROWS:
        assert f"`{row.name.lstrip('?')}`" in text, row.name
    for name in ELSEWHERE:
        assert f"`{name}`" in text
