"""The parts that can be tried alone: the log against a list, majorities against counting, messages
against golden bytes, recovery, settings."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base.errors import CorruptData, InvalidMessage
from polynya.raft import (
    Append,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    Identity,
    Message,
    Raft,
    Recovery,
    RestoredMember,
    Role,
    Settings,
    Snapshot,
    decode_message,
    encode_message,
    snapshots,
)
from polynya.raft.configuration import encode_configuration, normal
from polynya.raft.log import ENTRY_BYTES, Log
from polynya.raft.messages import (
    AppendAnswer,
    HeartbeatAnswer,
    ReadAnswer,
    ReadRequest,
    RecoverVote,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from polynya.raft.progress import Progress
from polynya.raft.settings import NEVER

BIRTH = Snapshot(0, 0, Configuration((1, 2, 3)))


def entry(index: int, term: int, payload: bytes = b"") -> Entry:
    return Entry(payload, EntryKind.COMMAND, term, index, 1)


# --- the log --------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "truncate", "compact", "evict"]),
        st.integers(0, 12),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(st.integers(0, 5), st.integers(0, 3), steps)
def test_the_log_is_what_a_list_would_be(
    base: int, base_term: int, script: list[tuple[str, int, int]]
) -> None:
    log, naive, term = Log(base, base_term), {base: base_term}, base_term
    for verb, number, more in script:
        last = max(naive)
        if verb == "append":
            term += more // 2
            new = [entry(last + 1 + position, term, b"x" * number) for position in range(more)]
            log.append(new)
            naive |= {e.index: e.term for e in new}
        elif verb == "truncate" and log.cached <= last - number:
            log.truncate(last - number)
            naive = {index: t for index, t in naive.items() if index < last - number}
        elif verb == "compact" and number < len(naive):
            log.compact(min(naive) + number + 1)
            naive = {index: t for index, t in naive.items() if index >= min(naive) + number}
        elif verb == "evict":
            log.evict(last - number, 200)
        term = max(log.last_term, term)
        assert (log.first - 1, log.last) == (min(naive), max(naive))
        assert {
            index: log.term(index) for index in range(max(naive) + 3) if log.term(index) is not None
        } == naive
        assert [e.index for e in log.entries(log.cached, log.last + 1)] == list(
            range(log.cached, max(naive) + 1)
        )
        assert (
            log.bytes
            == sum(len(e.payload) + ENTRY_BYTES for e in log.entries(log.cached, log.last + 1))
            == log.size(log.cached, log.last + 1)
        )


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20).map(sorted),
    st.integers(0, 25),
    st.integers(0, 5),
)
def test_the_search_for_where_logs_part_finds_the_last_term_that_is_not_larger(
    terms: list[int], index: int, term: int
) -> None:
    log = Log(0, 0)
    log.append([entry(position, t) for position, t in enumerate(terms, 1)])
    found = [position for position, t in enumerate([0, *terms]) if position <= index and t <= term]
    assert log.last_not_after(index, term) == found[-1]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(0, 1000), st.data())
def test_a_cut_holds_what_fits_and_never_nothing(
    sizes: list[int], bytes_max: int, data: st.DataObject
) -> None:
    log = Log(0, 0)
    log.append([entry(position, 1, b"x" * size) for position, size in enumerate(sizes, 1)])
    begin = data.draw(st.integers(1, len(sizes)))
    end = log.cut(begin, bytes_max)
    assert end == begin + 1 or log.size(begin, end) <= bytes_max
    assert end == log.last + 1 or log.size(begin, end + 1) > bytes_max


# --- majorities -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.lists(st.integers(0, 9), max_size=7))
def test_agreed_is_what_a_majority_of_each_side_has_reached(new: list[int], old: list[int]) -> None:
    reached = dict(enumerate(new + old, 1))
    voters, outgoing = tuple(range(1, len(new) + 1)), tuple(range(len(new) + 1, len(reached) + 1))
    agreed = Configuration(voters, outgoing).agreed(reached.__getitem__)

    def have(side: tuple[int, ...], value: int) -> bool:
        return not side or sum(reached[node] >= value for node in side) > len(side) / 2

    assert agreed == max(
        value for value in range(10) if have(voters, value) and have(outgoing, value)
    )


def test_an_election_is_won_by_both_sides_and_lost_by_either() -> None:
    configuration = Configuration((1, 2, 3), (3, 4, 5))
    for votes in itertools.product((True, False, None), repeat=5):
        cast = {node: vote for node, vote in enumerate(votes, 1) if vote is not None}
        yes = [sum(cast.get(node) is True for node in side) for side in ((1, 2, 3), (3, 4, 5))]
        no = [sum(cast.get(node) is False for node in side) for side in ((1, 2, 3), (3, 4, 5))]
        assert configuration.won(cast) == (
            False if max(no) >= 2 else True if min(yes) >= 2 else None
        )


def test_a_target_of_a_change_is_put_in_order_or_refused() -> None:
    assert normal(Configuration((3, 1, 1), (9,), (4,), (5,))) == Configuration(
        (1, 3), (), (4,), (5,)
    )
    for bad in (
        Configuration(()),
        Configuration((1, 2), (), (2,)),
        Configuration((0,)),
        Configuration((1,), (), (2,), (2,)),
    ):
        with pytest.raises(ValueError, match=r"a group needs|each member"):
            normal(bad)


# --- messages -------------------------------------------------------------------------------------

MESSAGES = [
    (Append(2, 1, 7, 3, 9, 2, 8, [Entry(b"ab", EntryKind.COMMAND, 2, 10, 7), Entry(b"", EntryKind.NOOP, 3, 11, 7)]),
     "990102010703090208960201c40261620303c400"),
    (AppendAnswer(1, 2, 7, 3, 0, 9, 4, 1), "990201020703000904" + "01"),
    (Heartbeat(2, 1, 7, 3, 300, 5, True), "98030201070" + "3cd012c05c3"),
    (HeartbeatAnswer(1, 2, 7, 3, 5, 11, 10, False), "9904010207" + "03050b0ac2"),
    (Vote(2, 1, 7, 3, 11, 2, True, False), "9905020107030b02c3c2"),
    (VoteAnswer(1, 2, 7, 3, pre=False, granted=True), "9706010207" + "03c2c3"),
    (TimeoutNow(2, 1, 7, 3), "950702010703"),
    (ReadRequest(1, 2, 7, 3, 2**63), "9608010207" + "03cf8000000000000000"),
    (ReadAnswer(2, 1, 7, 3, 2**63, 11), "970902010703cf80000000000000000b"),
    (SnapshotChunk(2, 1, 7, 3, Snapshot(5, 2, Configuration((1, 2), (), (3,), ()), 4, 99), 0, b"ab"), "980a02010703950502949201029091039004" + "6300c4026162"),
    (SnapshotAnswer(1, 2, 7, 3, 99, 2), "970b010207036302"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "golden"), MESSAGES, ids=lambda value: type(value).__name__)
def test_messages_have_the_bytes_that_are_written_down(message: object, golden: str) -> None:
    data = encode_message(message)  # type: ignore[arg-type]
    assert data.hex() == golden
    assert decode_message(data) == message


def test_a_heartbeat_is_small() -> None:
    assert len(encode_message(Heartbeat(2, 1, 60_000, 300, 3_000_000, 70_000))) <= 24


@pytest.mark.parametrize(
    "block", [[2, 1], [2, 1, "text"], [4, 1, b""], [3, 1, b"", 2, 1, b""], [b"", 1, b""]]
)
def test_a_block_that_is_none_is_refused(block: list[object]) -> None:
    data = msgspec.msgpack.encode([1, 2, 1, 7, 3, 9, 2, 8, block])
    with pytest.raises(InvalidMessage):
        decode_message(data)


# --- recovery -------------------------------------------------------------------------------------


def recovered(
    frames: list[tuple[int, int]], snapshot: Snapshot = BIRTH, reset: tuple[int, int] | None = None
) -> tuple[list[tuple[int, int]], bool]:
    recovery = Recovery(1)
    for index, term in frames:
        if reset is not None and index == 0:
            recovery.reset(*reset)
        else:
            recovery.entry(entry(index, term))
    restored = recovery.result(snapshot)
    return [(e.index, e.term) for e in restored.entries], restored.reset


def at(index: int, term: int) -> Snapshot:
    return Snapshot(index, term, Configuration((1, 2, 3)), 1)


def test_a_later_entry_replaces_an_earlier_one_and_what_followed_it() -> None:
    assert recovered([(1, 1), (2, 1), (3, 1), (2, 2)]) == ([(1, 1), (2, 2)], False)


def test_an_installation_that_was_cut_short_voids_the_log() -> None:
    assert recovered([(1, 1), (2, 1), (3, 1)], at(2, 2)) == ([], True)
    assert recovered([(1, 1)], at(5, 2)) == ([], True)
    assert recovered([(1, 1), (2, 1), (3, 1)], at(2, 1)) == ([(1, 1), (2, 1), (3, 1)], False)


def test_after_a_reset_only_what_follows_counts() -> None:
    assert recovered([(1, 1), (0, 0), (6, 2)], at(5, 2), (5, 2)) == ([(6, 2)], False)


def test_holes_are_faults() -> None:
    for frames, snapshot, reset in (
        ([(1, 1), (3, 1)], BIRTH, None),
        ([(3, 1)], at(1, 1), None),
        ([(0, 0), (7, 2)], at(5, 2), (5, 2)),
        ([(0, 0), (6, 2)], at(4, 2), (5, 2)),
    ):
        with pytest.raises(CorruptData):
            recovered(frames, snapshot, reset)


def test_a_journal_without_a_hard_state_has_the_term_of_its_last_entry() -> None:
    recovery = Recovery(1)
    recovery.entry(entry(1, 4))
    assert recovery.result(BIRTH).hard_state == HardState(4, 0)
    recovery.hard_state(HardState(5, 2))
    assert recovery.result(BIRTH).hard_state == HardState(5, 2)


# --- answers to nothing ---------------------------------------------------------------------------


def test_an_answer_that_was_not_asked_for_answers_no_read() -> None:
    """Ignore an unrequested answer: it may belong to an earlier incarnation, whose contexts
    started at any number."""
    raft = Raft(Identity(1, 2, 5), Recovery(1).result(BIRTH), Settings(), now_ms=0, ready=[])
    raft.step(Heartbeat(2, 1, 1, 1, 0, 1), 10)
    raft.persisted(raft.take().ticket, 10)
    raft.read("token", 11)
    asked = next(message for message in raft.take().messages if isinstance(message, ReadRequest))
    for context, reads in (
        (asked.context - 1, []),
        (asked.context + 1, []),
        (asked.context, ["token"]),
    ):
        raft.step(ReadAnswer(2, 1, 1, 1, context, 0), 12)
        assert raft.take().reads == reads


@pytest.mark.parametrize("given_out", [True, False])
def test_of_two_snapshots_that_found_no_room_the_log_begins_behind_the_later_one(
    given_out: bool,
) -> None:
    raft = Raft(Identity(1, 2, 5), Recovery(1).result(BIRTH), Settings(), now_ms=0, ready=[])
    for index in (5, 9):
        snapshot = Snapshot(index, 1, BIRTH.configuration, 3, identity=index)
        raft.step(SnapshotChunk(2, 1, 1, 1, snapshot, 0, b"all"), 10)
        assert raft.take().install == snapshot
        raft.snapshots.installed(index, 20)
        if index == 5 or given_out:
            assert raft.take().reset == snapshot
    raft.unwritten(30)
    effects = raft.take()
    assert effects.reset == snapshot and not effects.entries
    raft.persisted(effects.ticket, 40)
    assert raft.durable == 9


def test_a_commit_counts_no_further_than_the_log_was_compared() -> None:
    """Limit the commit to the compared index of an empty probe: entries behind it may be another
    leader's."""
    raft = Raft(Identity(1, 2, 5), Recovery(1).result(BIRTH), Settings(), now_ms=0, ready=[])
    raft.step(Append(2, 1, 1, 1, 0, 0, 0, [entry(1, 1), entry(2, 1), entry(3, 1)]), 10)
    raft.persisted(raft.take().ticket, 10)
    raft.step(Append(2, 3, 1, 2, 1, 1, 3, []), 11)
    assert [each.index for each in raft.take().committed] == [1]
    raft.step(Heartbeat(2, 3, 1, 2, 3, 1), 12)
    assert raft.take().committed == [], "of two and three nothing was said yet"


