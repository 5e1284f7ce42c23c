"""Runs of simulated clusters with leased streams are behaviours of the specification, as TLC says;
a run with a lie in it, or of a node without a fence, is none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from long_tests import long
from msgspec.structs import replace
from sim.cluster import Node
from sim.leased import RECORDS, TracedEpisode
from sim.segment_traces import Step, last_term, module_of
from tlc import DEADLOCK, HOLDS, TLA, VIOLATED, check

from polynya.local.segments import SegmentWriter

SEEDS = (1, 9, 14)  # short ones, with crashes and elections
TAKEN = 700  # steps of a trace, from its beginning on
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
Trace = list[Step]


def recorded(seed: int) -> Trace:
    episode = TracedEpisode(seed)
    episode.play()
    return episode.steps()


def judged(folder: Path, traces: list[Trace], *, deadlock: bool = True) -> tuple[int, str]:
    """Return TLC's exit code and output for these traces. Without `deadlock`, a trace may end where
    the specification has no such step."""
    (folder / "Recorded.tla").write_text(module_of(traces))
    terms = ", ".join(map(str, range(2, last_term(traces) + 1)))
    config = (TLA / "SegmentTraces.cfg").read_text()
    assert f"Limit = {RECORDS}\n" in config
    config = config.replace("{2}", f"{{{terms}}}")
    if not deadlock:
        config = config.replace("CHECK_DEADLOCK TRUE", "CHECK_DEADLOCK FALSE")
    return check(folder, "SegmentTraces", config)


def states(output: str) -> int:
    """Return the number of states in TLC's complete search."""
    found = re.search(r"([\d,]+) distinct states found, 0 states left", output)
    assert found is not None, output
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize(
    "seeds", [SEEDS, *long([range(2, 22), range(22, 42)])], ids=lambda seeds: f"{len(seeds)}"
)
def test_what_simulated_clusters_do_is_specified(tmp_path: Path, seeds: Sequence[int]) -> None:
    traces = [recorded(seed)[:TAKEN] for seed in seeds]
    kinds = Counter(step.kind for trace in traces for step in trace)
    assert set(kinds) >= {
        "begin", "elect", "append", "rollover", "replicate", "sync", "commit", "learn",
        "acknowledge", "read", "crash",
    }  # fmt: skip
    code, output = judged(tmp_path, traces)
    assert code == HOLDS, output
    assert states(output) == sum(map(len, traces)), "each step was taken"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return recorded(1)[:TAKEN]


def where(trace: Trace, kind: str, number: int = 3) -> int:
    return [at for at, step in enumerate(trace) if step.kind == kind][number]


def early(trace: Trace) -> Trace:
    """An append is acknowledged before it is committed."""
    at = where(trace, "acknowledge")
    same = [step.kind == "append" and step.at == trace[at].at for step in trace]
    return [*trace[: same.index(True) + 1], trace[at]]


def by_another(trace: Trace) -> Trace:
    """Another node than the writer appends."""
    at = where(trace, "append")
    return [*trace[:at], replace(trace[at], node=trace[at].node % 3 + 1)]


def alone(trace: Trace) -> Trace:
    """A leader commits what no other node has on its disk."""
    at = where(trace, "commit")
    end = trace[at]
    begin = max(n for n in range(at) if trace[n].kind == "append" and trace[n].at == end.at)
    others = [step for step in trace[begin:at] if step.kind != "sync" or step.node == end.node]
    return [*trace[:begin], *others, end]


def twice(trace: Trace) -> Trace:
    """One epoch is opened twice."""
    at = where(trace, "rollover", 1)
    return [*trace[:at], replace(trace[at], epoch=trace[at].epoch - 1)]


def early_rollover(trace: Trace) -> Trace:
    """A segment is closed that is not full."""
    at = where(trace, "append")
    step = trace[at]
    rolled = Step("rollover", step.node, step.at, writer=step.node % 3 + 1, epoch=1)
    epochs = [each.epoch for each in trace[:at] if each.kind == "rollover"]
    return [*trace[:at], replace(rolled, epoch=max(epochs, default=0) + 1)]


def without_memory(trace: Trace) -> Trace:
    """Restart a node without its synced data."""
    at = where(trace, "sync", 20)
    return [*trace[: at + 1], Step("crash", trace[at].node, trace[at].at - 1)]


def by_the_old_leader(trace: Trace) -> Trace:
    """A leader answers a read after others elected the next one."""
    at = where(trace, "elect", 1)
    before = max(n for n in range(at) if trace[n].kind == "commit")
    return [*trace[: at + 1], replace(trace[before], kind="read")]


def outvoted(trace: Trace) -> Trace:
    """A node is elected whose log lacks an entry of one that votes for it."""
    at = where(trace, "append")
    leader = trace[at].node
    behind = leader % 3 + 1
    changes = ("elect", "append", "rollover", "replicate", "crash")
    lengths = [step.at for step in trace[:at] if step.node == behind and step.kind in changes]
    term = max((step.term for step in trace[:at] if step.kind == "elect"), default=1)
    votes = (min(leader, behind), max(leader, behind))
    return [*trace[: at + 1], Step("elect", behind, lengths[-1] + 1, term + 1, votes)]


def test_lies_are_refused(tmp_path: Path, trace: Trace) -> None:
    lies = [
        lie(trace)
        for lie in (
            early, by_another, alone, twice, early_rollover, without_memory, by_the_old_leader, outvoted
        )
    ]  # fmt: skip
    code, output = judged(tmp_path, lies, deadlock=False)
    assert code == HOLDS, output
    assert states(output) == sum(len(lie) - 1 for lie in lies), "each trace up to its last step"


@pytest.mark.long
def test_a_node_that_does_not_claim_its_segments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentWriter, "admit", lambda *_: True)
    monkeypatch.setattr(Node, "_is_by_its_writer", lambda *_: None)
    code, output = judged(tmp_path, [recorded(1)[:TAKEN]])
    assert code in (DEADLOCK, VIOLATED), output
