"""Raft with one mistake at a time: each must be caught. `python tests/raft_mutants.py [NAME …]` tries them by hand.

A mutant is a copy of the package in which one piece of text is another. The chaos of `raft_chaos.py` has to find it by what must never
happen (`raft_checks.py`): a story whose trace changed would prove little. Where chance would need too long, a story sets the scene.
"""

# ruff: noqa: E501 the list is easier to read with a mutant a line

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

PARTS = ("forgetting", "raft_parts", "raft_losses")  # tests that a mutant has to pass in the end
ROOT = Path(__file__).parent.parent


class Mutant(msgspec.Struct, frozen=True):
    file: str
    old: str
    new: str
    seeds: int = 40  # 0: chance does not find it in so many


MUTANTS = {
    "votes twice in a term": Mutant(
        "election.py",
        "granted = fresh and raft.leader == 0 and raft.vote in {0, message.sender}",
        "granted = fresh and raft.leader == 0\n    raft.vote = 0",
    ),
    "forgets its vote at a restart": Mutant(
        "raft.py",
        "self.term, self.vote = restored.hard_state.term, restored.hard_state.vote",
        "self.term, self.vote = restored.hard_state.term, 0",
    ),
    "answers before term and vote are durable": Mutant("raft.py", "        if self.hard_durable:\n            self.messages.append", "        if True:\n            self.messages.append"),
    "votes for a shorter log": Mutant("election.py", "fresh = (message.last_term, message.last_index) >= (raft.log.last_term, raft.log.last)", "fresh = True"),
    "compares logs by length alone": Mutant(
        "election.py", "fresh = (message.last_term, message.last_index) >= (raft.log.last_term, raft.log.last)", "fresh = message.last_index >= raft.log.last"
    ),
    "breaks the promise that leases rest on": Mutant("election.py", "raft.now_ms - raft.heard_ms < raft.settings.election_ms", "False"),
    "forgets its promise when its leader is lost elsewhere": Mutant("election.py", "    raft.heard_ms = max(raft.heard_ms, min(heard_ms, raft.now_ms))\n", "    raft.heard_ms = -NEVER\n", seeds=0),
    "keeps no promise after a restart": Mutant("raft.py", "self.now_ms = self.heard_ms = self.timer_ms", "self.heard_ms = -NEVER\n        self.now_ms = self.timer_ms"),
    "starts at once when it is the only voter": Mutant("membership.py", "known.members == (raft.node,)", "known.voters == (raft.node,)"),
    "counts a lease from the answer": Mutant("reading.py", "raft.lease_begin_ms = raft.rounds.popleft()[1]", "raft.rounds.popleft()\n        raft.lease_begin_ms = raft.now_ms"),
    "makes leases longer than the promise": Mutant("settings.py", "return int(self.election_ms * (1 - self.clock_drift) / (1 + self.clock_drift)) - 2", "return self.election_ms * 2"),
    "takes no account of clocks that drift": Mutant("settings.py", "return int(self.election_ms * (1 - self.clock_drift) / (1 + self.clock_drift)) - 2", "return int(self.election_ms * 1.1)"),
    "keeps the lease while it hands over": Mutant("leading.py", "        raft.transfer_sent = True\n", ""),
    "takes the lease of one follower": Mutant("reading.py", "raft.confirmed = raft.configuration.agreed(lambda node: raft.context if node == raft.node else raft.peers[node].context)", "raft.confirmed = raft.context"),
    "reads without asking anyone": Mutant("reading.py", "    if has_lease(raft):\n        _answer(raft, [waiting], raft.commit)", "    if True:\n        _answer(raft, [waiting], raft.commit)"),
    "reads before an entry of its term is committed": Mutant("reading.py", "if reads.new and raft.commit >= raft.own_term_index:", "if reads.new:"),
    "takes any answer to a read": Mutant("reading.py", "    if message.context > reads.context:\n        return\n", "", seeds=0),
    "reads before it has applied": Mutant("reading.py", "    if index <= raft.applied:\n        raft.reads.ready", "    if True:\n        raft.reads.ready"),
    "takes an answer to an earlier life": Mutant("reading.py", "        self.context = context\n", "        self.context = 0\n"),
    "commits an entry of an older term by counting": Mutant("leading.py", "if reached <= raft.commit or raft.log.term(reached) != raft.term:", "if reached <= raft.commit:"),
    "counts itself before it has written": Mutant("leading.py", "raft.durable if node == raft.node else raft.peers[node].match", "raft.log.last if node == raft.node else raft.peers[node].match"),
    "commits with a minority": Mutant("configuration.py", "[(len(voters) - 1) // 2]", "[len(voters) // 2 + (len(voters) > 2)]"),
    "acknowledges before it has written": Mutant("following.py", "    match = min(raft.verified, raft.durable)\n    answered = raft.verified <= raft.durable", "    match = raft.verified\n    answered = True"),
    "acknowledges what it has not compared": Mutant("following.py", "    match = min(raft.verified, raft.durable)\n    answered", "    match = raft.durable\n    answered"),
    "believes a commit beyond what it has compared": Mutant("following.py", "min(commit, raft.verified)", "min(commit, raft.log.last)"),
    "keeps acknowledgements over terms": Mutant("election.py", "        raft.verified = raft.acked = 0\n        raft.ack_due = False\n    raft.role, raft.leader = Role.FOLLOWER", "    raft.role, raft.leader = Role.FOLLOWER"),
    "takes entries that do not fit": Mutant("following.py", "elif log.term(prev_index) != message.prev_term:", "elif log.term(prev_index) is None:"),
    "does not cut what differs": Mutant("following.py", "if log.term(entry.index) != entry.term", "if log.term(entry.index) is None"),
    "forgets what a cut takes from the disk": Mutant("raft.py", "        self.durable = min(self.durable, index - 1)\n", ""),
    "counts a write that a cut has made void": Mutant("raft.py", "        for write in self.writes:\n            write.last = min(write.last, index - 1)\n", ""),
    "drops the majority of before from a joint configuration": Mutant("configuration.py", "        if self.outgoing:\n            return min(", "        if False:\n            return min("),
    "drops the majority of before from elections": Mutant("configuration.py", "for side in (self.voters, self.outgoing) if side", "for side in (self.voters,)", seeds=0),
    "changes voters in one step": Mutant("membership.py", "joint = target.voters != old.voters", "joint = False"),
    "campaigns before all have found that the group is new": Mutant("election.py", " or raft.unmet", "", seeds=0),
    "forgets at a restart that its group is new": Mutant("raft.py", "self.unborn = restored.hard_state.unborn", "self.unborn = False", seeds=0),
    "takes one that has forgotten for one that has found": Mutant("forgetting.py", "        elif not message.forgetful:", "        else:", seeds=0),
    "asks nobody whom a change may put out": Mutant("forgetting.py", "told[0][0])", "told[-1][0])", seeds=0),
    "asks all who ever had a voice": Mutant("forgetting.py", "if index >= since}", "}", seeds=0),
    "believes its settings, and who has forgotten as it has": Mutant("forgetting.py", "knows and answer.configurations and answer", "False and answer", seeds=0),
    "asks no leader that it does not know": Mutant("forgetting.py", "raft.strangers.add(message.sender)", "pass", seeds=0),
    "votes for anyone once it has asked what it forgot": Mutant("election.py", "asked.last_term > raft.recalled_term", "True", seeds=0),
    "votes for one of the newest term that it was told of": Mutant("election.py", "asked.last_term > raft.recalled_term", "asked.last_term >= raft.recalled_term", seeds=0),
    "remembers before it has anything above what it was told of": Mutant("forgetting.py", "(raft.log.term(raft.durable) or 0) > raft.recalled_term", "raft.commit", seeds=0),
    "has no voice while it learns again": Mutant("election.py", " or asked.last_term > raft.recalled_term", "", seeds=0),
    "gives a voice to one that still learns": Mutant("membership.py", " and peer.learned", "", seeds=0),
    "leaves no joint configuration": Mutant("membership.py", "    if configuration.joint:\n        _propose", "    if False:\n        _propose"),
    "does not campaign when it is put out": Mutant("election.py", "any(possible.votes(raft.node) for possible in membership.possible(raft))", "raft.configuration.votes(raft.node)", seeds=0),
    "keeps a configuration that was cut off": Mutant("raft.py", "        while self.configurations[-1][0] >= index:\n            self.configurations.pop()\n", "", seeds=0),
    "applies twice after a snapshot": Mutant("snapshots.py", "raft.applied = raft.handed = raft.commit = raft.verified = snapshot.index", "raft.commit = raft.verified = snapshot.index"),
    "keeps its log under a snapshot that does not fit": Mutant("recovery.py", "        kept = entries if fits else []", "        kept = entries", seeds=0),
    "forgets to write the reset": Mutant("snapshots.py", "raft.snapshot = raft.reset = snapshot", "raft.snapshot = snapshot"),
    "loses chunks for ever": Mutant("snapshots.py", "            peer.chunk_next, peer.chunk_ms = peer.chunk_acked, raft.now_ms", "            pass"),
    "never finds out that an append was lost": Mutant("leading.py", "if peer.mode is Mode.REPLICATE and held < peer.beat_next - 1:", "if False:"),
    "leads on without a majority": Mutant("leading.py", ">= settings.election_ms:\n        _give_up", ">= 1 << 60:\n        _give_up", seeds=0),
    "steps down and tells nobody": Mutant("leading.py", "        raft.send(TimeoutNow(best, raft.node, raft.group, raft.term))\n    election", "        pass\n    election", seeds=0),
    "sleeps for ever": Mutant("sleeping.py", "    elif raft.leader == peer and (raft.sleeping or raft.withheld is not None):", "    elif False:", seeds=0),
    "does not wake for a vote": Mutant("election.py", "        elif raft.sleeping and message.pre:", "        elif False:"),
    "lets its leader sleep while others ask for votes": Mutant("leading.py", "    if raft.sleeping and not message.asleep:", "    if False:"),
    "campaigns without asking first": Mutant("election.py", "        _ask(raft, pre=True, forced=False)\n        count(raft, raft.node, granted=True)", "        _campaign(raft, forced=False)"),
    "does not tell an old leader that it is over": Mutant("election.py", "        raft.send(HeartbeatAnswer(message.sender, raft.node, raft.group, raft.term))", "        pass"),
}  # fmt: skip


