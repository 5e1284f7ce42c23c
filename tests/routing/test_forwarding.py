"""Stories of proposals that look for their leader: a core of node 1 with fakes for its replicas and
for the others."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from polling import wait_for
from worlds.forwarding import OK, World, story, turns

from polynya.base.errors import InvalidMessage, NotLeader, OutcomeUnknown, Unavailable
from polynya.replica.log import encode_command
from polynya.routing import in_flight, messages
from polynya.routing.send import THROUGH
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import Acknowledge
from polynya.stream.parts import Batch
from polynya.stream.state.directory import StreamDirectory
from polynya.stream.state.model import Stream
from polynya.stream.state.profile_epochs import DisklessStreams
from polynya.transport.errors import encode_error


def test_what_is_led_here_stays_here():
    async def work(world: World) -> None:
        world.lead(2, 1)
        answers = world.propose(2, 7)
        assert [entry[:2] for entry in world.here] == [(2, 7)] and not world.asked
        world.here[0][2](OK)
        assert answers == [OK]

    story(work)


def test_a_kept_appender_goes_straight_to_its_stream_only_while_the_group_is_led_here():
    async def work(world: World) -> None:
        straight, append = world.appender(2)
        world.lead(2, 1)
        answers = [append(1), append(2), append(3)]
        assert [entry[1] for entry in world.here] == [1] and [number for number, _ in straight] == [
            2,
            3,
        ]
        world.here[0][2](OK)
        for _, done in straight:
            done(OK)
        assert answers == [[OK]] * 3 and world.forwarding.demand.here[2] == 3
        world.lead(2, 3)
        append(4)
        assert len(straight) == 2
        await turns()
        assert world.sends() == [(3 << 8 | 0, 4)]
        world.asked[0][2](messages.encode(OK))
        world.lead(2, 1)
        append(5)
        append(6)
        assert [entry[1] for entry in world.here] == [1, 5] and [
            number for number, _ in straight
        ] == [2, 3, 6]
        world.forwarding.gone(2)
        append(7)
        assert len(straight) == 3

    story(work)


def test_a_kept_appender_does_not_overtake_what_was_refused_and_sets_out_again():
    async def work(world: World) -> None:
        straight, append = world.appender(2)
        world.lead(2, 1)
        append(1)
        answers = append(2)
        straight[0][1](NotLeader(0))  # the engine knows before the forwarding does
        assert [entry[1] for entry in world.here] == [1, 2] and not answers
        append(3)
        assert len(straight) == 1, "it waits behind the second attempt"
        world.here[1][2](OK)
        assert answers == [OK]
        await wait_for(lambda: len(world.here) == 3)
        world.here[2][2](OK)
        append(4)
        append(5)
        assert [entry[1] for entry in world.here] == [1, 2, 3, 4] and straight[1][0] == 5

    story(work)


class DisklessReplica:
    """A replica of a group whose streams are diskless."""

    def __init__(self, *names: str) -> None:
        self.directory, self.diskless = StreamDirectory(), DisklessStreams()
        for number, name in enumerate(names):
            stream = Stream(number, name, "text/plain", 0, 0, 0)
            self.directory.add(stream)
            self.diskless.streams[number] = stream


class Packed:
    """A writer that keeps its input."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def append(self, group: int, command: Append, done: Callable[[object], None]) -> None:
        self.names.append(command.name)


def test_the_first_append_to_a_diskless_stream_does_not_cross_to_its_leader():
    async def work(world: World) -> None:
        _, append = world.appender(2)
        writer = world.forwarding.diskless.writer = Packed()
        world.lead(2, 3)
        replica = DisklessReplica("1", "2", "4")
        world.local.machines[2] = replica  # type: ignore[assignment]
        replica.diskless.changing = {1: replica.directory.streams["2"]}
        append(1)
        append(1)
        assert writer.names == ["1", "1"]
        append(2)
        append(3)
        await turns()
        assert world.sends() == [(3 << 8, [2, 3])], "one changes still, one is unknown"
        append(4)
        append(4)
        assert writer.names == ["1", "1"], "earlier ones may be on their way"
        await wait_for(lambda: writer.names == ["1", "1", "4", "4"])
        world.answer_all(0, [OK, OK])

    story(work)


