"""Measure what else a machine does during a run: the load before it, and the CPU time of processes
that the run did not start.

A process belongs to the run if it descends from the root process, or did so when it was seen
before. Kernel threads are not counted: they write what the run wrote."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

LOAD_MAX = 0.5  # for each core, before a run
OTHERS_MAX = 5.0  # percent of the machine that other processes and other guests may use
INTERVAL_SECONDS = 2.0
LOAD_BEFORE = "BENCH_RUN_LOAD"  # load before the first of several runs; later it is their own
TICKS = os.sysconf("SC_CLK_TCK")
KERNEL = 2  # kthreadd


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around a run. `load`: before it, of the last minute; `load_max`: at most during
    the run, its own included; `others`, `stolen`: percent of all cores that other processes and the
    hypervisor took."""

    cores: int
    load: float
    load_max: float = 0.0
    others: float = 0.0
    stolen: float = 0.0

    @property
    def busy(self) -> str:
        """Return why the machine counts as busy; "" for a quiet one."""
        reasons = []
        if self.load > LOAD_MAX * self.cores:
            reasons.append(f"a load of {self.load:.1f} on {self.cores} cores before it")
        if self.others > OTHERS_MAX:
            reasons.append(f"other processes took {self.others:.0f} % of the machine")
        if self.stolen > OTHERS_MAX:
            reasons.append(f"the hypervisor took {self.stolen:.0f} % of the machine")
        return ", ".join(reasons)

    def summary(self) -> str:
        """Describe them in a line."""
        beside = f"beside it other processes took {self.others:.1f} % of the machine"
        return (
            f"load {self.load:.1f} before it, {self.load_max:.1f} at most during it; {beside}"
            + (f", the hypervisor {self.stolen:.1f} %" if self.stolen >= 1 else "")
            + ("; **a busy machine**" if self.busy else "")
        )


class ProcessTime(NamedTuple):
    """A process: its parent, its start in ticks after boot, and the ticks of CPU that it used."""

    parent: int
    start: int
    ticks: int


Processes = Mapping[int, ProcessTime]


class OtherProcesses:
    """Counts the CPU ticks of processes outside the tree of `root`, from look to look."""

    def __init__(self, root: int) -> None:
        self.ticks = 0
        self._root = root
        self._own: set[tuple[int, int]] = set()
        self._before: Processes = {}

    def note(self, processes: Processes) -> None:
        """Take a list of all processes. What began since the last one counts as a whole, unless
        this is the first."""
        for pid in processes:
            if self._is_own(pid, processes):
                self._own.add((pid, processes[pid].start))
        for pid, each in processes.items():
            if (pid, each.start) in self._own or KERNEL in (pid, each.parent):
                continue
            earlier = self._before.get(pid)
            if earlier is not None and earlier.start == each.start:
                self.ticks += each.ticks - earlier.ticks
            elif self._before:
                self.ticks += each.ticks
        self._before = processes

    def _is_own(self, pid: int, processes: Processes) -> bool:
        while pid in processes:
            if pid == self._root or (pid, processes[pid].start) in self._own:
                return True
            pid = processes[pid].parent
        return False


def list_processes(proc: Path = Path("/proc")) -> dict[int, ProcessTime]:
    """Read all processes of the machine."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(errors="replace")
            except OSError:  # it ended meanwhile
                continue
            fields = text.rpartition(")")[2].split()
            found[int(folder.name)] = ProcessTime(
                int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12])
            )
    return found


def stolen_ticks(stat: str) -> int:
    """Return the ticks that other guests of the host took, of the first line of /proc/stat."""
    fields = stat.partition("\n")[0].split()
    return int(fields[8]) if len(fields) > 8 else 0


class Watch:
    """Measures the conditions of a run while it is entered, in a thread. `load`: before the first
    of several runs; without it that of now."""

    def __init__(self, root: int | None = None, load: float | None = None) -> None:
        self._others = OtherProcesses(os.getpid() if root is None else root)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._load = (
            float(os.environ.get(LOAD_BEFORE) or os.getloadavg()[0]) if load is None else load
        )
        self._load_max = 0.0
        self._began, self._stolen = time.monotonic(), _stolen_now()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin the thread."""
        self._others.note(list_processes())
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the measurements stay."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def conditions(self) -> Conditions:
        """Return the measurements so far."""
        cores = os.cpu_count() or 1
        ticks = max(time.monotonic() - self._began, 1 / TICKS) * TICKS * cores
        return Conditions(
            cores=cores,
            load=round(self._load, 2),
            load_max=round(max(self._load_max, os.getloadavg()[0]), 2),
            others=round(self._others.ticks / ticks * 100, 1),
            stolen=round((_stolen_now() - self._stolen) / ticks * 100, 1),
        )

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        self._others.note(list_processes())
        self._load_max = max(self._load_max, os.getloadavg()[0])


def _stolen_now() -> int:
    return stolen_ticks(Path("/proc/stat").read_text())
