"""Raft with one mistake at a time: each must be caught. `PYTHONPATH=tests:src python -m
sim.raft_mutants [NAME …]` tries them by hand.

A mutant is a copy of the package in which one expression, or some statements, are others
(sim/code_edits.py). The chaos of `sim/raft_chaos.py` has to find it by what must never happen
(`sim/raft_checks.py`): a story whose trace changed would prove little. Where chance would need too
long, a story sets the scene.
"""

# ruff: noqa: E501 the list is easier to read with a mutant a line

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from sim.code_edits import Stale, edited_source
from sim.mutant_runs import check_fault, failing_test

PARTS = ("disk_loss", "raft_parts", "raft_losses")  # tests that a mutant has to pass in the end
ROOT = Path(__file__).parents[2]


class Mutant(msgspec.Struct, frozen=True):
    file: str
    old: str
    new: str
    within: str = ""  # the function or method, when others have the same code
    seeds: int = 40  # 0: chance does not find it in so many
    test: str = ""  # of the parts; it is tried before all others


MUTANTS = {
    "votes twice in a term": Mutant("election.py", "granted = fresh and raft.leader == 0 and (raft.vote in {0, message.sender})", "granted = fresh and raft.leader == 0\nraft.vote = 0"),
    "forgets its vote at a restart": Mutant("state.py", "restored.hard_state.vote", "0"),
    "answers before term and vote are durable": Mutant("state.py", "self.hard_durable", "True", within="RaftState.send"),
    "votes for a shorter log": Mutant("election.py", "(message.last_term, message.last_index) >= (raft.log.last_term, raft.log.last)", "True"),
    "compares logs by length alone": Mutant("election.py", "(message.last_term, message.last_index) >= (raft.log.last_term, raft.log.last)", "message.last_index >= raft.log.last"),
    "breaks the promise that leases rest on": Mutant("election.py", "raft.now_ms - raft.heard_ms < raft.settings.election_ms", "False"),
    "forgets its promise when its leader is lost elsewhere": Mutant("election.py", "max(raft.heard_ms, min(heard_ms, raft.now_ms))", "-NEVER", seeds=0),
    "keeps no promise after a restart": Mutant("state.py", "self.now_ms = self.heard_ms = self.timer_ms = self.last_active_ms = now_ms", "self.heard_ms = -NEVER\nself.now_ms = self.timer_ms = self.last_active_ms = now_ms"),
    "starts at once when it is the only voter": Mutant("membership.py", "known.members", "known.voters"),
    "counts a lease from the answer": Mutant("reading.py", "raft.lead.lease_begin_ms = raft.lead.rounds.popleft()[1]", "raft.lead.rounds.popleft()\nraft.lead.lease_begin_ms = raft.now_ms"),
    "makes leases longer than the promise": Mutant("settings.py", "int(self.election_ms * (1 - self.clock_drift) / (1 + self.clock_drift)) - 2", "self.election_ms * 2"),
    "takes no account of clocks that drift": Mutant("settings.py", "int(self.election_ms * (1 - self.clock_drift) / (1 + self.clock_drift)) - 2", "int(self.election_ms * 1.1)"),
    "keeps the lease while it hands over": Mutant("leading.py", "raft.lead.transfer_sent = True", "pass", seeds=0),
    "takes the lease of one follower": Mutant("reading.py", (
        "raft.configuration.agreed(lambda node: raft.lead.context if node == raft.node else "
        "raft.peers[node].context)"
    ), "raft.lead.context"),
    "reads without asking anyone": Mutant("reading.py", "has_lease(raft)", "True", within="_take"),
    "reads before an entry of its term is committed": Mutant("reading.py", "reads.new and raft.commit >= raft.lead.own_term_index", "reads.new"),
    "takes any answer to a read": Mutant("reading.py", "if message.context > reads.context:\n    return", "pass", seeds=0, test="test_raft_parts.py::test_an_answer_that_was_not_asked_for_answers_no_read"),
    "reads before it has applied": Mutant("reading.py", "index <= raft.applied", "True"),
    "takes an answer to an earlier life": Mutant("reads.py", "self.context = context", "self.context = 0"),
    "commits an entry of an older term by counting": Mutant("leading.py", "reached <= raft.commit or raft.log.term(reached) != raft.term", "reached <= raft.commit"),
    "counts itself before it has written": Mutant("leading.py", "raft.durable", "raft.log.last"),
    "commits with a minority": Mutant("configuration.py", "(len(voters) - 1) // 2", "len(voters) // 2 + (len(voters) > 2)"),
    "acknowledges before it has written": Mutant("following.py", "match = min(raft.verified, raft.durable)\nanswered = raft.verified <= raft.durable", "match = raft.verified\nanswered = True"),
    "acknowledges what it has not compared": Mutant("following.py", "min(raft.verified, raft.durable)", "raft.durable", within="flush"),
    "believes a commit beyond what it has compared": Mutant("following.py", "min(commit, raft.verified)", "min(commit, raft.log.last)", seeds=0, test="test_raft_parts.py::test_a_commit_counts_no_further_than_the_log_was_compared"),
    "keeps acknowledgements over terms": Mutant("election.py", "raft.verified = raft.acked = 0\nraft.ack_due = False", "pass", within="become_follower"),
    "takes entries that do not fit": Mutant("following.py", "log.term(prev_index) != message.prev_term", "log.term(prev_index) is None"),
    "does not cut what differs": Mutant("following.py", "log.term(entry.index) != entry.term", "log.term(entry.index) is None"),
    "forgets what a cut takes from the disk": Mutant("state.py", "self.durable = min(self.durable, index - 1)", "pass"),
    "counts a write that a cut has made void": Mutant("state.py", "for write in self.writes:\n    write.last = min(write.last, index - 1)", "pass"),
    "drops the majority of before from a joint configuration": Mutant("configuration.py", (
        "if self.outgoing:\n    return min(reached, sorted(map(value, "
        "self.outgoing))[(len(self.outgoing) - 1) // 2])"
    ), "pass"),
    "drops the majority of before from elections": Mutant("configuration.py", "[_won(side, votes) for side in (self.voters, self.outgoing) if side]", "[_won(side, votes) for side in (self.voters,)]", seeds=0),
    "changes voters in one step": Mutant("membership.py", "target.voters != old.voters", "False"),
    "campaigns before all have found that the group is new": Mutant("election.py", "raft.amnesiac or raft.learning or raft.loss.undiscovered", "raft.amnesiac or raft.learning", seeds=0),
    "forgets at a restart that its group is new": Mutant("state.py", "restored.hard_state.group_is_new", "False", seeds=0, test="test_disk_loss.py::test_a_new_group_has_no_leader_before_all_have_found_that_it_is_new"),
    "takes one that has forgotten for one that has found": Mutant("disk_loss.py", "if not message.amnesiac:\n    raft.loss.undiscovered.discard(message.sender)", "raft.loss.undiscovered.discard(message.sender)", seeds=0, test="test_disk_loss.py::test_a_new_group_has_no_leader_before_all_have_found_that_it_is_new"),
    "asks no node that a change may remove": Mutant("disk_loss.py", "reported[0]", "reported[-1]", seeds=0),
    "asks all who ever had a voice": Mutant("disk_loss.py", "{index: members for index, members in raft.loss.known_voters.items() if index >= since}", "{index: members for index, members in raft.loss.known_voters.items()}", seeds=0),
    "believes its settings, and who has forgotten as it has": Mutant("disk_loss.py", (
        "knows and answer.configurations and answer.configurations[0][1].voters and (not "
        "raft.loss.members_learned)"
    ), "False and answer.configurations[0][1].voters and (not raft.loss.members_learned)", seeds=0, test="test_disk_loss.py::test_whom_the_group_began_with_says_who_has_data_and_not_the_settings"),
    "asks no leader that it does not know": Mutant("disk_loss.py", "raft.loss.unknown_leaders.add(message.sender)", "pass", seeds=0, test="test_disk_loss.py::test_who_left_the_group_since_has_no_word_in_it_any_more"),
    "votes for anyone once it has asked what it forgot": Mutant("election.py", "asked.last_term > raft.loss.reported_term", "True", seeds=0),
    "votes for one of the newest term that it was told of": Mutant("election.py", "asked.last_term > raft.loss.reported_term", "asked.last_term >= raft.loss.reported_term", seeds=0, test="test_disk_loss.py::test_one_that_has_forgotten_elects_nobody_who_may_lack_what_it_had"),
    "remembers before it has anything above what it was told of": Mutant("disk_loss.py", "(raft.log.term(raft.durable) or 0) > raft.loss.reported_term", "raft.commit", seeds=0, test="test_disk_loss.py::test_it_has_no_voice_before_it_has_something_of_a_leader_that_was_elected_without_it"),
    "has no voice while it learns again": Mutant("election.py", "raft.loss.queried == {asked.sender} or asked.last_term > raft.loss.reported_term", "raft.loss.queried == {asked.sender}", seeds=0),
    "gives a voice to one that still learns": Mutant("membership.py", (
        "peer is not None and peer.match + raft.settings.caught_up_entries >= raft.log.last and "
        "(peer.match > 0) and peer.learned"
    ), (
        "peer is not None and peer.match + raft.settings.caught_up_entries >= raft.log.last and "
        "(peer.match > 0)"
    ), seeds=0),
    "leaves no joint configuration": Mutant("membership.py", "configuration.joint", "False"),
    "does not campaign when it is put out": Mutant("election.py", "any((possible.votes(raft.node) for possible in membership.possible(raft)))", "raft.configuration.votes(raft.node)", seeds=0),
    "keeps a configuration that was cut off": Mutant("state.py", "while self.configurations[-1][0] >= index:\n    self.configurations.pop()", "pass", seeds=0),
    "applies twice after a snapshot": Mutant("snapshots.py", "raft.applied = raft.handed = raft.commit = raft.verified = snapshot.index", "raft.commit = raft.verified = snapshot.index"),
    "keeps its log under a snapshot that does not fit": Mutant("recovery.py", "entries if fits else []", "entries", seeds=0),
    "forgets to write the reset": Mutant("snapshots.py", "raft.snapshot = raft.reset = snapshot", "raft.snapshot = snapshot"),
    "never sends a lost chunk again": Mutant("snapshots.py", "outgoing.next, outgoing.since_ms = (outgoing.acked, raft.now_ms)", "pass"),
    "never finds out that an append was lost": Mutant("leading.py", "peer.mode is Mode.REPLICATE and held < peer.beat_next - 1", "False"),
    "leads on without a majority": Mutant("leading.py", (
        "now_ms - raft.configuration.agreed(lambda node: _heard_ms(raft, node)) >= "
        "settings.election_ms"
    ), "now_ms - raft.configuration.agreed(lambda node: _heard_ms(raft, node)) >= 1 << 60", seeds=0),
    "steps down without a transfer message": Mutant("leading.py", "raft.send(TimeoutNow(best, raft.node, raft.group, raft.term))", "pass", seeds=0),
    "never wakes a sleeping leader": Mutant("quiescence.py", "raft.leader == peer and (raft.quiescent or raft.withheld is not None)", "False", seeds=0),
    "does not wake for a vote": Mutant("election.py", "raft.quiescent and message.pre", "False", seeds=0),
    "lets its leader sleep while others ask for votes": Mutant("leading.py", "raft.quiescent and (not message.quiescent)", "False"),
    "campaigns without asking first": Mutant("election.py", "_ask(raft, pre=True, forced=False)\ncount(raft, raft.node, granted=True)", "_campaign(raft, forced=False)"),
    "does not tell an old leader that it is over": Mutant("election.py", "raft.send(HeartbeatAnswer(message.sender, raft.node, raft.group, raft.term))", "pass"),
}  # fmt: skip


