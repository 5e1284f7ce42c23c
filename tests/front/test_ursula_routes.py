"""Every route of Ursula 0.4.1 and 0.11 in one table: what answers it here. The table of
docs/migration.md is made of it: `REWRITE=1` writes it again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from front_world import World, play

from polynya.front.http.protocol.settings import HttpSettings

JSON = {"content_type": "application/json"}
DOCS = Path(__file__).parents[2] / "docs" / "migration.md"
HEADING = "### Routes of Ursula 0.4 and 0.11\n"


class Route(msgspec.Struct, frozen=True):
    """A route, and a request of it that has the `status` here. `shows`: in its headers or body."""

    versions: str  # of Ursula: "0.4", "0.11" or "both"
    route: str
    here: str  # what it is here, in Markdown
    request: str  # method and path
    status: int
    shows: str = ""
    body: bytes | None = None
    more: Mapping[str, str] = {}  # headers, with underscores
    published: bool = False  # the stream has a snapshot before record 1


FRAME = b"\0\0\0\x03[8]"
ROUTES = (
    Route("both", "`PUT /{bucket}`", "201; buckets need no creation", "PUT /docs", 201),
    Route("both", "`PUT /{bucket}/{stream}`", "as there", "PUT /docs/new", 201, more=JSON),
    Route(
        "0.4",
        "`PUT /{bucket}/{affinity}/{stream}`",
        "a stream of that name; what decides its group is a part of the name in braces: `docs/{a}/s`",
        "PUT /docs/tag/new",
        201,
        more=JSON,
    ),
    Route("both", "`POST /{bucket}/{stream}`", "as there", "POST /docs/a", 204, "", b"[9]", JSON),
    Route(
        "0.4",
        "`POST …/append-batch`",
        "[as there](protocol.md#many-appends-in-one-request), and always all or nothing",
        "POST /docs/a/append-batch",
        200,
        '"status":204',
        FRAME,
        JSON,
    ),
    Route(
        "0.4",
        "`POST /{bucket}/{affinity}/$transaction`",
        "[`POST /v1/append-all`](protocol.md#many-appends-in-one-request), whose lines have other members",
        "POST /docs/tag/$transaction",
        400,
        "reserved",
        b"{}",
        JSON,
    ),
    Route("both", "`GET /{bucket}/{stream}`, `live=long-poll`, `live=sse`", "as there; JSON is an array, or lines with `Accept: application/x-ndjson`", "GET /docs/a?offset=-1", 200, r"\[1,2,3\]"),
    Route("both", "`HEAD /{bucket}/{stream}`", "as there, without the headers `Stream-Integrity-…` and `Stream-Cold-Hot-Start-Offset`", "HEAD /docs/a", 200, "stream-next-offset"),
    Route("both", "`DELETE /{bucket}/{stream}`", "as there", "DELETE /docs/a", 204),
    Route("0.4", "`GET`, `PUT …/attrs`", "[as there](protocol.md#attributes), and `PATCH`, `DELETE`", "GET /docs/a/attrs", 200, "{}"),
    Route("both", "`PUT …/snapshot/{offset}`", "[as there](snapshots.md); the digest is SHA-256", "PUT /docs/a/snapshot/6", 201, "stream-snapshot-digest", b"state", {"content_type": "text/plain"}),
    Route("both", "`GET …/snapshot/{offset}`", "as there", "GET /docs/a/snapshot/2", 200, r"\[1\]", published=True),
    Route("0.4", "`GET …/snapshot`", "as there: 307 to the newest one", "GET /docs/a/snapshot", 307, "location: /docs/a/snapshot/", published=True),
    Route("0.11", "`POST …/snapshot/{offset}/parts`", "as there", "POST /docs/a/snapshot/6/parts", 201, "stream-snapshot-part", b"part"),
    Route("0.11", "`DELETE …/snapshot/parts`", "parts that no snapshot names are gone after ten minutes", "DELETE /docs/a/snapshot/parts", 400, "INVALID_OFFSET"),
    Route("both", "`GET …/bootstrap`", "[as there](snapshots.md), and live, and as JSON", "GET /docs/a/bootstrap", 200, "multipart/mixed"),
    Route("both", "`PUT …/retention/{offset}`", "as there, and no snapshot is needed", "PUT /docs/a/retention/3", 204, "stream-retained-offset: 0000000000000001"),
    Route("0.11", "`GET …/incarnation/{token}/…`", "[`…/incarnation/VERSION/chunk/BYTE`](protocol.md#parts-for-caches) and `…/snapshot/OFFSET`, which caches may keep; `GET …/incarnation` names the version", "GET /docs/a/incarnation/1/chunk/0", 410, "VERSION_GONE"),
    Route("both", "`GET /__ursula/metrics`, `usage`", "`/metrics` of the admin port (Prometheus); [`polynya cost`](cost.md)", "GET /__ursula/metrics", 404, "NO_ROUTE"),
    Route("0.11", "`GET /__ursula/ready`, `live`", "`/readyz` and `/livez` of the admin port", "GET /__ursula/ready", 404, "NO_ROUTE"),
    Route("0.11", "`GET /__ursula/placement…`", "[`polynya cluster status`](cluster.md)", "GET /__ursula/placement", 404, "NO_ROUTE"),
    Route("both", "`DELETE /__ursula/purge/{bucket}`", "`polynya rm`, stream by stream", "DELETE /__ursula/purge/docs", 404, "NO_ROUTE"),
    Route("both", "`PUT /__ursula/quota/{bucket}`", "[limits of a token](access.md)", "PUT /__ursula/quota/docs", 404, "NO_ROUTE"),
    Route("both", "`POST /__ursula/flush-cold/…`", "`POST /v1/admin/flush` of the admin port", "POST /__ursula/flush-cold/docs/a", 404, "NO_ROUTE"),
    Route("both", "`/__ursula/backup/…`", "[`polynya backup`](backup.md)", "GET /__ursula/backup/info", 404, "NO_ROUTE"),
    Route("both", "`/__ursula/raft/…`, `leadership-shed/…`, `cluster-probe`", "[`polynya cluster`](cluster.md): nodes come, move and leave by the cluster's own planner", "POST /__ursula/raft/1/snapshot", 404, "NO_ROUTE"),
    Route("0.4", "`GET /__ursula/debug/heap-profile`", "`polynya debug`", "GET /__ursula/debug/heap-profile", 404, "NO_ROUTE"),
)  # fmt: skip


@pytest.mark.parametrize("route", ROUTES, ids=[route.request for route in ROUTES])
def test_each_is_answered_as_the_table_says(route: Route) -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        assert (await world.post("docs/a", b"[1,2,3]")).status == 204
        if route.published:
            assert (await world.ask("PUT", "/docs/a/snapshot/2", b"[1]")).status == 201
        method, path = route.request.split(" ", 1)
        answer = await world.ask(method, path, route.body, **route.more)
        shown = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
        assert answer.status == route.status, answer
        if route.shows:
            assert re.search(route.shows, f"{shown}\n{answer.body.decode()}"), answer

    settings = HttpSettings(long_poll_seconds=30.0, object_store=False)
    play(story, settings=settings)


def table() -> str:
    """Return the section of the page."""
    rows = [f"| {route.route} | {route.versions} | {route.here} |" for route in ROUTES]
    return "\n".join(["", "| Ursula | versions | here |", "|---|---|---|", *rows, "", ""])


def test_the_page_has_this_table() -> None:
    before, _, rest = DOCS.read_text().partition(HEADING)
    found, heading, after = rest.partition("### Headers and parameters")
    if os.environ.get("REWRITE"):
        DOCS.write_text(before + HEADING + table() + heading + after)
        found = table()
    assert found == table(), "REWRITE=1 writes it again"
