"""The metrics of reducers."""

from __future__ import annotations

import asyncio
from typing import cast

from polynya.admin.reducers.watcher import ReducerWatcher
from polynya.observability.metrics import Registry
from polynya.reducers.bindings import Wanted
from polynya.service.reducers.registry import Fault, MetaSettings, Reducers
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import version_of
from polynya.stream.replies import Code, Reply


class Meta:
    """The settings of a meta group in memory."""

    def __init__(self) -> None:
        self.settings: dict[str, bytes] = {}

    async def entries(self, scope: str) -> dict[str, bytes]:
        return {
            name: value
            for name, value in self.settings.items()
            if name == scope or name.startswith(f"{scope}/")
        }

    async def call(self, command: MetaChange) -> Reply:
        version = version_of(self.settings, command.scope)
        if version != command.version:
            return Reply(Code.NOT_YET, detail=version)
        for key, value in command.changes:
            if value is None:
                self.settings.pop(f"{command.scope}/{key}", None)
            else:
                self.settings[f"{command.scope}/{key}"] = value
        self.settings[command.scope] = b"%d" % (version + 1)
        return Reply(Code.OK)


def test_the_leader_of_the_meta_group_counts_faults_and_stops() -> None:
    async def story() -> None:
        reducers, leads = Reducers(cast("MetaSettings", Meta())), [True]
        watcher = ReducerWatcher(reducers, lambda: leads[0])
        Registry().add(watcher.samples)  # every name is in the table
        await reducers.put("a", Wanted(pattern="a/*", builtin="count"))
        await reducers.put("b", Wanted(pattern="b/*", builtin="count"))
        await reducers.stop("b", 2, "why")
        fault = Fault(reason="no", revision=1, since_ms=1, again_ms=2)
        await reducers.set_fault("a", "a/x@y", fault)
        await reducers.set_fault("a", "a/z", fault)
        await watcher.look()
        found = watcher.samples()
        Registry().add(watcher.samples)
        assert found['polynya_reducer_faults{reducer="a"}'] == 2
        assert found['polynya_reducer_stopped{reducer="a"}'] == 0
        assert found['polynya_reducer_stopped{reducer="b"}'] == 1
        assert reducers.faults["a", "a/x@y"] == fault
        await reducers.set_fault("a", "a/z", None)
        await watcher.look()
        assert watcher.samples()['polynya_reducer_faults{reducer="a"}'] == 1
        await reducers.remove("a")
        assert not reducers.faults
        leads[0] = False
        await watcher.look()
        assert not [name for name in watcher.samples() if "{" in name]

    asyncio.run(story())