def test_an_append_that_waits_for_a_leader_is_not_overtaken_on_the_way_to_the_writer():
    async def work(world: World) -> None:
        _, append = world.appender(2)
        writer = world.forwarding.diskless.writer = Packed()
        world.local.machines[2] = DisklessReplica("1")  # type: ignore[assignment]
        world.lead(2, 0)
        world.forwarding.propose(2, Append("1", 1, "", None), lambda answer: None)
        append(1)
        assert not writer.names
        world.lead(2, 3)
        await wait_for(lambda: len(world.asked) == 1)
        assert world.sends() == [(3 << 8, [1, 1])]

    story(work)


def test_what_is_led_elsewhere_goes_to_the_core_of_the_group_there():
    async def work(world: World) -> None:
        world.lead(2, 3)
        world.hear(g1=2, g3=1)
        answers = [world.propose(group, group) for group in (1, 2, 3)]
        assert world.sends() == [(2 << 8 | 1, 1), (3 << 8 | 0, 2), (1, 3)]
        for _, _, done in world.asked:
            done(messages.encode(OK))
        assert answers == [[OK], [OK], [OK]] and world.forwarding.forwarded == 3

    story(work)


def test_a_refusal_for_want_of_leadership_is_tried_again_where_the_leader_is(monkeypatch):
    monkeypatch.setattr(in_flight, "LOOK_SECONDS", 60.0)  # news alone moves it

    async def work(world: World) -> None:
        world.lead(2, 3)
        answers = world.propose(2, 7)
        world.asked[0][2](NotLeader(2))
        await turns()
        assert not answers and len(world.asked) == 1  # the replica here does not know it yet
        world.lead(2, 2)
        await turns()
        assert world.sends()[1:] == [(2 << 8 | 0, 7)]
        world.asked[1][2](messages.encode(OK))
        assert answers == [OK] and world.forwarding.targets.redirects == 1

    story(work)


def test_of_groups_of_other_cores_the_refusal_itself_is_news():
    async def work(world: World) -> None:
        world.hear(g1=2)
        world.propose(1, 7)
        world.asked[0][2](NotLeader(3))
        await wait_for(lambda: len(world.asked) == 2)
        assert world.sends() == [(2 << 8 | 1, 7), (3 << 8 | 1, 7)]

    story(work)


@pytest.mark.parametrize("fault", [OutcomeUnknown("perhaps"), Unavailable("too much")])
def test_what_may_have_been_taken_is_never_sent_again_and_a_refusal_is_passed_on(fault):
    async def work(world: World) -> None:
        world.lead(2, 3)
        answers = world.propose(2, 7)
        world.asked[0][2](fault)
        world.lead(2, 1)
        await turns()
        assert answers == [fault] and not world.here and len(world.asked) == 1

    story(work)


def test_those_who_wait_for_an_election_go_in_their_order_and_before_later_ones():
    async def work(world: World) -> None:
        for number in range(3):
            world.propose(2, number)
        world.leaders[2] = 1
        world.led.add(2)
        world.propose(2, 3)  # the news are on their way
        world.forwarding.led(2)
        await turns()
        assert [number for _, number, _ in world.here] == [0, 1, 2, 3]

    story(work)


def test_what_is_under_way_to_an_old_leader_keeps_its_place():
    async def work(world: World) -> None:
        world.lead(2, 3)
        first = world.propose(2, 0)
        world.lead(2, 1)
        second = world.propose(2, 1)
        assert not world.here  # it would overtake
        world.asked[0][2](NotLeader(1))
        await wait_for(lambda: len(world.here) == 2)
        assert [number for _, number, _ in world.here] == [0, 1]
        for _, _, done in world.here:
            done(OK)
        assert first == second == [OK]

    story(work)


