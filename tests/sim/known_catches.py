"""Known catches of each planted defect: a test, or a short run of a world. `make mutants` tries
these first, and CI little else.

`python -m sim.shortest NAME` finds a short run of a defect that what is here misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sim.chaos import run_episode
from sim.commit_mutants import COMMIT_CAUGHT_BY, COMMIT_STORIES
from sim.compacted import run_compacted
from sim.compaction_mutants import COMPACTION_CAUGHT_BY
from sim.condition_mutants import CONDITION_STORIES
from sim.coordinated import run_coordinated
from sim.coordinator_mutants import COORDINATOR_CAUGHT_BY
from sim.copy_delta_mutants import COPY_DELTA_CAUGHT_BY, COPY_DELTA_STORIES
from sim.diskless_writer_mutants import DISKLESS_WRITER_CAUGHT_BY, DISKLESS_WRITER_STORIES
from sim.group_mutants import GROUP_CAUGHT_BY, GROUP_STORIES
from sim.groups import run_groups
from sim.kafka import run_kafka
from sim.kafka_consumers import run_consumers
from sim.kafka_mutants import KAFKA_CAUGHT_BY, KAFKA_STORIES
from sim.knobs import Knobs
from sim.leased import run_leased
from sim.modern_groups import run_members
from sim.moves import run_moves
from sim.page_mutants import PAGE_STORIES
from sim.planned import run_planned
from sim.reduced import run_reduced
from sim.reduced_mutants import REDUCED_CAUGHT_BY
from sim.slice_mutants import SLICE_STORIES
from sim.swarm import run_swarm
from sim.switched import run_switched
from sim.together import run_together
from sim.together_mutants import TOGETHER_CAUGHT_BY
from sim.transaction_mutants import TRANSACTION_CAUGHT_BY
from sim.transactional import run_transactions
from sim.world_mutants import WORLD_CAUGHT_BY

RUN: dict[str, Callable[..., object]] = {
    "plain": run_episode,
    "swarm": run_swarm,
    "moves": run_moves,
    "planned": run_planned,
    "kafka": run_kafka,
    "consumers": run_consumers,
    "groups": run_groups,
    "coordinated": run_coordinated,
    "members": run_members,
    "leased": run_leased,
    "switched": run_switched,
    "transactions": run_transactions,
    "together": run_together,
    "reduced": run_reduced,
    "compacted": run_compacted,
}
TRIED = ("plain", "swarm", "moves")
SEEDS = 40  # of each kind


class Known(NamedTuple):
    """A run of a world. `mishaps`: their number; None: the default."""

    world: str
    knobs: Knobs
    mishaps: int | None = None

    def run(self) -> None:
        """Run it. Raises AssertionError with the violated invariant."""
        RUN[self.world](
            self.knobs.seed,
            knobs=self.knobs,
            **({} if self.mishaps is None else {"mishaps": self.mishaps}),
        )


SLICED = Knobs(
    1,
    {"SLICE_BYTES": 1, "PASSES": 1, "BATCHES": 0},
    {},
    {"slice_seconds": 0.1, "snapshot_bytes": 1024, "keep_bytes": 4096},
)
CAUGHT_BY = {
    "a read does not confirm the leadership": Known("plain", Knobs.draw(0), 10),
    "the leader alone is a majority": Known("plain", Knobs.draw(1), 10),
    "terms and votes are not written": Known("plain", Knobs.draw(0), 10),
    "a lost disk is not noticed": Known("plain", Knobs.draw(1)),
    "an fsync is left out": Known("plain", Knobs.draw(0), 10),
    "log time is the node's own": Known("plain", Knobs.draw(0), 10),
    "it is said to be durable before it is": Known("plain", Knobs.draw(1)),
    "resets are not written": Known("plain", Knobs.draw(7)),
    "an unknown outcome is called a refusal": Known("plain", Knobs.draw(2)),
    "a pack is named though the store did not answer": Known("swarm", Knobs.draw(0), 6),
    "a lease has no end": Known("swarm", Knobs(1), 18),
    "proposals are taken before the own term's entry": Known("moves", Knobs.draw(1)),
    "segments go that the log needs": Known("moves", Knobs(3)),
    "a 409 is taken for one's own earlier try": Known("swarm", Knobs(4), 12),
    "packs are deleted that are needed": Known("swarm", Knobs(0), 2),
    "a snapshot leaves out who produced": Known("swarm", Knobs(0), 2),
    "a vote counts that is none": Known("moves", Knobs.draw(8)),
    "damage is cut as if it were a torn tail": Known("swarm", Knobs(10), 2),
    "a snapshot lacks what changed in its last pass": Known("swarm", SLICED, 5),
    "a snapshot lacks what changed behind its last slice": Known("swarm", SLICED, 5),
    "only the last portion of payload is copied": Known("plain", Knobs.draw(7)),
    "a page that ends in the middle says that it is the last": Known("plain", Knobs.draw(5), 3),
    "an equal Stream-Seq is taken": Known("swarm", Knobs.draw(3), 3),
    "an older epoch is taken": Known("swarm", Knobs.draw(2)),
    "a list leaves out what is new": Known("swarm", Knobs.draw(0), 5),
    "a trim cuts at the record before": Known("swarm", Knobs.draw(1), 12),
    "a deleted source keeps nothing for its forks": Known("swarm", Knobs.draw(3), 3),
    "a deleted source keeps nothing for forks that are not confirmed": Known(
        "swarm", Knobs.draw(3), 3
    ),
    "a lease is given twice": Known("swarm", Knobs.draw(14)),
    "updates that a node had when it died are lost": Known("swarm", Knobs.draw(9)),
    "a webhook is done with what came after": Known("swarm", Knobs.draw(1), 2),
    "a recovery looks for no packs that came after the copies": Known("swarm", Knobs.draw(20), 5),
    "a restore goes on at the numbers of what was lost": Known("swarm", Knobs.draw(3), 2),
    "a restore knows no producers": Known("swarm", Knobs.draw(3), 2),
    "packs that no log knows are never deleted": Known("swarm", Knobs.draw(23), 2),
    "a stream ends when it was not read for half of its time": Known("swarm", Knobs.draw(1), 12),
    "what is young is trimmed": Known("swarm", Knobs.draw(24), 2),
    "wakes are not announced": Known("swarm", Knobs.draw(8)),
    "groups are not told of subscriptions that are gone": Known("swarm", Knobs.draw(8), 5),
    "pins that are not confirmed pin nothing": Known("swarm", Knobs.draw(18)),
    "what is together in one zone stays so": Known("planned", Knobs.draw(1), 5),
    "what a put without an answer brought is another's": Known("swarm", Knobs.draw(8)),
} | {
    name: Known(*each)
    for name, each in (
        COMMIT_CAUGHT_BY
        | KAFKA_CAUGHT_BY
        | GROUP_CAUGHT_BY
        | DISKLESS_WRITER_CAUGHT_BY
        | COPY_DELTA_CAUGHT_BY
        | WORLD_CAUGHT_BY
        | COORDINATOR_CAUGHT_BY
        | TOGETHER_CAUGHT_BY
        | REDUCED_CAUGHT_BY
        | TRANSACTION_CAUGHT_BY
        | COMPACTION_CAUGHT_BY
    ).items()
}


MACHINE_STORY = "stream/test_stories.py::test_story"
STORIES = {  # the test that notices it, where there is one
    **COMMIT_STORIES,
    **GROUP_STORIES,
    **PAGE_STORIES,
    **SLICE_STORIES,
    **KAFKA_STORIES,
    **DISKLESS_WRITER_STORIES,
    **COPY_DELTA_STORIES,
    **CONDITION_STORIES,
    "less is kept than is to be": (
        "local/test_retention.py::test_retention_by_bytes_keeps_at_least_so_many"
    ),
    "data goes by the map alone": "replica/test_cluster_moves.py::test_an_old_map_costs_nobody_their_data",
    "what was dropped is found again": "replica/test_cluster_moves.py::test_a_crash_between_any_two_steps_of_a_drop_leaves_a_replica_or_none",
    "learners count, and one majority of two": "replica/test_cluster_moves.py::test_learners_are_not_counted",
    "leads follow to nodes that lag": "replica/test_cluster_follow.py::test_a_node_that_lags_does_not_get_it_and_holds_nobody_up",
    "leads stay where their writers are, however they came there": (
        "replica/test_cluster_follow.py::test_a_lead_that_a_failure_moved_goes_back_while_clients_write_that_go_where_it_is"
    ),
    "leads follow at once from where they were put": (
        "replica/test_cluster_follow.py::test_a_lead_that_was_just_put_somewhere_stays_there_for_a_while"
    ),
    "a lease is judged by the time of the last turn": (
        "replica/test_cluster_faults.py::test_what_was_asked_of_a_node_that_stands_still_is_answered_by_what_is_true_then"
    ),
    "a lease takes no account of clocks that drift": (
        "replica/test_cluster_faults.py::test_a_lease_outlives_no_promise_however_wrong_the_clocks_may_be"
    ),
    "a leader without contact to a majority leads on": "replica/test_cluster_faults.py::test_others_lead_when_a_leader_is_cut_off[in]",
    "a snapshot has its name before it is synced": "replica/test_cluster_faults.py::test_a_node_comes_back_wherever_it_dies",
    "a segment is written to before its name is synced": "replica/test_cluster_faults.py::test_a_node_comes_back_wherever_it_dies",
    **{
        name: f"replica/test_cluster_revealed.py::test_it_ends_well[{name}]"
        for name in (
            "a candidate skips the pre-vote",
            "who hears a leader votes for others",
            "what was lost is not missed",
            "what comes again cuts what came after",
            "chunks that found no room are never sent again",
            "log time follows each step of the wall's clock",
            "what cannot be read is taken for zeros",
            "a backup is taken from a deposed leader",
        )
    },
    "an older copy of a node's data is let in": (
        "replica/test_cluster_copies.py::test_an_older_image_is_kept_out_and_nothing_is_lost[1]"
    ),
    "receipts end where a Kafka sequence wraps": (
        "stream/test_kafka_producers.py::test_a_batch_that_begins_at_0_after_the_last_sequence_is_the_next"
    ),
    "a gap in a Kafka producer's batches is taken": (
        "stream/test_kafka_producers.py::test_a_sequence_wraps_and_its_receipts_stay"
    ),
    "a stream that is taken off a subscription stays linked": (
        "stream/test_changes.py::test_a_stream_that_is_taken_off_a_subscription_is_not_linked_any_more"
    ),
    "pins that are not confirmed pin nothing": f"{MACHINE_STORY}[an_unconfirmed_pin_keeps_what_its_fork_will_inherit]",
    "a deleted source keeps nothing for forks that are not confirmed": (
        f"{MACHINE_STORY}[an_unconfirmed_pin_keeps_what_its_fork_will_inherit]"
    ),
    "a stream that was evicted and trimmed is recovered with what was trimmed": (
        "stream/test_salvage.py::test_an_evicted_stream_that_came_back_and_was_trimmed_goes_on_behind_the_trim"
    ),
    "requests do not wait for an eviction that is on its way": (
        "local/test_eviction.py::test_an_eviction_that_overtakes_requests_is_not_seen"
    ),
    "a late eviction takes what has come back": (
        "local/test_eviction.py::test_a_late_eviction_does_not_overtake_what_comes_behind_a_return"
    ),
    "old backups go though others are under way": (
        "backup/test_taking_and_restoring.py::test_what_a_backup_under_way_has_brought_or_counts_on_stays"
    ),
    "old backups go though another one has begun": (
        "backup/test_taking_and_restoring.py::test_a_backup_that_begins_while_old_ones_go_finds_what_it_counts_on"
    ),
    "a backup does not look again at what it counts on": (
        "backup/test_taking_and_restoring.py::test_a_backup_whose_place_is_tidied_meanwhile_is_whole_or_none"
    ),
}