def caught(mutant: Mutant) -> str:
    """By what the mutant is caught; empty when it survives."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "polynya"
        for room in ("base", "raft"):
            shutil.copytree(ROOT / "src" / "polynya" / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "src" / "polynya" / "__init__.py", package)
        file = package / "raft" / mutant.file
        text = file.read_text()
        assert text.count(mutant.old) == 1, f"{mutant.file} has {mutant.old!r} {text.count(mutant.old)} times: bring this list up to date"
        file.write_text(text.replace(mutant.old, mutant.new))
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}"}
        command = [sys.executable, __file__, "--try", str(mutant.seeds)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def attempt(seeds: int) -> str:
    """In the process of a mutant: the checks in stories, then those under chaos; a trace that changed counts last."""
    import raft_chaos
    import raft_story

    changed = ""
    for path in sorted((Path(__file__).parent / "raft" / "stories").glob("*.txt")):
        try:
            if raft_story.run(path.read_text()) != path.read_text():
                changed = changed or f"the trace of {path.stem}"
        except Exception as fault:
            return f"{path.stem}: {fault!r}"
    for seed in range(seeds):
        try:
            raft_chaos.run(seed, 400)
        except Exception as fault:
            return f"chaos, seed {seed}: {str(fault.__cause__ or fault).splitlines()[:1]}"
    if changed:
        return changed
    import pytest

    with contextlib.redirect_stdout(io.StringIO()):
        failed = pytest.main(
            [
                "-qx",
                "-p",
                "no:cacheprovider",
                "-o",
                "pythonpath=",
                *(str(Path(__file__).parent / "raft" / f"test_{name}.py") for name in PARTS),
            ]
        )
    return "a test of its parts" if failed else ""


def main(names: list[str]) -> int:
    alive = 0
    for name in names or MUTANTS:
        by = caught(MUTANTS[name])
        alive += not by
        print(f"{name}: {'caught by ' + by if by else 'SURVIVES'}", flush=True)
    return alive


if __name__ == "__main__":
    if sys.argv[1:2] == ["--try"]:
        print(attempt(int(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1:]))
