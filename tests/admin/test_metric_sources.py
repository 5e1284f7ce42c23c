"""The sources read real rooms and fill rows of the table."""

import asyncio

from polynya.admin import metric_sources
from polynya.engine.standalone import StandaloneEngine
from polynya.local.local import LocalGroups
from polynya.observability.metrics import BY_NAME, Registry
from polynya.replica import CoreReplicas, Group
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.machine import Machine
from polynya.wal import Journal


def test_a_core_is_counted(tmp_path):
    async def story():
        core_replicas = CoreReplicas()
        core_replicas.groups[1] = Group(1, Machine(1))
        core = StandaloneEngine(
            core_replicas, Journal.open(tmp_path, journal_id=0), fatal=lambda error: None
        )
        local = LocalGroups(
            {1: core_replicas.groups[1].machine},
            core,
            lambda: 1,
            groups=1,
            hot_bytes_max=1,
            history=1,
        )
        registry = Registry()
        registry.add(metric_sources.of_core(core))
        registry.add(metric_sources.of_groups(local))
        assert registry.read()["polynya_streams"] == 0
        await core.call(
            1, Create(name="default/x", now_ms=1, content_type="text/plain", encoding=0)
        )
        samples = registry.read()
        assert (
            samples["polynya_streams"],
            samples["polynya_turns_total"],
            samples["polynya_entries_total"],
        ) == (1, 1, 1)
        counters = core.counters
        assert sum(counters.commits.counts) == 1 and counters.commits.total > 0
        assert sum(counters.pace.writes.counts) == 1
        assert counters.pace.writes.total == counters.write_seconds
        assert (
            samples["polynya_journal_segments"] == 1 and samples["polynya_journal_disk_bytes"] > 0
        )
        core.close()

    asyncio.run(story())


def test_every_row_named_by_a_source_is_in_the_table():
    for names in (
        metric_sources.TURNS,
        metric_sources.FLUSHER,
        metric_sources.COLLECTOR,
        metric_sources.CACHE,
        metric_sources.HTTP,
    ):
        assert set(names) <= set(BY_NAME)
        assert all(BY_NAME[name].kind == "counter" for name in names)