def test_appends_of_a_pass_go_together_and_those_refused_again_in_their_order_before_later_ones():
    async def work(world: World) -> None:
        world.lead(2, 3)
        await world.prove(2)
        answers = [world.append(2, number) for number in range(4)]
        assert not world.asked and world.forwarding.forwarded == 5
        await turns()
        assert world.sends() == [(3 << 8, [0, 1, 2, 3])]
        reply = messages.encode(
            ([OK, None, OK, None], {1: encode_error(NotLeader(2)), 3: encode_error(NotLeader(2))})
        )
        later = world.append(2, 4)
        world.asked[0][2](reply)
        assert answers == [[OK], [], [OK], []]
        world.lead(2, 2)
        last = world.append(2, 5)
        assert len(world.asked) == 1, "4 is on its way to the old leader"
        await turns()
        assert world.sends()[1:] == [(3 << 8, 4)]
        world.asked[1][2](NotLeader(2))
        await wait_for(lambda: len(world.asked) == 3)
        assert world.sends()[2] == (2 << 8, [1, 3, 4, 5])
        world.asked[2][2](messages.encode(([OK] * 4, {})))
        assert (
            answers == [[OK]] * 4
            and later == last == [OK]
            and world.forwarding.targets.redirects == 3
        )

    story(work)


def test_behind_an_append_that_a_new_leader_may_refuse_none_is_sent_before_one_was_accepted():
    """Await the leader's readiness: a new leader refuses appends before it has applied the earlier
    terms. It would accept the second of two in flight, and the first after it."""

    async def work(world: World) -> None:
        world.lead(2, 3)
        first = world.append(2, 0)
        await turns()
        later = [world.append(2, 1), world.propose(2, 2), world.append(2, 3)]
        await turns()
        assert world.sends() == [(3 << 8, 0)]
        world.asked[0][2](NotLeader(0))
        await wait_for(lambda: len(world.asked) == 2)
        assert world.sends()[1:] == [(3 << 8, [0, 1])]
        world.answer_all(1, [OK, OK])
        await wait_for(lambda: len(world.asked) == 4)
        assert world.sends()[2:] == [(3 << 8, 2), (3 << 8, 3)], "it accepts: all that there is"
        for _, _, done in world.asked[2:]:
            done(messages.encode(OK))
        assert [first, *later] == [[OK]] * 4

    story(work)


@pytest.mark.parametrize("news", ["a refusal", "another epoch", "another leader"])
def test_a_leader_has_to_accept_again_after_a_refusal_and_in_another_epoch(news: str) -> None:
    async def work(world: World) -> None:
        world.lead(2, 3)
        await world.prove(2)
        if news == "a refusal":
            world.append(2, 0)
            await turns()
            world.asked.pop()[2](NotLeader(3))
            await wait_for(lambda: world.asked)
        else:
            if news == "another leader":
                world.lead(2, 2)
            world.epochs[2] = 8
            world.lead(2, 3)
            world.append(2, 0)
            await turns()
        world.append(2, 1)
        await turns()
        assert world.sends() == [(3 << 8, 0)]
        world.asked[0][2](messages.encode(OK))
        await wait_for(lambda: len(world.asked) == 2)
        world.append(2, 2)
        await turns()
        assert world.sends()[1:] == [(3 << 8, 1), (3 << 8, 2)]

    story(work)


def test_an_answer_that_takes_long_holds_up_nothing_that_follows(monkeypatch):
    """Such as one about a stream that is loaded first: a refusal would have come."""
    monkeypatch.setattr(in_flight, "SILENCE_SECONDS", 60.0)

    async def work(world: World) -> None:
        world.lead(2, 3)
        world.append(2, 0)
        await turns()
        world.append(2, 1)
        await turns()
        assert len(world.asked) == 1
        monkeypatch.setattr(in_flight, "SILENCE_SECONDS", 0.0)
        await wait_for(lambda: len(world.asked) == 2)
        assert world.sends()[1:] == [(3 << 8, 1)]

    story(work)


