"""Events of a leased stream of a simulated cluster, as steps of the TLA+ specification
(docs/design/tla). `SegmentTraces.tla` checks that they are one of its behaviours.

Some steps are placed at the decision, before their effect is visible: an election at the
deciding vote, an append at its admission, a read at its read index. A follower has the content
of its disk; the rest is invisible. Entries of other streams are left out, and a bundle counts
as one entry per append."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
from worlds.service import raw_batch

from polynya.engine.replicated import ReplicatedEngine
from polynya.raft import Effects, EntryKind, Raft, Role, reading
from polynya.raft.messages import Vote, VoteAnswer
from polynya.replica.log import decode_command
from polynya.replica.member import Member
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Bundle
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.segments.rules import segments_of
from polynya.stream.replies import Code, Done, Reply

if TYPE_CHECKING:
    from sim.cluster import Node, World

Position = tuple[int, int, int]  # index and term of an entry, number in it


class Step(msgspec.Struct, frozen=True):
    """A step of the specification. `at` is a position in the log of `node`, from 1 on."""

    kind: str
    node: int
    at: int
    term: int = 0
    votes: tuple[int, ...] = ()
    writer: int = 0
    epoch: int = 0

    def literal(self) -> str:
        """Return it as a TLA+ record."""
        fields = {"kind": f'"{self.kind}"', "node": self.node, "at": self.at}
        fields |= {"term": self.term} if self.term else {}
        fields |= {"votes": f"{{{', '.join(map(str, self.votes))}}}"} if self.votes else {}
        fields |= {"writer": self.writer, "epoch": self.epoch} if self.epoch else {}
        return f"[{', '.join(f'{name} |-> {value}' for name, value in fields.items())}]"


def module_of(traces: Sequence[Sequence[Step]]) -> str:
    """Return the module `Recorded`. The first step of a trace is its beginning."""
    bodies = []
    for begin, *steps in traces:
        listed = ",\n    ".join(step.literal() for step in steps)
        bodies.append(f"[first |-> {begin.node}, steps |-> <<\n    {listed}>>]")
    body = ",\n  ".join(bodies)
    return f"---- MODULE Recorded ----\nTraces == <<\n  {body}>>\n====\n"


def last_term(traces: Sequence[Sequence[Step]]) -> int:
    return max(step.term for trace in traces for step in trace)


class Seen(msgspec.Struct):
    """An event on a node. `counts`: it took effect; some are confirmed only later."""

    kind: str
    node: int
    index: int = 0
    term: int = 0
    payload: bytes = b""
    epoch: int = 0
    writer: int = 0
    position: Position | None = None
    counts: bool = True


class Leader(msgspec.Struct, frozen=True):
    node: int
    index: int  # of the entry with which its term begins
    before: int  # term of the entry before


class Recorder:
    """Records the events of one leased stream, from `begin` on."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._group, self._began = 0, False
        self._seen: list[Seen] = []
        self._first = Seen("begin", 0)
        self._leaders: dict[int, Leader] = {}  # by term
        self._entries: dict[tuple[int, int], list[Seen]] = {}  # index, term -> commands in it
        self._added_nothing: set[Position] = set()  # appends that the machine refused, or knew
        self._pending: dict[int, list[Seen]] = {}  # node -> proposals not yet in its log
        self._rounds: dict[int, tuple[object, Seen]] = {}  # reads that wait for a majority
        self._durable: dict[int, tuple[int, int]] = {}
        self._applied: dict[int, int] = {}

    def begin(self) -> None:
        """Begin the trace where all nodes have the same, and the stream is empty."""
        world, self._group = self._world, self._world.group_of(self._name)
        leader = world.leader(self._group)
        assert leader is not None
        raft = leader.core.members[self._group].raft
        stream = leader.engine.local.machines[self._group].directory.streams[self._name]
        chain = segments_of(stream)
        assert chain is not None and (chain.epoch, chain.writer) == (1, leader.number)
        for node in world.alive():
            other = node.core.members[self._group].raft
            assert other.durable == raft.log.last and other.term == raft.term
            self._durable[node.number] = (raft.log.last, raft.log.last_term)
            self._applied[node.number] = raft.log.last
        self._first = Seen("begin", leader.number, raft.log.last, raft.term)
        self._leaders[raft.term] = Leader(leader.number, raft.log.last, 0)
        self._began = True

    @contextmanager
    def attached(self) -> Iterator[None]:
        """See what the nodes do meanwhile."""
        # imported here: sim.cluster is also used without traces
        from sim.cluster import Node  # noqa: PLC0415

        seams: list[tuple[Any, str, Callable[[Any], Any]]] = [
            (ReplicatedEngine, "_carry_out", self._around_turns),
            (ReplicatedEngine, "propose", self._around_proposals),
            (Raft, "readable", self._around_readable),
            (reading, "flush", self._around_rounds),
            (reading, "_answer", self._around_answers),
            (Node, "_applied", self._around_applied),
            (Node, "start", self._around_starts),
            (Node, "append", self._around_appends),
        ]
        with ExitStack() as stack:
            for owner, name, around in seams:
                stack.enter_context(mock.patch.object(owner, name, around(getattr(owner, name))))
            yield

    def steps(self) -> list[Step]:
        return Translation(
            self._seen, self._first, self._leaders, self._entries, self._added_nothing
        ).steps

    # --- seams ------------------------------------------------------------------------------------

    def _around_turns(self, carry_out: Callable[..., None]) -> Callable[..., None]:
        def around(engine: ReplicatedEngine, member: Member, effects: Effects) -> None:
            ours = self._began and member.raft.group == self._group
            if ours:
                self._see_disk(engine.node, member.raft)
                self._see_term(engine.node, member.raft)
                self._see_entries(engine.node, effects)
                self._see_votes(engine.node, effects)
            carry_out(engine, member, effects)
            if ours:
                self._see_applied(engine.node, member)

        return around

    def _around_proposals(self, propose: Callable[..., None]) -> Callable[..., None]:
        def around(engine: ReplicatedEngine, group: int, command: Command, done: Done) -> None:
            if self._began and group == self._group and group in engine.members:
                self._see_applied(engine.node, engine.members[group])
                seen = self._command(engine.node, command)
                if seen is not None:
                    done = self._pending_until(seen, done)
            propose(engine, group, command, done)

        return around

    def _pending_until(self, seen: Seen, done: Done) -> Done:
        """Record an event that awaits its log entry or its response."""
        pending = self._pending.setdefault(seen.node, [])
        seen.counts = False
        self._seen.append(seen)
        pending.append(seen)

        def answered(reply: Reply | BaseException) -> None:
            pending[:] = [each for each in pending if each is not seen]
            done(reply)

        return answered

    def _around_readable(self, readable: Callable[..., bool]) -> Callable[..., bool]:
        def around(raft: Raft, now_ms: int) -> bool:
            found = readable(raft, now_ms)
            if found and self._began and raft.group == self._group:
                self._see_read(raft, raft.commit)
            return found

        return around

    def _around_rounds(self, flush: Callable[[Any], None]) -> Callable[[Any], None]:
        def around(raft: Raft) -> None:
            before = len(raft.reads.rounds)
            flush(raft)
            if self._began and raft.group == self._group and len(raft.reads.rounds) > before:
                _, commit, reads = raft.reads.rounds[-1]
                seen = self._see_read(raft, commit)
                seen.counts = False
                self._rounds[id(reads)] = (reads, seen)  # kept, so that no other has this id

        return around

    def _around_answers(self, answer: Callable[..., None]) -> Callable[..., None]:
        def around(raft: Raft, reads: list[Any], commit: int) -> None:
            if self._began and raft.group == self._group:
                if id(reads) in self._rounds:
                    self._rounds[id(reads)][1].counts = True
                else:
                    self._see_read(raft, commit)
            answer(raft, reads, commit)

        return around

    def _around_applied(self, applied: Callable[..., None]) -> Callable[..., None]:
        def around(node: Node, group: int, command: Command, reply: Reply) -> None:
            applied(node, group, command, reply)
            ours = self._began and group == self._group and isinstance(command, Append)
            if ours and reply.code != Code.OK:
                index, number = node.parts[group]
                self._added_nothing.add((index, node.core.core_replicas.groups[group].term, number))

        return around

    def _around_starts(self, start: Callable[..., None]) -> Callable[..., None]:
        def around(node: Node) -> None:
            start(node)
            if self._began and node.alive and node.begun == node.life:
                raft = node.core.members[self._group].raft
                self._pending.pop(node.number, None)
                self._durable[node.number] = (raft.log.last, raft.log.last_term)
                self._applied[node.number] = 0
                self._seen.append(Seen("crash", node.number, raft.log.last, raft.log.last_term))

        return around

    def _around_appends(self, append: Callable[..., Any]) -> Callable[..., Any]:
        async def around(node: Node, name: str, payload: bytes, *more: Any) -> Reply:
            reply: Reply = await append(node, name, payload, *more)
            if self._began and name == self._name and reply.code == Code.OK:
                sent = bytes(raw_batch(payload).payload)
                self._seen.append(Seen("acknowledge", node.number, payload=sent))
            return reply

        return around

    # --- what is seen -----------------------------------------------------------------------------

    def _command(self, node: int, command: Command) -> Seen | None:
        if isinstance(command, Append) and command.name == self._name and command.batch is not None:
            return Seen("append", node, payload=bytes(command.batch.payload))
        if isinstance(command, Rollover) and command.name == self._name:
            return Seen("rollover", node, epoch=command.epoch, writer=command.writer)
        return None

    def _see_disk(self, node: int, raft: Raft) -> None:
        term = raft.log.term(raft.durable)
        if term is not None and self._durable[node] != (raft.durable, term):
            self._durable[node] = (raft.durable, term)
            self._seen.append(Seen("durable", node, raft.durable, term))

    def _see_read(self, raft: Raft, commit: int) -> Seen:
        self._see_disk(raft.node, raft)  # its own write may just have made the majority
        seen = Seen("read", raft.node, commit, raft.term)
        self._seen.append(seen)
        return seen

    def _see_term(self, node: int, raft: Raft) -> None:
        if raft.role is Role.LEADER and raft.term not in self._leaders:
            index = raft.lead.own_term_index
            before = raft.log.term(index - 1)
            assert before is not None
            self._leaders[raft.term] = Leader(node, index, before)

    def _see_entries(self, node: int, effects: Effects) -> None:
        for entry in effects.entries:
            leader = self._leaders.get(entry.term)
            if leader is None or leader.node != node or (entry.index, entry.term) in self._entries:
                continue
            found = self._entries[entry.index, entry.term] = []
            if entry.kind != EntryKind.COMMAND:
                continue
            command = decode_command(entry.payload)
            commands = command.commands if isinstance(command, Bundle) else [command]
            for number, part in enumerate(commands):
                seen = self._command(node, part)
                if seen is not None:
                    found.append(self._proposed(seen, (entry.index, entry.term, number)))

    def _proposed(self, seen: Seen, position: Position) -> Seen:
        """Find the proposal that came into the log there."""
        pending = self._pending[seen.node]
        proposal = next(each for each in pending if _same(each, seen))
        pending.remove(proposal)
        proposal.counts, proposal.position = True, position
        return proposal

    def _see_votes(self, node: int, effects: Effects) -> None:
        for message in effects.messages:
            if isinstance(message, Vote) and not message.pre:
                self._seen.append(Seen("vote", node, node, message.term))
            elif isinstance(message, VoteAnswer) and message.granted and not message.pre:
                self._seen.append(Seen("vote", node, message.to, message.term))

    def _see_applied(self, node: int, member: Member) -> None:
        index = member.group.applied_index
        if index > self._applied[node]:
            self._applied[node] = index
            leads = member.raft.role is Role.LEADER
            self._seen.append(Seen("applied", node, index, member.raft.term if leads else 0))


