"""A core with a shorter journal than recorded is rejected. One that lost its disk, or only a tail
that no peer knew, is accepted."""

from __future__ import annotations

import asyncio

from msgspec import structs
from polling import wait_for
from worlds.two_nodes import Node, two_nodes

from polynya.transport import Hello, PeerJournalPositions, address

ABOUT = Hello(4, 4, "c", 1, 4, 2, 0, 1, "life", journal=77, opened=100, incarnation=1)


def known(synced: int = 500) -> PeerJournalPositions:
    found = PeerJournalPositions()
    found.record_accepted(ABOUT)
    found.record_synced(address(2, 0), ABOUT.journal, synced)
    return found


def comes(**other: int) -> Hello:
    return structs.replace(ABOUT, **{"incarnation": 2, "opened": 500, **other})


def test_all_that_was_synced_is_there_or_it_is_an_older_copy() -> None:
    assert known().lacks(comes()) == "" and known().lacks(comes(opened=700)) == ""
    assert (
        known().lacks(comes(opened=499))
        == "its journal ends at segment 0, offset 499, but was synced up to segment 0, offset 500"
    )
    assert known().lacks(comes(opened=100)), (
        "it is what this life began with, before all that it said"
    )


def test_a_life_that_goes_on_and_cores_that_are_not_known_lack_nothing() -> None:
    assert (
        known().lacks(ABOUT) == ""
        and known().lacks(comes(core=1, opened=0)) == ""
        and known().lacks(comes(journal=0)) == ""
    )


def test_a_journal_that_was_lost_may_be_replaced_and_does_not_come_back() -> None:
    found = known()
    anew = comes(journal=78, opened=0)
    assert found.lacks(anew) == ""
    found.record_accepted(anew)
    assert (
        found.lacks(comes(opened=10**6, incarnation=3))
        == "its journal has been replaced by another one"
    )
    assert found.lacks(comes(journal=78, opened=0, incarnation=4)) == ""


def test_what_a_journal_that_was_lost_had_said_is_not_asked_of_the_new_one() -> None:
    """Seeds 3001024 and 3001050 of the swarm: of the life before something came late."""
    found, anew = known(), comes(journal=78, opened=0)
    found.record_accepted(anew)
    found.record_synced(address(2, 0), ABOUT.journal, 600)
    assert found.lacks(structs.replace(anew, opened=20, incarnation=3)) == ""
    found.record_synced(address(2, 0), anew.journal, 30)
    assert found.lacks(structs.replace(anew, opened=20, incarnation=3))


def test_a_greeting_of_a_life_that_is_over_and_comes_late_makes_no_older_copy_of_the_one_that_lives() -> (
    None
):
    """Deliver a late handshake after a pause of this node: the previous incarnation was short and
    wrote nothing, or its journal is lost."""
    found = PeerJournalPositions()
    living = comes(opened=100)
    for late in (ABOUT, structs.replace(ABOUT, journal=76, opened=5, incarnation=3)):
        found.record_accepted(living)
        assert found.lacks(late) == ""
        found.record_accepted(late)
        found.record_synced(address(2, 0), living.journal, 900)
        assert found.lacks(living) == ""
        found.record_accepted(living)
    assert found.lacks(comes(incarnation=9, opened=900)) == "" and found.lacks(
        comes(incarnation=9, journal=76)
    )


def test_what_was_heard_is_known_in_the_next_life() -> None:
    before, found = known(), PeerJournalPositions()
    assert before.dirty
    found.restore(before.saved())
    assert found.lacks(comes(opened=499)) and not found.lacks(comes())


def test_a_node_of_before_that_does_not_say_it_changes_nothing() -> None:
    found = known()
    found.record_accepted(structs.replace(ABOUT, journal=0, incarnation=0))
    found.record_synced(address(3, 0), 0, 9)
    assert found.lacks(comes(opened=499)) and [each.node for each in found.saved()] == [2]


def test_a_node_with_an_older_copy_is_refused_by_both_sides_and_told(tmp_path) -> None:
    """Remember over TCP the journal positions in a peer's messages and pings."""

    async def story() -> None:
        one, two = Node(tmp_path, 1), Node(tmp_path, 2)
        reported: list[Hello] = []

        async def begin(
            node: Node, others: dict[int, int], opened: int, synced: int, incarnation: str
        ) -> None:
            node.vouches = (99, opened, lambda: synced)
            await node.start(others, life=incarnation)

        await begin(two, {1: one.port}, 100, 4000, "first")
        await begin(one, {2: two.port}, 0, 10, "first")
        await wait_for(lambda: one.raft.is_up(2) and two.raft.is_up(1))
        two.raft.send(1, [b"acknowledged"])
        await wait_for(lambda: one.heard)
        await two.stop()
        await begin(two, {1: one.port}, 3999, 3999, "second")
        two.links.on_stale_copy = reported.append
        await wait_for(lambda: reported)
        assert (reported[0].node, reported[0].lacks) == (
            1,
            "its journal ends at segment 0, offset 3999, but was synced up to segment 0, offset "
            "4000",
        )
        assert not one.raft.is_up(2) and one.links.refusals[2].startswith(
            "node 2 returned with a stale copy of its data ("
        )
        await two.stop()
        await begin(two, {1: one.port}, 4000, 4000, "third")
        await wait_for(lambda: one.raft.is_up(2) and two.raft.is_up(1))
        assert one.links.refusals == {}
        for node in (one, two):
            await node.stop()
            node.held.close()

    asyncio.run(story())


def test_who_says_nothing_of_a_journal_is_let_in(tmp_path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (one, two, _):
            assert (
                one.raft.is_up(2) and two.raft.is_up(1) and one.links.peer_positions.saved() == []
            )

    asyncio.run(story())