def test_a_proposal_out_of_an_answer_comes_after_those_of_its_bundle_that_were_refused():
    async def work(world: World) -> None:
        world.lead(2, 3)
        await world.prove(2)
        more = partial(world.append, 2, 2)
        world.forwarding.propose(2, Append("0", 1, "", None), lambda reply: more())
        world.append(2, 1)
        await turns()
        world.asked[0][2](messages.encode(([OK, None], {1: encode_error(NotLeader(3))})))
        await wait_for(lambda: len(world.asked) == 2)
        assert world.sends()[1:] == [(3 << 8, [1, 2])]

    story(work)


def test_only_one_append_looks_for_an_unknown_leader():
    async def work(world: World) -> None:
        answers = [world.append(1, number) for number in range(3)]
        await turns()
        assert [number for _, number in world.sends()] == [0]
        world.asked[0][2](messages.encode(OK))
        await turns()
        assert [number for _, number in world.sends()] == [0, [1, 2]]
        world.asked[1][2](OutcomeUnknown("lost"))
        assert answers[0] == [OK] and all(
            isinstance(found[0], OutcomeUnknown) for found in answers[1:]
        )

    story(work)


def test_what_is_no_append_does_not_overtake_appends_nor_they_it():
    async def work(world: World) -> None:
        world.lead(2, 3)
        await world.prove(2)
        world.append(2, 0), world.append(2, 1), world.propose(2, 2), world.append(2, 3)
        await turns()
        assert [number for _, number in world.sends()] == [[0, 1], 2, 3]

    story(work)


def test_without_a_leader_it_ends_in_bounded_time(monkeypatch):
    monkeypatch.setattr(in_flight, "PATIENCE_SECONDS", 0.05)

    async def work(world: World) -> None:
        answers = world.propose(2, 7)
        await wait_for(lambda: answers)
        assert (
            isinstance(answers[0], NotLeader)
            and answers[0].node == 0
            and world.forwarding.attempts.refused == 1
        )

    story(work)


def test_a_leader_that_is_not_heard_is_not_asked():
    async def work(world: World) -> None:
        world.gone |= {2, 3}  # no node is up that could relay it
        world.lead(2, 3)
        world.propose(2, 7)
        assert not world.asked
        world.gone.clear()
        await wait_for(lambda: world.asked)
        assert world.sends() == [(3 << 8 | 0, 7)]

    story(work)


def test_what_waits_is_bounded_and_refused_at_the_end(monkeypatch):
    monkeypatch.setattr(in_flight, "INFLIGHT_BYTES_PER_CORE", 2048)

    async def work(world: World) -> None:
        answers = [world.propose(2, number) for number in range(3)]
        assert [len(each) for each in answers] == [0, 0, 1] and isinstance(
            answers[2][0], Unavailable
        )
        world.forwarding.close()
        assert all(isinstance(each[0], Unavailable) for each in answers)

    story(work)


def test_what_waits_counts_with_its_payload_though_it_is_not_encoded_yet(monkeypatch):
    monkeypatch.setattr(in_flight, "INFLIGHT_BYTES_PER_CORE", 1 << 20)

    async def work(world: World) -> None:
        answers: list[list[Any]] = [[], [], []]
        for got in answers:
            world.forwarding.propose(
                2, Append("s", 1, "", Batch(0, 1, bytes(600 << 10), 0)), got.append
            )
        assert [len(each) for each in answers] == [0, 1, 1] and isinstance(
            answers[1][0], Unavailable
        )
        world.forwarding.close()

    story(work)


def test_the_other_cores_of_the_node_are_told_who_leads():
    async def work(world: World) -> None:
        world.lead(2, 3)
        world.lead(0, 2)
        world.lead(2, 1)
        await turns()
        assert world.announced == [{0: 2, 2: 1}]
        world.forwarding.start()  # and from time to time all of it
        assert world.announced[1:] == [{0: 2, 2: 1, 4: 0}]

    story(work)