def test_what_a_reader_said_before_it_lost_its_disk_answers_no_probe() -> None:
    """Tell a heartbeat's match index from a probe response: the reader had entry 3, lost it, and
    now reports 2."""
    identity = Snapshot(0, 0, Configuration((1,), readers=(3,)))
    raft = Raft(Identity(1, 1, 5), Recovery(1).result(identity), Settings(), now_ms=0, ready=[])
    now_ms, has, sent = 0, 3, list[Message]()

    def turn() -> None:
        effects = raft.take()
        sent.extend(effects.messages)
        raft.persisted(effects.ticket, now_ms)
        sent.extend(raft.take().messages)

    raft.campaign(now_ms)
    turn()
    assert raft.propose([entry(0, 0, b"a"), entry(0, 0, b"b")], now_ms) is None
    turn()
    raft.step(AppendAnswer(1, 3, 1, raft.term, 3), now_ms)
    turn()
    assert raft.status().peers[3].match == 3
    has = 2
    for now_ms in range(100, 3000, 100):
        raft.tick(now_ms)
        turn()
        heard, sent[:] = sent[:], []
        for message in heard:
            if isinstance(message, Heartbeat):  # both leave with one turn
                raft.step(HeartbeatAnswer(1, 3, 1, raft.term, message.context, has), now_ms)
                raft.step(AppendAnswer(1, 3, 1, raft.term, has), now_ms)
            elif isinstance(message, Append) and message.prev_index > has:
                raft.step(AppendAnswer(1, 3, 1, raft.term, 0, message.prev_index, has, 1), now_ms)
            elif isinstance(message, Append) and message.entries:
                has = message.entries[-1].index
                raft.step(AppendAnswer(1, 3, 1, raft.term, has), now_ms)
            turn()
    assert has == 3


