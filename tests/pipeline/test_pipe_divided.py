"""Workers of one server divide its tables by lease: no job is run twice."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from worlds.lakehouse import InlineRunner
from worlds.pipeline import PipeWorld, Row

from polynya.lakehouse.jobs.commit import JobOutcome
from polynya.lakehouse.jobs.plan import store_settings
from polynya.lakehouse.jobs.worker import Syncing
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.server.coordinator import HttpCoordinator

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
NAMES = [f"t{number}" for number in range(6)]


class Worker:
    """One round of `polynya lake run`, without Spark."""

    def __init__(self, world: PipeWorld, name: str) -> None:
        node = world.node
        coordinator = HttpCoordinator(node.admin, node.url, world.http, worker=name)
        store = coordinator.tables()[0].store
        assert store is not None
        blobs = open_blobs(store_settings(store))
        self.planned = 0
        self.outcomes: list[JobOutcome] = []
        self._syncing = Syncing(
            coordinator,
            lambda: InlineRunner(blobs),
            self._progress,
            at_once=2,
            leases=coordinator,
            interval_seconds=600.0,
        )

    def round(self) -> None:
        self.outcomes += self._syncing.sync([])

    def close(self) -> None:
        self._syncing.close()

    def _progress(self, step: str, said: str) -> None:
        self.planned += step == "planned"


def test_workers_divide_the_tables_and_leave_them_alone_for_the_interval(world: PipeWorld) -> None:
    world.start()
    for name in NAMES:
        assert world.http.put(f"{world.node.url}/v1/tables/{name}", json={"prefix": f"{name}/"})
        world.append(f"{name}/a", {"n": 1}, {"n": 2})
    workers = [Worker(world, name) for name in ("one", "two")]
    threads = [threading.Thread(target=worker.round) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(worker.planned for worker in workers) == len(NAMES), "no job is run twice"
    assert sorted(done.table.name for each in workers for done in each.outcomes) == NAMES
    for name in NAMES:
        world.append(f"{name}/a", {"n": 3})
    for worker in (*workers, Worker(world, "three")):
        before = len(worker.outcomes)
        worker.round()
        assert len(worker.outcomes) == before, "all tables rest"
        worker.close()
    assert len(world.compact_here()) == len(NAMES), "a sync by hand waits for no lease"
    world.check_exactly_once("t0", rows_of(world, "t0"))


def rows_of(world: PipeWorld, name: str) -> Counter[Row]:
    return Counter({row: count for row, count in world.rows.items() if row[0] == f"{name}/a"})
