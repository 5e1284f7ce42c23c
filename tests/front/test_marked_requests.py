"""Requests that the web console marks: turned off by a setting, refused without the right, and
recorded in the audit log with their outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from front_world import World, play

from polynya.access import Access, Limits
from polynya.access.token_file import TokenFile, Wanted
from polynya.admin.audited_requests import audited, topic_act
from polynya.admin.console_acts import ConsoleActs
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.extension import Request, Response

JSON = {"content_type": "application/json"}
MARKED = {"polynya_console": "1"}
Notes = list[tuple[str, ...]]


def test_acts_that_are_off_are_refused_and_reads_and_other_clients_are_not() -> None:
    notes: Notes = []

    async def story(world: World) -> None:
        refused = await world.ask("PUT", "/v1/stream/a", **JSON, **MARKED)
        assert (refused.status, refused.error) == (403, "CONSOLE_READ_ONLY")
        assert (await world.ask("PUT", "/v1/stream/a", **JSON)).status == 201
        assert (await world.ask("GET", "/v1/stream/a", **MARKED)).status == 200
        assert notes == [("stream.create", "a", "anybody", "127.0.0.1", "403", notes[0][-1])]

    play(story, protection=_protection(notes, enabled=False))


def test_acts_on_streams_leave_a_line_each() -> None:
    notes: Notes = []

    async def story(world: World) -> None:
        async def act(method: str, target: str, body: bytes = b"", **headers: str) -> int:
            answer = await world.ask(method, target, body or None, **headers, **MARKED)
            return answer.status

        one = "/v1/stream/logs/a"
        assert await act("PUT", one, **JSON) == 201
        assert await act("POST", one, b"[1]", **JSON) == 204
        assert await act("POST", one, b"[", **JSON) == 400
        assert await act("POST", one, stream_closed="true") == 204
        assert await act("DELETE", one) == 204
        assert await act("HEAD", one) == 404
        assert [(act, name, outcome) for act, name, _, _, outcome, _ in notes] == [
            ("stream.create", "logs/a", "201"),
            ("stream.append", "logs/a", "204"),
            ("stream.append", "logs/a", "400"),
            ("stream.close", "logs/a", "204"),
            ("stream.delete", "logs/a", "204"),
        ]
        assert all(who == "anybody" and request for _, _, who, _, _, request in notes)

    play(story, protection=_protection(notes, enabled=True))


def test_a_refused_act_leaves_a_line_and_a_stranger_leaves_none(tmp_path: Path) -> None:
    notes: Notes = []
    tokens = TokenFile(tmp_path)

    def token(name: str, *scopes: str) -> dict[str, str]:
        wanted = Wanted(name=name, scopes=list(scopes), expires_in_seconds=None, limits=Limits())
        return {"authorization": f"Bearer {tokens.add(wanted, int(time.time() * 1000))[1]}"}

    reader, root = token("reader", "read"), token("root", "admin")

    async def topics(request: Request) -> Response:
        return Response(204)

    record = _recorder(notes)
    authorizer = Authorizer(Access(tokens, wall=time.time), audit=record)

    async def story(world: World) -> None:
        for method, target in (("PUT", "/v1/stream/a"), ("DELETE", "/v1/topics/orders")):
            stranger = await world.ask(method, target, **JSON, **MARKED)
            assert (stranger.status, notes) == (401, [])
        refused = await world.ask("PUT", "/v1/stream/a", **JSON, **MARKED, **reader)
        assert refused.error == "FORBIDDEN"
        assert b"the token does not allow 'create' on a" in refused.body
        refused = await world.ask("DELETE", "/v1/topics/orders", **MARKED, **reader)
        assert refused.error == "FORBIDDEN"
        assert (await world.ask("PUT", "/v1/stream/a", **JSON, **MARKED, **root)).status == 201
        assert (await world.ask("DELETE", "/v1/stream/a", **MARKED, **root)).status == 204
        assert (await world.ask("DELETE", "/v1/topics/orders", **MARKED, **root)).status == 204
        assert [
            (act, name, who.split()[1], outcome) for act, name, who, _, outcome, _ in notes
        ] == [
            ("stream.create", "a", "reader", "403"),
            ("topic.delete", "/v1/topics/orders", "reader", "FORBIDDEN"),
            ("stream.create", "a", "root", "201"),
            ("stream.delete", "a", "root", "204"),
            ("topic.delete", "/v1/topics/orders", "root", "204"),
        ]

    play(
        story,
        mounts={"/v1/topics/": audited(topic_act, topics, record)},
        protection=Protection(authorizer=authorizer, console=ConsoleActs(record, enabled=True)),
    )


def _recorder(notes: Notes) -> Callable[[str, str, str, str, str, str], None]:
    return lambda *note: notes.append(note)


def _protection(notes: Notes, *, enabled: bool) -> Protection:
    return Protection(console=ConsoleActs(_recorder(notes), enabled=enabled))
