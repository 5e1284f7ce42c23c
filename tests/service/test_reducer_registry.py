"""The registry of reducers while the meta group is away."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from polynya.base.errors import Unavailable
from polynya.reducers.bindings import Wanted
from polynya.service.reducers.registry import MetaSettings, Reducers
from polynya.service.settings import fresh_reads
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.replies import Code, Reply


class Meta:
    """The settings of a meta group in memory, that is away at times."""

    def __init__(self) -> None:
        self.settings: dict[str, bytes] = {}
        self.away = False
        self.overtaken = 0  # changes that others make first

    async def entries(self, scope: str) -> dict[str, bytes]:
        if self.away:
            raise Unavailable("no leader")
        return {
            name: value
            for name, value in self.settings.items()
            if name == scope or name.startswith(f"{scope}/")
        }

    async def call(self, command: MetaChange) -> Reply:
        if self.overtaken:
            self.overtaken -= 1
            return Reply(Code.NOT_YET)
        for key, value in command.changes:
            assert value is not None
            self.settings[f"{command.scope}/{key}"] = value
        self.settings[command.scope] = b"%d" % (command.version + 1)
        return Reply(Code.OK)


COUNT = Wanted(pattern="a/*", builtin="count", retain=True)


def test_unread_reducers_neither_trim_nor_pass_for_none() -> None:
    async def story() -> None:
        meta = Meta()
        meta.away = True
        reducers = Reducers(cast("MetaSettings", meta))
        assert await reducers.bound_of("a/x", clients=True) is None
        with pytest.raises(Unavailable):
            await reducers.of_stream("a/x")
        meta.away = False
        assert await reducers.of_stream("a/x") == []
        assert await reducers.bound_of("a/x", clients=True) == [""]

    asyncio.run(story())


def test_known_reducers_stay_in_use_while_the_meta_group_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fresh_reads, "FRESH_SECONDS", 0.0)

    async def story() -> None:
        meta = Meta()
        reducers = Reducers(cast("MetaSettings", meta))
        await reducers.put("n", COUNT)
        meta.away = True
        assert [each.name for each in await reducers.of_stream("a/x")] == ["n"]
        assert await reducers.bound_of("a/x", clients=False) == ["n"]
        assert await reducers.bound_of("b/x", clients=False) is None
        with pytest.raises(Unavailable):
            await reducers.current()

    asyncio.run(story())


def test_a_change_that_is_overtaken_is_tried_again() -> None:
    async def story() -> None:
        meta = Meta()
        reducers = Reducers(cast("MetaSettings", meta))
        meta.overtaken = 2
        made, is_new = await reducers.put("n", COUNT)
        assert (made.revision, is_new) == (1, True)
        meta.overtaken = 99
        with pytest.raises(Unavailable, match="concurrent changes"):
            await reducers.put("m", COUNT)

    asyncio.run(story())