def test_a_question_for_who_leads_has_an_answer_or_says_that_there_is_none():
    async def work(world: World) -> None:
        with pytest.raises(NotLeader):
            world.forwarding.targets.home(2)
        world.lead(2, 1)
        world.hear(g1=3)
        assert (world.forwarding.targets.home(2), world.forwarding.targets.home(1)) == (
            0,
            3 << 8 | 1,
        )
        assert list(world.forwarding.targets.other_nodes()) == [0x200, 0x201, 0x300, 0x301]
        world.gone.add(2)
        assert list(world.forwarding.targets.other_nodes()) == [0x300, 0x301]

    story(work)


def test_a_leader_that_is_not_reached_is_asked_through_another_node():
    """One attempt or bundle at a time, in their order; directly again once it is there."""

    async def work(world: World) -> None:
        world.lead(2, 3)
        world.gone = {3}
        answers = [world.append(2, number) for number in range(3)]
        await turns()
        assert [core for core, _ in world.sends()] == [2 << 8] and world.passed() == [
            (messages.PROPOSE_ALL, 2, [0, 1, 2])
        ]
        late, other = world.append(2, 3), world.propose(2, 4)
        await turns()
        assert len(world.asked) == 1
        world.answer_all(0, [OK, OK, OK])
        assert answers == [[OK], [OK], [OK]]
        world.gone = set()
        await wait_for(lambda: len(world.asked) == 3)
        assert world.sends()[1:] == [(3 << 8, 3), (3 << 8, 4)] and not late + other

    story(work)


def test_who_is_between_and_does_not_reach_the_leader_either_is_not_asked_for_ever(monkeypatch):
    async def work(world: World) -> None:
        monkeypatch.setattr(in_flight, "PATIENCE_SECONDS", 0.3)
        world.lead(2, 3)
        world.gone = {3}
        answers = world.propose(2, 1)
        answered = 0

        def refuse() -> list[Any]:
            nonlocal answered
            for _, _, done in world.asked[answered:]:
                answered += 1
                done(NotLeader(3))
            return answers

        await wait_for(refuse, what="an answer to who asks")
        assert isinstance(answers[0], NotLeader) and len(world.asked) < 40

    story(work)


def test_what_is_passed_on_goes_to_the_leader_alone():
    async def work(world: World) -> None:
        world.lead(2, 3)
        answers: list[Any] = []
        handle = world.handlers[messages.PASS_ON]
        body = b"\x02\x00" + encode_command(Acknowledge(7))
        handle(struct.pack("<HH", messages.PROPOSE, 2) + body, answers.append, 2 << 8)
        assert world.sends() == [(3 << 8, 7)]
        world.asked[0][2](encoded := messages.encode(OK))
        world.asked[0][2](fault := OutcomeUnknown("lost"))
        assert answers == [encoded, fault]
        answers.clear()
        # never twice
        handle(struct.pack("<HH", messages.PASS_ON, 2) + body, answers.append, 2 << 8)
        handle(struct.pack("<HH", messages.PROPOSE, 2) + body, answers.append, 3 << 8)  # nor back
        world.gone = {3}
        handle(struct.pack("<HH", messages.PROPOSE, 2) + body, answers.append, 2 << 8)
        world.lead(2, 1)
        handle(struct.pack("<HH", messages.PROPOSE, 2) + body, answers.append, 2 << 8)
        assert [each.node for each in answers] == [3, 3, 3, 1] and len(world.asked) == 1

    story(work)


def test_a_node_of_a_release_that_does_not_pass_on_is_only_asked_who_leads():
    async def work(world: World) -> None:
        world.protocols = 2
        world.lead(2, 3)
        world.gone = {3}
        world.propose(2, 1)
        await turns()
        assert not world.asked
        with pytest.raises(NotLeader):
            world.forwarding.targets.home(2, through=True)
        world.protocols = 3
        assert world.forwarding.targets.home(2, through=True) == THROUGH + (2 << 8)
        with pytest.raises(NotLeader):
            world.forwarding.targets.home(2)

    story(work)


