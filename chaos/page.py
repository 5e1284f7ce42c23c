"""Make docs/reliability.md and its appendix from the results of the last run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chaos.found import FOUND
from chaos.results import PARTS, Again, Chaos, Mutant, Results, Simulation
from chaos.tiers import table

HERE = Path(__file__).parent
WRONG_CHARACTERS = 200  # shown of what was wrong in a run


APPENDIX_HEAD = """# Reliability: counters and defects

<!-- written by `python -m chaos.evidence` (`make evidence`): edit `chaos/page.py` and `found.py` instead -->

Counters and defect lists for [reliability.md](reliability.md).
"""


class Feature(NamedTuple):
    """A feature of the product: the worlds of the simulation that are for it, and the count of a
    chaos run that is of it; "" if chaos does not use it."""

    name: str
    worlds: tuple[str, ...]
    counted: str
    unit: str


FEATURES = (
    Feature(
        "replicated streams",
        ("swarm", "plain", "moves", "readers", "returns", "copies", "planned"),
        "acknowledged",
        "appends",
    ),
    Feature("diskless streams", ("diskless",), "", ""),
    Feature("switches of the profile", ("switched",), "switches", "switches"),
    Feature("leased streams", ("leased",), "rollovers", "rollovers"),
    Feature("consumer groups", ("groups", "members"), "commits", "commits"),
    Feature("Kafka producers and consumers", ("kafka",), "kafka_records", "records"),
    Feature(
        "transactions",
        ("transactions", "coordinated", "together"),
        "transactions",
        "transactions committed",
    ),
    Feature("key compaction", ("compacted",), "compacted", "records dropped"),
    Feature("reducers", ("reduced",), "", ""),
)
NO_RUN = "## Last run\n\nNo run has been recorded.\n"


def written(results: Results) -> str:
    """Return the page: methods, totals, limits."""
    head, tail = ((HERE / name).read_text() for name in ("page_head.md", "page_tail.md"))
    parts = [head, _totals(results), _features(results), *_seeds(results)]
    return _joined([*parts, f"## Test tiers\n\n{table(results.tiers)}", tail])


def appendix(results: Results) -> str:
    """Return counters of the last run, planted defects with their catches, and defects found."""
    return _joined([APPENDIX_HEAD, *_results(results), *_found()])


def _joined(parts: list[str]) -> str:
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _runs(results: Results) -> str:
    """Describe each part's time, commit and conditions; parts that agree share a line."""
    by_run: dict[tuple[str, str, str], list[str]] = {}
    for part in PARTS:
        if (when := results.runs.get(part)) is not None:
            around = (
                "what ran beside it was not recorded"
                if when.conditions is None
                else when.conditions.summary()
            )
            by_run.setdefault((when.date, when.commit, around), []).append(part)
    lines = [
        f"* {', '.join(parts)}: {date}{f', commit {commit}' if commit else ''}; {around}."
        for (date, commit, around), parts in by_run.items()
    ]
    return f"Measured on {results.machine}.\n\n" + "\n".join(lines) + "\n"


