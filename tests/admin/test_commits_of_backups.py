"""The server's side of a backup that holds commits: its counts and its captures."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from front.test_kafka_producers_in_transactions import NEW, TransactionalProducer
from worlds.kafka import KafkaWorld, play

from polynya.admin import backup_routes
from polynya.admin.backup_routes import CAPTURES_MAX, Backups
from polynya.base.errors import Unavailable
from polynya.engine.snapshots import prepared
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.stream.features.transactions.commands import TxnHold
from polynya.stream.replies import Reply


class Admin:
    """The routes of backups over one core."""

    def __init__(self, world: KafkaWorld) -> None:
        groups = world.core.groups
        start: Any = SimpleNamespace(groups=groups, identity=SimpleNamespace(groups=groups))
        self._backups = Backups(start, world.core.engine, None)

    async def ask(self, verb: str, **body: object) -> Any:
        path, data = f"/v1/admin/backup/{verb}", json.dumps(body).encode()
        request = Request("POST", path, (verb,), {}, {}, data, "http://node")
        return json.loads((await self._backups.handle(request)).body)

    async def part(self, token: str) -> bool:
        """Read the begin of a capture of group 1; report whether it is still there."""
        query = {"group": "1", "token": token, "offset": "0"}
        request = Request("GET", "/v1/admin/backup/part", ("part",), query, {}, b"", "http://node")
        try:
            await self._backups.handle(request)
        except Failure:
            return False
        return True


def test_a_commit_right_behind_the_release_is_not_of_the_held_round(monkeypatch: Any) -> None:
    """The commits that wait for the release follow it before the next look."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        producer = TransactionalProducer(await world.wire(), NEW)
        assert await producer.init() == 0
        await producer.write(0, b"a")
        service, admin = world.core.service, Admin(world)
        group = service.group_of("transaction/x")
        held = await admin.ask("commits", group=group, backup="b/1", hold_ms=9000)
        assert (held["backup"], held["commits"]) == ("b/1", 0)
        ending = asyncio.ensure_future(producer.end(commit=True))
        call = service.call

        async def overtaken(number: int, command: Any) -> Reply:
            reply = await call(number, command)
            if isinstance(command, TxnHold):
                assert await ending == 0
            return reply

        monkeypatch.setattr(service, "call", overtaken)
        released = await admin.ask("commits", group=group, backup="b/1", hold_ms=0)
        assert (released["backup"], released["commits"]) == ("b/1", 0)
        later = await admin.ask("commits", group=group, backup="b/1")
        assert (later["backup"], later["commits"]) == ("b/1", 1)

    play(story)


def test_captures_of_earlier_rounds_take_no_room() -> None:
    async def story(world: KafkaWorld) -> None:
        admin = Admin(world)
        for number in range(CAPTURES_MAX + 2):
            captured = await admin.ask("capture", group=1, backup=f"b/{number}")
            assert captured["group"] == 1

    play(story)


def test_captures_of_a_killed_backup_do_not_delay_a_round_that_holds_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A killed backup leaves the core's lock to what it prepared, and no room for other captures,
    until both expire."""
    monkeypatch.setattr(prepared, "PREPARED_SECONDS", 1e6)
    monkeypatch.setattr(backup_routes, "PART_BYTES", 8)  # one that was read whole would be gone

    async def story(world: KafkaWorld) -> None:
        admin = Admin(world)
        left = [(await admin.ask("capture", group=1))["token"] for _ in range(CAPTURES_MAX)]
        with pytest.raises(Unavailable, match="other backups"):
            await admin.ask("capture", group=1)
        assert await admin.part(left[0])
        await admin.ask("capture", group=1, backup="killed/1", prepare=True)
        for group in (1, 2):
            assert (await admin.ask("capture", group=group, backup="b/1"))["group"] == group
        assert [await admin.part(token) for token in left] == [True, False, True, True]

    play(story)