def test_who_leads_is_known_once_the_replica_is_fit_though_others_knew_nobody():
    """Redirect to the leader after recovery: the replica heard it while still amnesiac; the peer
    that it asked was not leading yet."""

    async def work(world: World) -> None:
        world.fit = lambda group: False
        answers = world.propose(2, 1)
        world.lead(2, 3)
        world.asked.pop()[2](NotLeader(0))
        world.fit = lambda group: True
        await wait_for(lambda: world.asked)
        assert world.sends() == [(3 << 8, 1)]
        world.asked.pop()[2](messages.encode(OK))
        assert answers == [OK]

    story(work)


def test_the_epoch_of_a_leader_is_told_and_stays_known_while_there_is_none() -> None:
    async def work(world: World) -> None:
        directory = world.forwarding.directory
        assert (directory.last_epoch(2), directory.last_epoch(1)) == (0, 0), "unknown"
        world.epochs[2] = 7
        world.lead(2, 3)
        await asyncio.sleep(0)
        assert directory.last_epoch(2) == 7 and world.announced_epochs[-1] == {2: 7}
        world.epochs[2] = 8
        world.lead(2, 0)
        assert directory.last_epoch(2) == 7, "an election, which may fail"
        assert directory.newest_epoch(2) == 8
        world.lead(2, 3)
        await asyncio.sleep(0)
        assert world.announced_epochs[-1] == {2: 8}, "the same leader again is another epoch"
        world.epochs[0] = 5
        world.hear(g1=2)
        assert (directory.leader(1), directory.last_epoch(1)) == (2, 5)

    story(work)


def test_what_cannot_be_sent_holds_up_nothing_that_follows():
    """Such as a command that is larger than any message."""

    async def work(world: World) -> None:
        world.lead(2, 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world, "call_nowait", _refuse)
            with pytest.raises(AssertionError):
                world.propose(2, 1)
        world.lead(2, 2)
        world.propose(2, 2)
        assert world.sends() == [(2 << 8, 2)], (
            "to who leads now: nothing is under way that would have to be there before it"
        )

    story(work)


def _refuse(*arguments: object) -> None:
    raise AssertionError("a message of so many bytes")


@pytest.mark.parametrize(("leaders", "sender"), [({1: 3}, 2 << 8), ({77: 3}, 1), ({-1: 2}, 1)])
def test_who_leads_is_told_by_cores_of_this_node_alone_and_of_groups_that_there_are(
    leaders: dict[int, int], sender: int
) -> None:
    async def work(world: World) -> None:
        body = messages.encode({group: (node, 1) for group, node in leaders.items()})
        with pytest.raises(InvalidMessage):
            world.handlers[messages.LEADERS](body, None, sender)
        assert world.forwarding.directory.leader(1) == 0

    story(work)


def test_what_is_passed_on_for_a_group_that_is_none_is_answered_and_what_names_none_is_senseless() -> (
    None
):
    async def work(world: World) -> None:
        answers: list[Any] = []
        world.handlers[messages.PASS_ON](
            struct.pack("<HH", messages.PROPOSE, 60_000), answers.append, 2 << 8
        )
        assert [type(answer) for answer in answers] == [NotLeader]
        with pytest.raises(InvalidMessage):
            world.handlers[messages.PASS_ON](b"\x01\x00", answers.append, 2 << 8)

    story(work)


def test_leaders_that_other_nodes_know_go_to_the_sibling_cores_and_to_what_waits():
    async def work(world: World) -> None:
        world.gone = {2, 3}
        answers = world.propose(1, 7)
        assert not world.asked, "no node is reached"
        world.gone = set()
        world.forwarding.exchange.learn({1: (3, 5)})
        assert world.announced[-1] == {1: 3} and world.announced_epochs[-1] == {1: 5}
        assert world.sends() == [(3 << 8 | 1, 7)]
        world.asked[0][2](messages.encode(OK))
        assert answers == [OK]
        for leader, epoch in ((2, 4), (1, 6)):  # an older one, and this node, which has no replica
            world.forwarding.exchange.learn({1: (leader, epoch)})
            assert (
                world.forwarding.directory.leader(1),
                world.forwarding.directory.last_epoch(1),
            ) == (3, 5)

    story(work)