# --- settings -------------------------------------------------------------------------------------


def test_a_lease_is_shorter_than_the_promise_by_both_clocks_drift() -> None:
    settings = Settings(election_ms=1000, clock_drift=0.3)
    slow, fast = 1 - settings.clock_drift, 1 + settings.clock_drift
    assert settings.lease_ms / slow < settings.election_ms / fast  # in true time
    assert Settings().lease_ms == 586


@pytest.mark.parametrize(
    "bad",
    [
        {"election_ms": 150},
        {"heartbeat_ms": 0},
        {"clock_drift": 0.6},
        {"priority": 3},
        {"chunk_bytes": 1 << 30},
    ],
)
def test_settings_that_cannot_work_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Settings(**bad)  # type: ignore[arg-type]


def test_who_recalls_leads_no_more() -> None:
    """Deliver a heartbeat of the leader's former incarnation, with quiescence, after the report of
    its disk loss. The new incarnation, which is amnesiac, ends the quiescence."""
    raft = Raft(Identity(1, 2, 5), Recovery(1).result(BIRTH), Settings(), now_ms=0, ready=[])
    raft.step(Append(2, 1, 1, 1, 0, 0, 0, [entry(1, 1)]), 10)
    raft.persisted(raft.take().ticket, 10)
    raft.step(Heartbeat(2, 1, 1, 1, 1, 1), 11)
    raft.applied_to(raft.take().committed[-1].index)
    raft.step(Heartbeat(2, 1, 1, 1, 1, 2, quiesce=True), 12)
    assert (raft.quiescent, raft.leader, raft.deadline_ms) == (True, 1, NEVER)
    raft.step(RecoverVote(2, 1, 1, 0, blank=True), 13)
    assert (raft.quiescent, raft.leader) == (False, 0)
    assert raft.deadline_ms < 13 + 3 * Settings().election_ms


