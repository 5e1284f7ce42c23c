"""CPU seconds of each test, including all processes that it starts: a fair measure on a shared
machine.

`make test-times` runs the tests with `--costs FILE` and prints the most expensive ones. It
keeps the times of files, which order a run, and the names of slow tests, which `make check`
leaves out.

Measure on an idle machine: a busy one adds a third to CPU seconds and lengthens waits."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pytest
from tiers.marked_files import names_mark

KEPT = Path(__file__).with_suffix(".json")
SLOW = KEPT.with_name("slow_tests.txt")
SLOW_FROM = (0.1, 0.3)  # CPU seconds, or seconds
SHOWN = 40
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
ALL_LONG = re.compile(r"mark\.long\b|(?<!\*)\blong\(")
TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """CPU seconds, and seconds from the beginning to the end."""

    cpu: float
    wall: float

    def __add__(self, other: Any) -> Cost:
        return Cost(self.cpu + other.cpu, self.wall + other.wall)


UNKNOWN = Cost(10.0, 30.0)  # of a file of processes without a record


def cpu_seconds_used() -> float:
    """Return the CPU seconds of this process, of the children it waited for, and of all its
    current descendants, ended ones included."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total + sum(_below(os.getpid()))


def _below(root: int) -> Iterator[float]:
    """Yield the CPU seconds of each descendant, with those of its children that ended."""
    children: dict[int, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            children[int(fields[1])].append(int(name))
            seconds[int(name)] = sum(map(int, fields[11:15])) / TICKS
    todo = list(children[root])
    while todo:
        each = todo.pop()
        yield seconds[each]
        todo += children[each]


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, where Linux can: otherwise their CPU time is
    lost. They stay as zombies to the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Meter:
    """A plugin of pytest that measures each test and appends a line of JSON to a file: name, CPU
    seconds, seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_worker = "PYTEST_XDIST_WORKER" in os.environ
        self._began = Cost(0.0, 0.0)
        adopt_orphans()
        if not self._is_worker:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        self._began = Cost(cpu_seconds_used(), perf_counter())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            # less than none, where orphans are not adopted
            cpu = max(0.0, cpu_seconds_used() - self._began.cpu)
            cost = (cpu, perf_counter() - self._began.wall)
            report.user_properties.append(("cost", cost))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the line where the reports of all workers come together."""
        properties = dict(report.user_properties)
        cost = properties.get("cost")
        if cost is not None and not self._is_worker:
            line = [report.nodeid, *(round(each, 3) for each in cost), "mark" in properties]
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def measured(paths: list[Path], *, alone: bool = False) -> dict[str, Cost]:
    """Return the cost of each test in files that a meter wrote; of several for one test, the last.
    `alone`: of those that start no processes, by their marks."""
    lines = (json.loads(line) for path in paths for line in path.read_text().splitlines())
    return {
        name: Cost(cpu, wall)
        for name, cpu, wall, starts_processes in lines
        if not (alone and starts_processes)
    }


def by_file(tests: dict[str, Cost]) -> dict[str, Cost]:
    files: dict[str, Cost] = defaultdict(lambda: Cost(0.0, 0.0))
    for name, cost in tests.items():
        files[name.partition("::")[0]] += cost
    return dict(files)


def kept() -> dict[str, Cost]:
    """Return the costs that are checked in."""
    return {name: Cost(*cost) for name, cost in json.loads(KEPT.read_text()).items()}


def unrecorded() -> list[str]:
    """Return the files of processes that have no record, but for those that are all for
    `make long`: each counts as `UNKNOWN`."""
    root, known = KEPT.parents[1], kept()
    names = ((path, path.relative_to(root).as_posix()) for path in KEPT.parent.rglob("test_*.py"))
    return sorted(
        name
        for path, name in names
        if name not in known and names_mark(path) and not _is_long(path.read_text())
    )


def _is_long(tests: str) -> bool:
    """Report whether each test has the mark, or all its cases have."""
    return len(ALL_LONG.findall(tests)) >= tests.count("def test_")


def keep(files: dict[str, Cost]) -> None:
    """Replace the record of these files; drop files that are gone."""
    root = KEPT.parents[1]
    known = {name: cost for name, cost in (kept() | files).items() if (root / name).exists()}
    lines = (f'"{name}": [{cost.cpu:.1f}, {cost.wall:.1f}]' for name, cost in sorted(known.items()))
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def keep_slow(tests: dict[str, Cost]) -> None:
    """Replace the record of these tests' files; drop files that are gone."""
    root, files = SLOW.parents[1], by_file(tests)
    known = [
        name
        for name in slow()
        if (file := name.partition("::")[0]) not in files and (root / file).exists()
    ]
    known += [
        name
        for name, cost in tests.items()
        if cost.cpu >= SLOW_FROM[0] or cost.wall >= SLOW_FROM[1]
    ]
    SLOW.write_text("".join(f"{name}\n" for name in sorted(known)))


def slow() -> frozenset[str]:
    """Return the checked-in names of slow tests, which `make check` leaves out."""
    return frozenset(SLOW.read_text().splitlines())


def order(files: dict[str, Cost]) -> dict[str, float]:
    """Return the seconds that a file keeps a worker busy: with work of its own processes, or waiting."""
    return {name: max(cost) for name, cost in files.items()}


def table(costs: dict[str, Cost]) -> str:
    dearest = sorted(costs.items(), key=lambda item: item[1], reverse=True)[:SHOWN]
    return "\n".join(
        [
            "    CPU    wall",
            *(f"{cost.cpu:7.1f} {cost.wall:7.1f}  {name}" for name, cost in dearest),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cpu_seconds", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("costs", nargs="+", type=Path, help="files that pytest --costs wrote")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"write the times of files to {KEPT.name}, by which a run is ordered, and the names "
        f"of slow tests to {SLOW.name}",
    )
    options = parser.parse_args()
    tests = measured(options.costs)
    files = by_file(tests)
    print(
        f"{table(files)}\n\n{table(tests)}\n\n{sum(cost.cpu for cost in tests.values()):.0f} CPU "
        f"seconds, {len(tests)} tests"
    )
    if options.keep:
        keep(files)
        keep_slow(measured(options.costs, alone=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