def source_of(mutant: Mutant) -> str:
    """Return the file with the mistake. Raises Stale when it does not fit the code."""
    file = ROOT / "src" / "polynya" / "raft" / mutant.file
    return edited_source(file.read_text(), mutant.old, mutant.new, mutant.within)


def caught(mutant: Mutant) -> str:
    """Name the check that catches the mutant; empty when it survives. Raises Stale."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "polynya"
        for room in ("base", "raft"):
            # with what is compiled: it fits, as a copy has the time of its source
            unfinished = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(ROOT / "src" / "polynya" / room, package / room, ignore=unfinished)
        shutil.copy(ROOT / "src" / "polynya" / "__init__.py", package)
        (package / "raft" / mutant.file).write_text(source_of(mutant))
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}"}
        command = [
            sys.executable,
            "-m",
            "sim.raft_mutants",
            "--try",
            str(mutant.seeds),
            mutant.test,
        ]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    if result.returncode:
        raise Stale(result.stderr)
    return result.stdout.strip()


def attempt(seeds: int, test: str) -> str:
    """Run the checks in a mutant's process: first in stories, then under chaos; a changed trace
    counts last."""
    from sim import raft_chaos
    from stories import raft as raft_story

    changed = ""
    for path in sorted((ROOT / "tests" / "raft" / "stories").glob("*.txt")):
        try:
            if raft_story.run(path.read_text()) != path.read_text():
                changed = changed or f"the trace of {path.stem}"
        except Exception as fault:
            check_fault(fault)
            return f"{path.stem}: {fault!r}"
    for seed in range(seeds):
        try:
            raft_chaos.run(seed, 400)
        except Exception as fault:
            check_fault(fault)
            return f"chaos, seed {seed}: {str(fault.__cause__ or fault).splitlines()[:1]}"
    if changed:
        return changed
    parts = [str(ROOT / "tests" / "raft" / f"test_{name}.py") for name in PARTS]
    known = [str(ROOT / "tests" / "raft" / test)] if test else []
    # two runs: pytest would drop a test that is in one of the files, too
    caught_by = any(
        failing_test(*tests, options=("-o", "pythonpath=")) for tests in (known, parts) if tests
    )
    return "a test of its parts" if caught_by else ""


def main(names: list[str]) -> int:
    alive = 0
    for name in names or MUTANTS:
        by = caught(MUTANTS[name])
        alive += not by
        print(f"{name}: {'caught by ' + by if by else 'SURVIVES'}", flush=True)
    return alive


if __name__ == "__main__":
    if sys.argv[1:2] == ["--try"]:
        print(attempt(int(sys.argv[2]), sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))
