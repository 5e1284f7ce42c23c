"""Make docs/reliability.md and its appendix from the results of the last run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from chaos.found import FOUND
from chaos.run import Outcome
from chaos.tiers import Run, table
from chaos.totals import Simulation


class Chaos(msgspec.Struct, kw_only=True):
    """Of one run, without its histories. `faults`: fault -> episodes."""

    command: str
    network: str
    seconds: float
    episodes: int
    faults: dict[str, int]
    skipped: dict[str, str]
    acknowledged: int
    refused: int
    unknown: int
    reads: int
    tailed: int
    longest_pause: float
    acts: int = 0  # episodes in which operators asked for something, too
    store: dict[str, int] = {}
    recovered: int = 0
    slowest_recovery: float = 0.0
    memory: list[int] = []  # MiB of each node in the end, where it was measured
    wrong: list[str] = []

    @classmethod
    def of(cls, outcome: Outcome, command: str) -> Chaos:
        last = {sample.node: sample.rss >> 20 for sample in outcome.samples}
        return cls(
            command=f"python -m chaos {command}",
            network=outcome.network,
            seconds=outcome.seconds,
            episodes=len(outcome.episodes),
            faults=dict(Counter(episode.fault for episode in outcome.episodes).most_common()),
            skipped=outcome.skipped,
            acknowledged=outcome.acknowledged,
            refused=outcome.refused,
            unknown=outcome.unknown,
            reads=outcome.reads,
            tailed=outcome.tailed,
            longest_pause=outcome.longest_pause,
            acts=sum(bool(episode.act) for episode in outcome.episodes),
            store=outcome.store,
            recovered=outcome.recovered,
            slowest_recovery=max((episode.well for episode in outcome.episodes), default=0.0),
            memory=[last[node] for node in sorted(last)],
            wrong=outcome.wrong,
        )


class Mutant(msgspec.Struct):
    list: str
    name: str
    by: str


class When(msgspec.Struct, kw_only=True):
    """When a method ran that did not run with the others."""

    date: str
    command: str
    commit: str

    def __str__(self) -> str:
        return f"{self.date}, commit {self.commit}, `{self.command}`"


class Results(msgspec.Struct, kw_only=True):
    date: str = ""
    command: str = ""
    commit: str = ""
    machine: str = ""
    simulation: Simulation | None = None
    simulation_run: When | None = None  # None: with the rest
    chaos: list[Chaos] = []
    chaos_run: When | None = None
    soak: Chaos | None = None
    mutants: list[Mutant] = []
    mutants_date: str = ""  # they may have been tried on another day
    tiers: Run | None = None  # of `python -m chaos.tiers`

    @property
    def wrong(self) -> bool:
        runs = [*self.chaos, *([self.soak] if self.soak is not None else [])]
        failed = self.simulation is not None and self.simulation.failed
        return (
            bool(failed)
            or any(run.wrong for run in runs)
            or any(not mutant.by for mutant in self.mutants)
        )


HERE = Path(__file__).parent
WRONG_CHARACTERS = 200  # shown of what was wrong in a run


APPENDIX_HEAD = """# Reliability: counters and defects

<!-- written by `python -m chaos.evidence` (`make evidence`): edit `chaos/page.py` and `found.py` instead -->