@pytest.mark.parametrize("seed", range(8))
def test_whose_vote_was_split_asks_again_sooner_than_after_a_silence_and_first_whether_it_may(
    seed: int,
) -> None:
    """Split the vote: one of three is down, the other two campaigned at the same moment and each
    voted for itself."""
    settings = Settings()
    raft = Raft(Identity(1, 2, seed), Recovery(1).result(BIRTH), settings, now_ms=0, ready=[])
    raft.campaign(1000)
    raft.step(VoteAnswer(2, 3, 1, 1, pre=True, granted=True), 1001)
    raft.persisted(raft.take().ticket, 1002)
    assert raft.role is Role.CANDIDATE
    raft.step(Vote(2, 3, 1, 1, 0, 0, pre=False, forced=False), 1003)
    raft.step(VoteAnswer(2, 3, 1, 1, pre=False, granted=False), 1004)
    assert (
        1004 + settings.spread_ms
        <= raft.deadline_ms
        <= 1004 + 3 * settings.spread_ms
        < 1004 + settings.election_ms
    )
    raft.take()
    raft.tick(raft.deadline_ms)
    asked = [message for message in raft.take().messages if isinstance(message, Vote)]
    assert raft.term == 1 and {(each.to, each.pre) for each in asked} == {(1, True), (3, True)}
    raft.step(VoteAnswer(2, 3, 1, 1, pre=True, granted=False), 1500)
    raft.step(VoteAnswer(2, 1, 1, 1, pre=True, granted=False), 1500)
    assert raft.deadline_ms >= 1004 + settings.election_ms, "who is refused then has time"


