"""Captures that are encoded before commits are held, and fixed under the hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google_crc32c import value as crc32c
from worlds.stream import raw_batch

from polynya.base.errors import Unavailable
from polynya.engine.snapshots.capture import Captured
from polynya.engine.snapshots.prepared import PreparedCaptures
from polynya.replica import Group
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.snapshots.encode import snapshot_of

ROUND, NEXT, OTHER = "backup-a/1", "backup-a/2", "backup-b/1"


def a_group(number: int) -> Group:
    group = Group(number, Machine(number, 4), term=3)
    for name in ("docs/a", "docs/b"):
        group.machine.apply(Create(name, 1, "text/plain", Encoding.BYTES, batch=raw_batch(b"x")))
    return group


class Core:
    """The captures of a core with two groups."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.captures = PreparedCaptures(self.lock)
        self.groups = {number: a_group(number) for number in (1, 2)}

    async def prepare(self, *numbers: int, backup: str = ROUND) -> None:
        prepared = (self.captures.prepare(backup, each, self.groups[each]) for each in numbers)
        await asyncio.gather(*prepared)

    def check(self, number: int, found: Captured | None) -> None:
        """Check that a capture is the state as it is now, which snapshots miss nothing of."""
        machine = self.groups[number].machine
        assert found is not None
        state = b"".join(found.state)
        assert state == snapshot_of(machine)
        assert found.state_crc == crc32c(state)
        assert machine.take_changes().streams == {*machine.directory.by_uid}


def run(story: Callable[[Core], Awaitable[None]]) -> None:
    async def play() -> None:
        core = Core()
        try:
            await story(core)
        finally:
            core.captures.drop()

    asyncio.run(play())


def test_a_capture_has_what_changed_after_it_was_prepared() -> None:
    async def story(core: Core) -> None:
        await core.prepare(1, 2)
        assert core.lock.locked(), "no snapshot takes the changes"
        for group in core.groups.values():
            group.machine.apply(Append("docs/b", 2, "text/plain", raw_batch(b"later")))
            group.machine.apply(Create("docs/c", 2, "text/plain", Encoding.BYTES))
        first = await core.captures.fix(ROUND, 1)
        assert core.lock.locked(), "one is left"
        core.check(1, first)
        core.check(2, await core.captures.fix(ROUND, 2))
        assert not core.lock.locked()
        assert await core.captures.fix(ROUND, 2) is None, "it was captured"

    run(story)


def test_another_backup_waits_and_another_round_begins_anew() -> None:
    async def story(core: Core) -> None:
        await core.prepare(1)
        with pytest.raises(Unavailable, match="another backup"):
            await core.prepare(2, backup=OTHER)
        await core.prepare(2, backup=NEXT)
        assert await core.captures.fix(ROUND, 1) is None
        core.check(2, await core.captures.fix(NEXT, 2))
        await core.prepare(1, backup=OTHER)
        core.check(1, await core.captures.fix(OTHER, 1))

    run(story)


def test_a_round_that_holds_commits_does_not_wait_for_another_backup() -> None:
    async def story(core: Core) -> None:
        await core.prepare(1, 2, backup=OTHER)
        core.captures.go_first(OTHER)
        assert core.lock.locked(), "it is the same round"
        core.captures.go_first(ROUND)
        assert not core.lock.locked()
        assert await core.captures.fix(OTHER, 1) is None
        await core.prepare(1, backup=OTHER)
        core.check(1, await core.captures.fix(OTHER, 1))

    run(story)


def test_what_nobody_fixes_is_dropped() -> None:
    async def story(core: Core) -> None:
        await core.prepare(1, 2)
        core.captures.drop()  # as the timer does
        assert not core.lock.locked()
        assert await core.captures.fix(ROUND, 1) is None
        for group in core.groups.values():
            assert len(group.machine.take_changes().streams) == 2, "a snapshot has them"

    run(story)
