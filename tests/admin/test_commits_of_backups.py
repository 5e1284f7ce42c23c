"""The server's side of a backup that holds commits: its counts and its captures."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from front.test_kafka_producers_in_transactions import NEW, TransactionalProducer
from worlds.kafka import KafkaWorld, play

from polynya.admin.backup_routes import CAPTURES_MAX, Backups
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