Counters and defect lists for [reliability.md](reliability.md).
"""


def written(results: Results) -> str:
    """The page: methods, totals, limits."""
    head, tail = ((HERE / name).read_text() for name in ("page_head.md", "page_tail.md"))
    return _joined([head, _totals(results), f"## Test tiers\n\n{table(results.tiers)}", tail])


def appendix(results: Results) -> str:
    """Counters of the last run, planted defects and what caught them, defects that were found."""
    return _joined([APPENDIX_HEAD, *_results(results), *_found()])


def _joined(parts: list[str]) -> str:
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _last_run(results: Results) -> str:
    commit = f", commit {results.commit}" if results.commit else ""
    told = f"{results.date}, {results.machine}{commit}, `{results.command}`."
    for name, run in (("Simulation", results.simulation_run), ("Chaos", results.chaos_run)):
        if run is not None:
            told += f" {name} ran on {run}."
    return f"## Last run\n\n{told}\n"


def _totals(results: Results) -> str:
    """One row for each method, of the last run."""
    if not results.date:
        return "## Last run\n\nNo run has been recorded.\n"
    rows = []
    if (told := results.simulation) is not None:
        failed = f"**failed: {', '.join(map(str, told.failed))}**" if told.failed else "0 failed"
        rows.append(
            f"| simulation | {told.seeds:,} seeds, {told.simulated_hours:.1f} simulated hours | "
            f"{told.acknowledged:,} | {failed} |"
        )
    for run in [*results.chaos, *([results.soak] if results.soak is not None else [])]:
        name = "soak" if run is results.soak else f"chaos, {run.network}"
        lost = (
            f", {run.recovered:,} records recovered after the loss of all disks"
            if run.recovered
            else ""
        )
        wrong = _first(run.wrong) or "no problem found"
        rows.append(
            f"| {name} | {run.episodes} episodes in {run.seconds:.0f} s{lost} | "
            f"{run.acknowledged:,} | {wrong} |"
        )
    if results.mutants:
        caught = sum(bool(mutant.by) for mutant in results.mutants)
        rows.append(
            f"| mutations ({results.mutants_date}) | {len(results.mutants)} planted defects | | "
            f"{caught} caught |"
        )
    return (
        f"{_last_run(results)}\n"
        "| method | scope | acknowledged appends | result |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _first(wrong: list[str]) -> str:
    """Return the first problem, as the cell of a table; "" if there was none."""
    if not wrong:
        return ""
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{wrong[0].splitlines()[0][:WRONG_CHARACTERS]}{more}".replace("|", "\\|")


def _results(results: Results) -> list[str]:
    if not results.date:
        return ["## Last run\n\nNo run has been recorded.\n"]
    parts = [_last_run(results)]
    if results.simulation is not None:
        parts.append(_simulation(results.simulation))
    if results.chaos or results.soak:
        parts.append(
            _chaos([*results.chaos, *([results.soak] if results.soak else [])], results.soak)
        )
    if results.mutants:
        parts.append(_mutants(results.mutants, results.mutants_date))
    return parts


def _simulation(told: Simulation) -> str:
    failed = f"**failed: {', '.join(map(str, told.failed))}**" if told.failed else "none failed"
    rows = "\n".join(f"| {name} | {count:,} |" for name, count in told.faults.items() if count)
    return (
        f"### Simulation\n\n{told.seeds:,} seeds from {told.first_seed} on, {failed}. "
        f"The run covered {told.simulated_hours:.1f} simulated hours in "
        f"{told.seconds / 60:.0f} minutes, with {told.events:,} events, "
        f"{told.messages:,} messages and {told.terms:,} terms. "
        f"Clients got {told.acknowledged:,} appends acknowledged and {told.unknown:,} with an "
        f"unknown outcome. They read whole streams {told.reads:,} times and received "
        f"{told.tailed:,} records from live tails.\n\n"
        f"| event | count |\n|---|---|\n{rows}\n"
    )


def _chaos(runs: list[Chaos], soak: Chaos | None) -> str:
    lines = [
        "### Chaos\n",
        "| run | episodes | acknowledged | refused | unknown | reads | records from live tails | "
        "longest gap between acknowledged appends to a stream | slowest recovery | problems |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        name = "soak" if run is soak else run.network
        lines.append(
            f"| `{run.command}` ({name}, {run.seconds:.0f} s) | {run.episodes} | "
            f"{run.acknowledged:,} | {run.refused:,} | {run.unknown:,} | {run.reads:,} | "
            f"{run.tailed:,} | {run.longest_pause:.1f} s | {run.slowest_recovery:.1f} s | "
            f"{len(run.wrong) or 'none'} |"
        )
    wrong = [each for run in runs for each in run.wrong]
    if wrong:
        lines += ["", "Problems found:", "", *(f"* {each.splitlines()[0]}" for each in wrong)]
    faults: Counter[str] = Counter()
    for run in runs:
        faults += Counter(run.faults)
    lines += [
        "",
        "| fault | episodes |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in faults.most_common()),
    ]
    acts, recovered = sum(run.acts for run in runs), sum(run.recovered for run in runs)
    if acts:
        lines += [
            "",
            f"In {acts} of the episodes nodes also joined, were drained, emptied, replaced or "
            "removed, or groups moved, during the fault.",
        ]
    store: Counter[str] = Counter()
    for run in runs:
        store += Counter(run.store)
    if store:
        lines += [
            "",
            "Requests to the S3 server: "
            + ", ".join(f"{what} {count:,}" for what, count in store.most_common())
            + ".",
        ]
    if recovered:
        lines += [
            "",
            f"Some runs ended with the loss of all disks. All {recovered:,} records were then "
            "recovered from the object store alone.",
        ]
    skipped = {f"{name}: {why}" for run in runs for name, why in run.skipped.items()}
    lines += ["", "Skipped faults: " + ("; ".join(sorted(skipped)) if skipped else "none.")]
    if soak is not None and soak.memory:
        lines += [
            "",
            "During the soak the nodes' memory, file descriptors, journals and snapshots did not "
            f"grow. Memory of each node at the end, in MiB: {soak.memory}.",
        ]
    return "\n".join(lines) + "\n"


def _mutants(mutants: list[Mutant], date: str) -> str:
    caught = sum(bool(mutant.by) for mutant in mutants)
    rows = "\n".join(
        f"| {mutant.list} | {mutant.name} | {_short(mutant.by)} |" for mutant in mutants
    )
    return (
        f"### Mutations\n\nOn {date} `make mutants` caught {caught} of {len(mutants)} planted "
        f"defects.\n\n| suite | defect | caught by |\n|---|---|---|\n{rows}\n"
    )


def _short(by: str) -> str:
    text = by.split(": [", maxsplit=1)[0].replace("|", "\\|")
    return (text if len(text) < 90 else text[:87] + "…") or "**survives**"


def _found() -> list[str]:
    rows = "\n".join(f"| {found.what} | {found.by} | {found.test} |" for found in FOUND)
    return [
        "## Defects found before the first release\n\n| defect | found by | test |\n"
        f"|---|---|---|\n{rows}\n"
    ]