def test_a_member_that_keeps_nothing_is_not_sent_ever_more_chunks() -> None:
    """Each answer that asks for the start again leads to a window of chunks, and each of those to
    such an answer."""
    settings = Settings(chunk_bytes=10, chunk_window_bytes=30)
    peer = Progress(1, 0)
    peer.send_snapshot(Snapshot(5, 1, Configuration((1, 2)), 100, 7), 1000)
    outgoing = peer.outgoing
    assert outgoing is not None
    leader: Any = SimpleNamespace(
        role=Role.LEADER,
        peers={2: peer},
        now_ms=1000,
        settings=settings,
        transfers=SimpleNamespace(chunks_wanted=[]),
    )

    def answered(received: int) -> list[int]:
        leader.transfers.chunks_wanted.clear()
        snapshots.on_answer(leader, SnapshotAnswer(1, 2, 1, 1, 7, received))
        snapshots.want(leader, 2, outgoing)
        return [wanted.offset for wanted in leader.transfers.chunks_wanted]

    snapshots.want(leader, 2, outgoing)
    assert [answered(10), answered(0), answered(10)] == [[10, 20, 30], [0], [10, 20, 30]]
    assert [answered(0), answered(0), answered(0)] == [[], [], []], (
        "so soon after the last time nothing is sent again"
    )
    leader.now_ms += settings.heartbeat_ms
    assert answered(0) == [0]


@pytest.mark.parametrize("chunk_ms", [200, 1000, 4000])
def test_a_snapshot_on_a_slow_way_is_sent_little_more_than_once(chunk_ms: int) -> None:
    """Send one chunk after the other through a slow queue. A repeated request waits behind all of
    that; repeating the whole window again and again would block new chunks."""
    settings = Settings(chunk_bytes=10, chunk_window_bytes=80)
    peer, queue, kept, sent = Progress(1, 0), list[int](), 0, 0
    peer.send_snapshot(Snapshot(5, 1, Configuration((1, 2)), 600, 7), 0)
    outgoing = peer.outgoing
    assert outgoing is not None
    leader: Any = SimpleNamespace(
        role=Role.LEADER,
        peers={2: peer},
        now_ms=0,
        settings=settings,
        transfers=SimpleNamespace(chunks_wanted=[]),
    )
    for now_ms in range(0, 120 * chunk_ms, 100):
        leader.now_ms = now_ms
        snapshots.beat(leader)
        snapshots.want(leader, 2, outgoing)
        queue += [wanted.offset for wanted in leader.transfers.chunks_wanted]
        leader.transfers.chunks_wanted.clear()
        if queue and now_ms % chunk_ms == 0:
            kept += 10 * (queue.pop(0) == kept)
            sent += 1
            snapshots.on_answer(leader, SnapshotAnswer(1, 2, 1, 1, 7, kept))
        if outgoing.acked == 600:
            break
    assert outgoing.acked == 600 and sent <= 80


def test_a_snapshot_from_before_a_member_knew_who_belongs_to_its_group_can_be_sent() -> None:
    """Send a snapshot of a member that was re-created and replayed from the first entry. No entry
    names the initial members; the first change does."""
    raft = Raft(
        Identity(1, 9, 5),
        RestoredMember(Snapshot(0, 0, Configuration(())), HardState(learning=True)),
        Settings(),
        now_ms=1000,
        ready=[],
    )

    def append(prev: int, entries: list[Entry]) -> None:
        for at, entry in enumerate(entries, prev + 1):
            entry.index, entry.term, entry.group = at, 1, 1
        raft.step(Append(9, 1, 1, 1, prev, min(prev, 1), prev + len(entries), entries), 1000)
        raft.persisted(raft.take().ticket, 1000)
        raft.take()
        raft.applied_to(raft.commit)

    append(0, [Entry(b"a"), Entry(b"b")])
    raft.snapshots.taken(raft.snapshots.describe(2, 100, 7), 3, 1000)
    changes = Configuration((1,), (), (9,)), Configuration((9,), (1,)), Configuration((9,))
    append(2, [Entry(encode_configuration(each), EntryKind.CONFIGURATION) for each in changes])
    raft.step(TimeoutNow(9, 1, 1, 1), 1000)
    for _ in range(2):
        raft.persisted(raft.take().ticket, 1000)
    assert (
        raft.role is Role.LEADER
        and raft.take()
        and raft.change(Configuration((9,), (), (3,)), 1000) is None
    )
    raft.take()
    raft.step(AppendAnswer(9, 3, 1, raft.term, 0, raft.log.last, 0, 0), 1001)
    [wanted] = raft.take().chunks_wanted
    raft.snapshots.chunk_read(wanted, b"x" * wanted.length, 1001)
    chunk = next(message for message in raft.take().messages if isinstance(message, SnapshotChunk))
    assert decode_message(
        encode_message(chunk)
    ) == chunk and chunk.snapshot.configuration == Configuration((1,))
