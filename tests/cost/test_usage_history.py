"""Counts per hour: growth, hours, restarts, and files of cores that are gone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from polynya.cost import HOURS_MAX, UsageHistory
from polynya.cost.history import Row

KEY = ("store", "flush", "put")


class Core:
    """A core that counts and starts again. `now` is its clock, in seconds."""

    def __init__(self, folder: Path, core: int = 0, cores: int = 1) -> None:
        self.now = 1_000_000.5 * 3600
        self._location = (folder, core, cores)
        self.refused: list[str] = []
        self.start()

    def start(self) -> None:
        self.counts = Counter[tuple[str, ...]]()
        self.history = UsageHistory(*self._location, clock=lambda: self.now)
        self.refused = self.history.load()
        self.history.add(lambda: self.counts)

    def save(self) -> None:
        asyncio.run(self.history.save())

    def hours(self, hours: int = HOURS_MAX) -> dict[int, int]:
        return {hour - 1_000_000: dict(row)[KEY] for hour, row in self.history.rows(hours)}


def test_growth_belongs_to_its_hour_also_after_a_restart(tmp_path: Path) -> None:
    core = Core(tmp_path)
    core.counts[KEY] += 3
    assert core.hours() == {0: 3}
    core.now += 3600
    core.counts[KEY] += 2
    core.save()
    core.counts[KEY] += 100  # lost: after the last save
    core.start()
    core.counts[KEY] += 5
    core.now += 2 * 3600
    assert core.hours() == {0: 3, 1: 2, 3: 5}
    assert core.hours(3) == {1: 2, 3: 5}, "the present hour and the two before it"


def test_an_hour_goes_on_after_a_restart_and_after_the_clock_was_set_back(tmp_path: Path) -> None:
    core = Core(tmp_path)
    for _ in range(3):
        core.counts[KEY] += 1
        core.save()
        core.start()
    assert core.hours() == {0: 3}
    core.counts[KEY] += 1
    core.now += 3600
    assert core.hours() == {0: 3, 1: 1}
    core.counts[KEY] += 1
    core.now -= 3600
    assert core.hours() == {0: 4}
    core.now += 3600
    assert core.hours() == {0: 4, 1: 1}


def test_the_history_is_bounded(tmp_path: Path) -> None:
    core = Core(tmp_path)
    for _ in range(HOURS_MAX + 5):
        core.counts[KEY] += 1
        core.history.tick()
        core.now += 3600
    core.counts[KEY] += 1
    core.save()
    core.start()
    assert sorted(core.hours()) == list(range(6, HOURS_MAX + 6))


def test_nothing_is_written_without_growth(tmp_path: Path) -> None:
    core = Core(tmp_path)
    core.save()
    assert not (tmp_path / "usage").exists()


def test_a_core_takes_over_the_files_of_cores_that_are_gone(tmp_path: Path) -> None:
    for number in range(4):
        core = Core(tmp_path, number, 4)
        core.counts[KEY] += 10**number
        core.save()
    for _ in range(2):
        sums = []
        for number in range(2):
            core = Core(tmp_path, number, 2)
            core.counts[KEY] += 0
            sums.append(core.hours()[0])
            core.counts[("other",)] += 1
            core.save()
        assert sums == [101, 1010]
    assert sorted(path.name for path in (tmp_path / "usage").iterdir()) == [
        "core-0.json",
        "core-1.json",
    ]


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":99,"hours":[]}', b'{"hours":7}'])
def test_a_damaged_file_is_reported_and_does_not_stop_the_start(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "usage").mkdir()
    (tmp_path / "usage" / "core-0.json").write_bytes(content)
    core = Core(tmp_path)
    assert len(core.refused) == 1 and "core-0.json" in core.refused[0]
    core.counts[KEY] += 1
    core.save()
    core.start()
    assert core.hours() == {0: 1} and not core.refused


def test_a_failed_save_is_repeated(tmp_path: Path) -> None:
    core = Core(tmp_path)
    core.counts[KEY] += 1
    (tmp_path / "usage").write_text("in the way")
    with pytest.raises(OSError, match="usage"):
        core.save()
    (tmp_path / "usage").unlink()
    core.save()
    assert msgspec.json.decode((tmp_path / "usage" / "core-0.json").read_bytes())["hours"]


def test_a_cancelled_save_does_not_replace_a_later_one(tmp_path: Path) -> None:
    core = Core(tmp_path)
    write, goes_on = core.history._write, threading.Event()

    def slowly(rows: list[Row]) -> None:
        goes_on.wait(10)
        write(rows)

    async def run() -> None:
        core.history._write = slowly  # type: ignore[method-assign]
        core.counts[KEY] += 1
        first = asyncio.ensure_future(core.history.save())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        core.counts[KEY] += 1
        last = asyncio.ensure_future(core.history.save())
        await asyncio.sleep(0)
        goes_on.set()
        await last

    asyncio.run(run())
    core.start()
    assert core.hours() == {0: 2}