def _totals(results: Results) -> str:
    """Return a table with a row for each method, of its last run."""
    if not results.runs:
        return NO_RUN
    rows = [f"| {' | '.join(row)} |" for row in _methods(results)]
    return (
        f"## Last run\n\n{_runs(results)}\n"
        "| method | scope | acknowledged appends | result |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _methods(results: Results) -> Iterator[tuple[str, str, str, str]]:
    if (found := results.simulation) is not None:
        yield _simulated("simulation", ["swarm"], {"swarm": found}, results)
    if results.worlds:
        yield _simulated("simulation, other worlds", list(results.worlds), results.worlds, results)
    for run in results.disturbed:
        name = "soak" if run is results.soak else f"chaos, {run.network}"
        scope = f"{run.episodes} episodes in {run.seconds:.0f} s"
        if run.recovered:
            scope += f", {run.recovered:,} records recovered after the loss of all disks"
        yield name, scope, f"{run.acknowledged:,}", _first(run.wrong)
    for fuzzed in results.fuzz:
        scope = f"{sum(fuzzed.counts.values()):,} cases in {fuzzed.seconds:.0f} s"
        yield f"fuzzing, {fuzzed.name}", f"seed {fuzzed.seed}, {scope}", "", _first(fuzzed.wrong)
    for upgrade in results.upgrades:
        levels = "level {} to {}".format(*upgrade.levels)
        steps = f"{len(upgrade.steps)} steps from {upgrade.revision} ({levels})"
        scope = f"{steps} in {upgrade.seconds:.0f} s"
        yield "upgrade and way back", scope, f"{upgrade.acknowledged:,}", _first(upgrade.wrong)
    if results.mutants:
        caught = sum(bool(mutant.by) for mutant in results.mutants)
        planted = f"{len(results.mutants)} planted defects"
        yield "mutations", planted, "", f"{caught} caught"


def _simulated(
    name: str, worlds: list[str], found: dict[str, Simulation], results: Results
) -> tuple[str, str, str, str]:
    some = [found[world] for world in worlds if world in found]
    seeds, hours = sum(each.seeds for each in some), sum(each.simulated_hours for each in some)
    failed = _failures({world: found[world] for world in worlds if world in found}, results)
    return (
        name,
        f"{seeds:,} seeds, {hours:.1f} simulated hours",
        f"{sum(each.acknowledged for each in some):,}",
        failed,
    )


def _failures(found: dict[str, Simulation], results: Results) -> str:
    """List the seeds that failed; one whose cause is repaired says that it passes now."""
    seeds = []
    for world, each in found.items():
        for seed in each.failed:
            repaired = "" if results.repaired(world, seed) is None else " (repaired, passes now)"
            seeds.append(f"{world} {seed}{repaired}")
    return f"**failed: {', '.join(seeds)}**" if seeds else "0 failed"


def _features(results: Results) -> str:
    """Return a table with a row for each feature: the worlds that are for it, and its part of the
    chaos runs."""
    if not results.runs:
        return "## Features\n\nNo run has been recorded.\n"
    known = {
        world: found
        for world, found in {"swarm": results.simulation, **results.worlds}.items()
        if found is not None
    }
    rows = []
    for each in FEATURES:
        simulated = "not run"
        failed = acknowledged = ""
        if ran := [world for world in each.worlds if world in known]:
            _, simulated, acknowledged, failed = _simulated("", ran, known, results)
        chaos = "not a part of it"
        if each.counted:
            count = sum(getattr(run, each.counted) for run in results.disturbed)
            wrong = sum(bool(run.wrong) for run in results.disturbed)
            counted = f"{count:,} {each.unit}" if count else f"{each.unit} not counted"
            chaos = f"{len(results.disturbed)} runs, {counted}, {wrong} failed"
        worlds = ", ".join(f"`{world}`" for world in each.worlds)
        rows.append(
            f"| {each.name} | {worlds} | {simulated} | {acknowledged} | {failed} | {chaos} |"
        )
    return (
        "## Features\n\n| feature | worlds of the simulation | seeds | acknowledged | result | "
        "chaos and soak |\n|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _seeds(results: Results) -> list[str]:
    """Return the seeds that `make hunt` or an evidence run found failing, and their state."""
    if not results.again:
        return []
    rows = "\n".join(
        f"| {each.kind} {each.seed} | {each.commit} | {_repair(each)} | {_now(each)} |"
        for each in results.again
    )
    when = results.runs.get("seeds")
    ran = f" Run again on {when.date}, commit {when.commit}." if when is not None else ""
    return [
        "## Seeds that failed\n\nThe gate runs those of the simulation that are repaired, on every "
        f"change.{ran}\n\n| seed | failed on commit | repaired by | now |\n|---|---|---|---|\n{rows}\n"
    ]


def _repair(each: Again) -> str:
    return each.repair.replace("|", "\\|") if each.state == "fixed" else "**open**"


def _now(each: Again) -> str:
    return {True: "passes", False: "**fails**", None: "not run again"}[each.passes]


def _first(wrong: list[str]) -> str:
    """Return the first problem, as the cell of a table."""
    if not wrong:
        return "no problem found"
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{wrong[0].splitlines()[0][:WRONG_CHARACTERS]}{more}".replace("|", "\\|")


def _results(results: Results) -> list[str]:
    if not results.runs:
        return [NO_RUN]
    parts = [f"## Last run\n\n{_runs(results)}\n{_commands(results)}"]
    if results.simulation is not None:
        parts.append(_simulation(results.simulation, results))
    if results.worlds:
        parts.append(_worlds(results))
    if results.disturbed:
        parts.append(_chaos(results.disturbed, results.soak))
    if results.fuzz:
        parts.append(_fuzz(results))
    if results.upgrades:
        parts.append(_upgrades(results))
    if results.mutants:
        parts.append(_mutants(results.mutants, results.runs["mutations"].date))
    return parts


def _commands(results: Results) -> str:
    return "".join(
        f"* {part}: `{results.runs[part].command}`\n" for part in PARTS if part in results.runs
    )


def _worlds(results: Results) -> str:
    rows = "\n".join(
        f"| `{world}` | {found.first_seed} | {found.seeds:,} | {found.simulated_hours:.2f} | "
        f"{found.acknowledged:,} | {found.unknown:,} | {found.reads:,} | {found.terms:,} | "
        f"{_failures({world: found}, results)} |"
        for world, found in results.worlds.items()
    )
    return (
        "### Worlds\n\n| world | first seed | seeds | simulated hours | acknowledged | unknown | "
        f"reads | terms | result |\n|---|---|---|---|---|---|---|---|---|\n{rows}\n"
    )


def _fuzz(results: Results) -> str:
    rows = "\n".join(
        f"| {each.name} | {each.seed} | {each.seconds:.0f} | "
        + ", ".join(f"{name} {count:,}" for name, count in each.counts.items()).replace("|", "\\|")
        + f" | {_first(each.wrong)} |"
        for each in results.fuzz
    )
    return (
        "### Fuzzing\n\n| fuzzer | seed | seconds | what it did and saw | problems |\n"
        f"|---|---|---|---|---|\n{rows}\n"
    )


def _upgrades(results: Results) -> str:
    parts = []
    for run in results.upgrades:
        counts = (
            f"{run.acknowledged:,} appends acknowledged, {run.refused:,} refused, {run.unknown:,} "
            f"with an unknown outcome, {run.reads:,} reads, {run.tailed:,} records from live tails, "
            f"{run.restored:,} records restored after the loss of all disks, "
            f"{run.transactions:,} transactions committed; the longest gap "
            f"between acknowledged appends to a stream was {run.longest_pause:.1f} s"
        )
        parts.append(
            f"`{run.command}`: {'; '.join(run.steps)}. {counts}. Problems: {_first(run.wrong)}."
        )
    return "### Upgrades\n\n" + "\n\n".join(parts) + "\n"


def _simulation(swarm: Simulation, results: Results) -> str:
    failed = _failures({"swarm": swarm}, results).replace("0 failed", "none failed")
    rows = "\n".join(f"| {name} | {count:,} |" for name, count in swarm.faults.items() if count)
    return (
        f"### Simulation\n\n{swarm.seeds:,} seeds from {swarm.first_seed} on, {failed}. "
        f"The run covered {swarm.simulated_hours:.1f} simulated hours in "
        f"{swarm.seconds / 60:.0f} minutes, with {swarm.events:,} events, "
        f"{swarm.messages:,} messages and {swarm.terms:,} terms. "
        f"Clients got {swarm.acknowledged:,} appends acknowledged and {swarm.unknown:,} with an "
        f"unknown outcome. They read whole streams {swarm.reads:,} times and received "
        f"{swarm.tailed:,} records from live tails.\n\n"
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