def _same(proposal: Seen, seen: Seen) -> bool:
    return (proposal.kind, proposal.payload, proposal.epoch, proposal.writer) == (
        seen.kind, seen.payload, seen.epoch, seen.writer
    )  # fmt: skip


class Translation:
    """The events as `steps`. It follows the specification's logs, so that each step can name its
    position."""

    def __init__(
        self,
        seen: list[Seen],
        first: Seen,
        leaders: dict[int, Leader],
        entries: dict[tuple[int, int], list[Seen]],
        added_nothing: set[Position],
    ) -> None:
        self._seen, self._leaders = seen, leaders
        self._base: Position = (first.index, first.term, 0)
        self._terms = {term: number + 1 for number, term in enumerate(sorted(leaders))}
        self._left_out = added_nothing
        self._sent: dict[int, list[Position]] = {}  # term -> the log of its leader, in the end
        for term in sorted(leaders):
            self._sent[term] = self._log_of(term, leaders[term], entries)
        self._log = {node: [self._base] for node in (1, 2, 3)}
        self._synced = dict.fromkeys(self._log, 1)
        self._applied = dict.fromkeys(self._log, 1)
        self._term = dict.fromkeys(self._log, first.term)
        self._leading = {first.node}
        self._acknowledged = {
            proposal.payload: proposal.position
            for proposals in entries.values()
            for proposal in proposals
            if proposal.position is not None and proposal.position not in added_nothing
        }
        self._elections = self._deciding_votes()
        self.steps = [Step("begin", first.node, 1, 1)]
        for number, each in enumerate(seen):
            if each.counts:
                self._number = number
                getattr(self, f"_step_{each.kind}")(each)

    def _log_of(
        self, term: int, leader: Leader, entries: dict[tuple[int, int], list[Seen]]
    ) -> list[Position]:
        if (leader.index, term) == self._base[:2]:
            log = [self._base]
        else:
            log = [*self._prefix(leader.before, leader.index - 1), (leader.index, term, 0)]
        own = sorted(index for index, its in entries if its == term and index > leader.index)
        positions = [each.position for index in own for each in entries[index, term]]
        return log + [
            position for position in positions if position and position not in self._left_out
        ]

    def _prefix(self, term: int, index: int) -> list[Position]:
        """Return the log of which the entry of this term and index is the last."""
        if index <= self._base[0]:
            return [self._base]
        return [position for position in self._sent[term] if position[0] <= index]

    def _deciding_votes(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return number of the vote that gave a leader its majority -> its term, and who voted."""
        votes: dict[int, set[int]] = {}
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for number, each in enumerate(self._seen):
            leader = self._leaders.get(each.term)
            if each.kind != "vote" or leader is None or leader.node != each.index:
                continue
            voters = votes.setdefault(each.term, set())
            if each.node not in voters:
                voters.add(each.node)
                if len(voters) == 2:
                    found[number] = (each.term, tuple(sorted(voters)))
        return found

    def _add(self, kind: str, node: int, at: int, term: int = 0, **more: Any) -> None:
        self.steps.append(Step(kind, node, at, self._terms.get(term, 0), **more))

    # --- one kind of Seen each --------------------------------------------------------------------

    def _step_vote(self, seen: Seen) -> None:
        if self._number in self._elections:
            term, votes = self._elections[self._number]
            node = seen.index
            self._log[node].append((self._leaders[term].index, term, 0))
            for voter in votes:
                self._term[voter] = term
                self._leading.discard(voter)
            self._leading.add(node)
            self._add("elect", node, len(self._log[node]), term, votes=votes)

    def _step_append(self, seen: Seen) -> None:
        assert seen.position is not None
        if seen.position not in self._left_out:
            self._log[seen.node].append(seen.position)
            self._add("append", seen.node, len(self._log[seen.node]))

    def _step_rollover(self, seen: Seen) -> None:
        assert seen.position is not None
        # one that another had overtaken stays: the specification decides that it changes nothing
        self._log[seen.node].append(seen.position)
        at = len(self._log[seen.node])
        self._add("rollover", seen.node, at, writer=seen.writer, epoch=seen.epoch)

    def _step_durable(self, seen: Seen) -> None:
        self._has(seen.node, self._prefix(seen.term, seen.index))

    def _has(self, node: int, log: list[Position]) -> None:
        """Add the steps by which the node has this on its disk."""
        known = self._log[node]
        if known[: len(log)] != log:
            term = self._sender(node, log)
            self._add("replicate", node, len(log), term)
            self._synced[node] = min(self._synced[node], _common(log, known))
            self._log[node], self._term[node] = list(log), term
            self._leading.discard(node)
        if len(log) > self._synced[node]:
            self._synced[node] = len(log)
            self._add("sync", node, len(log))

    def _sender(self, node: int, log: list[Position]) -> int:
        """Return the term of a leader from which it may have this: the first possible one."""
        least = log[-1][1]
        for term in sorted(self._sent):
            later = term >= max(least, self._term[node]) and self._leaders[term].node != node
            if later and self._sent[term][: len(log)] == log:
                return term
        return least

    def _step_applied(self, seen: Seen) -> None:
        at = self._count(seen.node, seen.index)
        if at > self._applied[seen.node]:
            self._applied[seen.node] = at
            if not seen.term and seen.node in self._leading:
                self._leading.discard(seen.node)
                self._add("resign", seen.node, at)
            self._add("commit" if seen.term else "learn", seen.node, at)

    def _step_acknowledge(self, seen: Seen) -> None:
        position = self._acknowledged[seen.payload]
        term = position[1]
        self._add(
            "acknowledge", self._leaders[term].node, self._sent[term].index(position) + 1, term
        )

    def _step_read(self, seen: Seen) -> None:
        at = self._count(seen.node, seen.index)
        last = self.steps[-1]
        if (last.kind, last.node, last.at) != ("read", seen.node, at):
            self._add("read", seen.node, at)

    def _step_crash(self, seen: Seen) -> None:
        log = self._prefix(seen.term, seen.index)
        kept = _common(log, self._log[seen.node])
        self._add("crash", seen.node, kept)
        self._leading.discard(seen.node)
        self._log[seen.node] = self._log[seen.node][:kept]
        self._synced[seen.node] = kept
        self._applied[seen.node] = min(self._applied[seen.node], kept)
        self._has(seen.node, log)

    def _count(self, node: int, index: int) -> int:
        return sum(position[0] <= index for position in self._log[node])


def _common(a: list[Position], b: list[Position]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
