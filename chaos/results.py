"""The numbers of docs/reliability.json, of which `chaos.page` makes the pages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from chaos.quiet import Conditions
from chaos.tiers import Run

if TYPE_CHECKING:
    from chaos.run import Outcome  # the simulation reads this module, and runs no node

PARTS = (
    "simulation", "worlds", "chaos", "soak", "fuzz", "upgrades", "seeds", "mutations"
)  # fmt: skip


class Simulation(msgspec.Struct, kw_only=True):
    """Totals of all seeds. `faults` by class: mishaps, what the network and the store did, and
    deaths by a disk."""

    first_seed: int = 0
    seeds: int = 0
    failed: list[int] = []
    events: int = 0
    messages: int = 0
    simulated_hours: float = 0.0
    acknowledged: int = 0
    unknown: int = 0
    reads: int = 0
    tailed: int = 0
    terms: int = 0
    evicted: int = 0  # streams …
    returned: int = 0
    seconds: float = 0.0
    faults: dict[str, int] = {}

    def take(self, more: Simulation) -> None:
        """Add the findings of other seeds, but not their number."""
        for name in self.__struct_fields__:
            if name not in ("first_seed", "seeds", "faults"):
                setattr(self, name, getattr(self, name) + getattr(more, name))
        self.faults = dict((Counter(self.faults) + Counter(more.faults)).most_common())


class Chaos(msgspec.Struct, kw_only=True):
    """One run, without its histories. `faults`: fault -> episodes."""

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
    rollovers: int = 0  # of leased streams
    commits: int = 0  # of a Kafka consumer group
    kafka_records: int = 0
    compacted: int = 0  # records that key compaction dropped
    transactions: int = 0  # of Kafka clients, committed
    switches: int = 0  # of a profile
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
            rollovers=outcome.rollovers,
            commits=outcome.commits,
            kafka_records=outcome.kafka_records,
            compacted=outcome.compacted,
            transactions=outcome.transactions,
            switches=outcome.switches,
            slowest_recovery=max((episode.well for episode in outcome.episodes), default=0.0),
            memory=[last[node] for node in sorted(last)],
            wrong=outcome.wrong,
        )


class Mutant(msgspec.Struct):
    """A planted defect and its catch; "": none."""

    list: str
    name: str
    by: str


class Fuzzed(msgspec.Struct, kw_only=True):
    """The work and counts of one fuzzer."""

    name: str
    seed: int
    seconds: float
    counts: dict[str, int] = {}
    wrong: list[str] = []


class Upgraded(msgspec.Struct, kw_only=True):
    """One rolling upgrade. `steps`: the completed ones, downgrades included."""

    revision: str
    command: str = ""
    levels: tuple[int, int] = (0, 0)
    steps: list[str] = []
    seconds: float = 0.0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    reads: int = 0
    tailed: int = 0
    restored: int = 0  # records that were there after the loss of all disks
    transactions: int = 0  # committed
    longest_pause: float = 0.0
    wrong: list[str] = []


class Again(msgspec.Struct, kw_only=True):
    """A seed that failed once and is rerun. `repair`: the commit that fixed its cause, and its
    effect; `passes`: None without a rerun."""

    kind: str
    seed: int
    commit: str
    state: str
    repair: str = ""
    passes: bool | None = None


class When(msgspec.Struct, kw_only=True):
    """The time of a part's run. `source`: the last commit that changed the product."""

    date: str
    command: str
    commit: str = ""
    source: str = ""
    conditions: Conditions | None = None

    def __str__(self) -> str:
        around = "" if self.conditions is None else f", {self.conditions.summary()}"
        return f"{self.date}, commit {self.commit}, `{self.command}`{around}"


class Results(msgspec.Struct, kw_only=True):
    """The last result of each part. `runs`: part -> when it ran."""

    machine: str = ""
    runs: dict[str, When] = {}
    simulation: Simulation | None = None
    worlds: dict[str, Simulation] = {}
    chaos: list[Chaos] = []
    soak: Chaos | None = None
    fuzz: list[Fuzzed] = []
    upgrades: list[Upgraded] = []
    again: list[Again] = []
    mutants: list[Mutant] = []
    tiers: Run | None = None  # of `python -m chaos.tiers`

    @property
    def disturbed(self) -> list[Chaos]:
        """Return all runs of real nodes under faults."""
        return [*self.chaos, *([self.soak] if self.soak is not None else [])]

    def repaired(self, kind: str, seed: int) -> Again | None:
        """Return the record of a failed seed, if its cause is fixed and it passes."""
        return next(
            (
                each
                for each in self.again
                if (each.kind, each.seed, each.state) == (kind, seed, "fixed") and each.passes
            ),
            None,
        )

    @property
    def wrong(self) -> bool:
        """Report whether something failed whose cause is not repaired."""
        simulated = {"swarm": self.simulation, **self.worlds}
        return (
            any(
                self.repaired(kind, seed) is None
                for kind, found in simulated.items()
                if found is not None
                for seed in found.failed
            )
            or any(run.wrong for run in self.disturbed)
            or any(run.wrong for run in self.fuzz)
            or any(run.wrong for run in self.upgrades)
            or any(each.passes is False for each in self.again)
            or any(not mutant.by for mutant in self.mutants)
        )
