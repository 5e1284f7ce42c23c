"""Defects of the product that simulation, chaos and searches have found, each with what found it;
all are mended, and have a test."""

from __future__ import annotations

import msgspec


class Found(msgspec.Struct, frozen=True):
    what: str
    by: str
    test: str


FOUND = (
    Found(
        "A connection to another node that broke between TCP and TLS closed somebody else's "
        "descriptor (uvloop's issues 645 and 738): the way to "
        "that node was dead until a restart, silently",
        "chaos, seed 1, the first `kill -9` of a node",
        "tests/transport/test_dialing.py",
    ),
    Found(
        "A supervisor whose disk had failed ended with a traceback instead of its exit code, "
        "because it could not remove its pid file",
        "chaos, seed 3, power cuts",
        "tests/system/test_data_dir.py",
    ),
    Found(
        "A node whose clock was set back by two hours was not let in after a restart: its "
        "certificate was one hour old at most",
        "chaos, seed 6, a clock that jumps by -7,200 s, then a disk that fails",
        "tests/cluster/test_certificate_dates.py",
    ),
    Found(
        "An append that had waited for a leader kept its old time stamp: log time went back",
        "simulation, seed 0 of the plain world",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A member was sent a snapshot again and again that the log did not go on from any more",
        "simulation, seed 219 of the plain world",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A node that had lost its disk voted",
        "simulation, while it was built",
        "tests/replica/test_cluster.py",
    ),
    Found(
        "A snapshot of nothing had a term",
        "simulation, while it was built",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "Log time after an installed snapshot began too early",
        "simulation, while it was built",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A replica that was made anew voted with an empty log for a member that had been put out "
        "and had not heard of it: two leaders in one term",
        "simulation of moves, seed 231, before moves were released",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A group of one voter never answered again after its disk had been full",
        "simulation of moves, seed 2",
        "tests/replica/test_cluster_moves.py",
    ),
    Found(
        "A group had no leader for good: the last heartbeat of its leader's former life came "
        "late, and put a member to sleep that nothing woke",
        "simulation, seed 777140",
        "tests/replica/test_cluster_swarm.py",
    ),
    Found(
        "Log time went back by milliseconds with a new leader: a snapshot did not know the time "
        "of commands that had changed no stream",
        "simulation, seed 777028",
        "tests/replica/test_cluster_swarm.py",
    ),
    Found(
        "A member that was made anew, and still learned, was given a voice. When the leader died "
        "before it knew more, it voted for nobody, and the "
        "group, which counted on its vote, never had a leader again",
        "simulation of moves, seeds 41000119 and 41000153",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A new group never had a leader: the first member to know that there is nothing to "
        "remember said so while it could not reach the others "
        "yet, and was no blank one any more when they asked",
        "a cluster of two cores a node that started beside others, on a busy machine",
        "tests/raft/test_disk_loss.py",
    ),
    Found(
        "A node whose clock was an hour ahead was refused by the object store, kept its "
        "leaderships, and flushed nothing for as long: what was recent there "
        "was on the disks alone, and appends would have got 503 in the end",
        "chaos, seed 203903693 of `--s3 --lose-all`",
        "tests/replica/test_store_refuses.py",
    ),
    Found(
        "After a leader whose clock was an hour ahead the log time of the next one stood still "
        "for that hour: nothing expired, no lease ended, and nothing was "
        "flushed for its age",
        "chaos, seed 3 of `--s3 --lose-all --episodes 6 --only clock`",
        "tests/replica/test_cluster.py",
    ),
    Found(
        "A node that was told to stop while another was just connecting hung: uvloop tells nobody "
        "of a connection whose connecting is cancelled",
        "the tests, under load",
        "tests/transport/test_port.py",
    ),
    Found(
        "A node that was told to stop while its lake worker was just being started never ended: "
        "nobody told the worker",
        "a reading for stops that may hang, after the one above",
        "tests/node/test_supervisor.py",
    ),
    Found(
        "What was asked of another core in the pass of the loop in which its transport was closed "
        "was never answered",
        "a transport closed after each number of passes of the loop",
        "tests/transport/test_closing_at_any_step.py",
    ),
    Found(
        "A live reader that began while its front stopped, or whose connection was accepted just "
        "before, held up the stop until it was cut",
        "a front stopped after each number of passes of the loop",
        "tests/front/test_stopping_at_any_step.py",
    ),
    Found(
        "After a node that could not even be asked for a stream's tail, every later live reader "
        "of that stream waited for ever",
        "a reading for waits without an end",
        "tests/service/test_tails.py",
    ),
    Found(
        "A replica on its way to a node stood still for good: the acknowledgements of a whole "
        "window had been lost, and while it learned its answers to "
        "heartbeats say nothing of what it has",
        "simulation of readers, seed 71000003",
        "tests/raft/test_disk_loss.py",
    ),
    Found(
        "In the first seconds of a cluster, and while a node on an empty disk got its data, "
        "another lost disk left groups of three without a leader for "
        "good, though everything was there",
        "thinking it over; and random births and losses of disks (tests/sim/raft_losses.py)",
        "tests/raft/test_raft_losses.py",
    ),
    Found(
        "A snapshot of a group that was written to on many streams while it was encoded lacked "
        "what changed in the last of four passes: after a restart "
        "acknowledged appends were missing",
        "a test of it that counted on time was made to write between any two slices",
        "tests/engine/test_incremental_snapshots.py",
    ),
    Found(
        "A member far behind was sent a snapshot for ever that it could not take: the leader had "
        "written it anew at the same index and of the same size "
        "(payload copied forward), and sent the new bytes under the old name",
        "simulation with bounds drawn from the seed, while that was built",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "Two groups on their way to the same node waited for each other for up to 40 s: one had "
        "the place at its receiver, the other that at their sender",
        "simulation with bounds drawn from the seed, seed 9 of readers",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A read replica that lost its disk stayed without the last entries of a quiet group for "
        "ever: what it had said before was believed, and what it said "
        "at each heartbeat was taken for the answer to what asked it about them",
        "simulation, seed 1054 of readers",
        "tests/raft/test_raft_parts.py",
    ),
    Found(
        "A pack whose put took minutes could be swept as an orphan when the lead of its home "
        "group moved meanwhile, and then be named: acknowledged data lost",
        "read line by line",
        "tests/cold/test_flush_and_collect.py",
    ),
    Found(
        "Entries that had waited for a majority for longer than a round of snapshots, and were "
        "applied in the midst of the next one, lost their journal "
        "segments: the snapshot named them, the node did not start again, and what it had "
        "acknowledged was gone there",
        "read line by line",
        "tests/replica/test_floors.py",
    ),
    Found(
        "Several large appends at once to streams that one core led, or a node that caught up in "
        "many groups, were one message of more than 40 MiB: the other "
        "node dropped the connection, and the leads were lost",
        "read line by line",
        "tests/transport/test_nodes.py",
    ),
    Found(
        "A PUT that only makes sure that a stream with a time to live is there made it anew, and "
        "empty, when a read on another node had extended it and was "
        "not in the log yet",
        "read line by line",
        "tests/replica/test_cluster.py",
    ),
    Found(
        "A node that stopped was handed back what it had just handed over, as nobody had been "
        "told that it stopped: it ended as leader, and the group waited "
        "for an election",
        "a reading of how a stop goes, for the gap that it makes",
        "tests/replica/test_cluster_stops.py",
    ),
    Found(
        "A start with another number of cores took minutes for each 4 MiB of a journal of small "
        "records: all that was staged was counted again after each",
        "chaos, seed 7 of `--s3 --lose-all --pace=0.4 --acts=0.08`, the first with another number "
        "of cores among its faults: a node was not back after 120 s",
        "tests/wal/test_journal.py",
    ),
    Found(
        "A node of a new cluster whose disk failed just when it noted that it had heard all "
        "others ended with a traceback, and 1 instead of 74; so did any "
        "whose disk failed at its start",
        "chaos, seed 5042 of `--cores 2`",
        "tests/node/test_supervisor.py",
    ),
    Found(
        "A snapshot whose sender was lost while a chunk was missing kept its place at the "
        "receiver for good if the next leader did without one: after four of "
        "them no group's snapshot was taken there before a restart",
        "read line by line",
        "tests/engine/test_snapshot_receive.py",
    ),
    Found(
        "After a node died some groups took 2.5 to 2.9 s: the other two had asked for votes in "
        "the same millisecond, and each then waited as long as "
        "for a leader",
        "chaos, seed 9 of `--only 'as it starts'`, on a busy machine",
        "tests/raft/test_raft_parts.py",
    ),
    Found(
        "A node whose newest journal segment was deleted, or whose folder was moved or unmounted, "
        "went on into the file that nobody finds, and "
        "acknowledged; a start after that began with less than was acknowledged, and said nothing",
        "files taken away under a running node",
        "tests/wal/test_journal_gone.py",
    ),
    Found(
        "An entry that no command can be read from, logged by a leader, ended every follower, and "
        "all members at each start",
        "a leader made to log noise",
        "tests/replica/test_senseless_entries.py",
    ),
    Found(
        "TLS connections to the client port that never ended their handshake were counted "
        "nowhere: 1,500 of them took all of a core's 400 open files, and "
        "no client came in any more",
        "crowds at the ports of a real node",
        "tests/front/test_handshakes.py",
    ),
    Found(
        "A node back from a power cut knew nothing of one that had joined meanwhile and led the "
        "meta group: it refused it, so that its log said nothing, "
        "for 84 s",
        "chaos, seed 5052 of `--s3 --lose-all --acts 0.4`",
        "tests/cluster/test_map_cache.py",
    ),
    Found(
        "A snapshot whose bytes changed on the disk of a running leader could be sent to nobody, "
        "so that a member without a disk never got its data from "
        "there, and no start went on from it, though all that it had said was in memory",
        "read line by line; then simulation with bits that flip in snapshots and journals of "
        "running nodes",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A node by itself that was put back from an older image began with less than was "
        "acknowledged, and swept the newer packs in its object store as "
        "orphans",
        "read line by line",
        "tests/tiering/test_root_claim.py",
    ),
    Found(
        "A backup restored twice with the same object store was one history twice: offsets were "
        "given out again",
        "read line by line",
        "tests/backup/test_taking_and_restoring.py",
    ),
    Found(
        "After 256 restores, each of a backup of the one before, new streams got uids of another "
        "group",
        "read line by line, for numbers that wrap",
        "tests/stream/test_rebirth.py",
    ),
    Found(
        "A restore from the object store alone left out all that a stream had flushed behind a "
        "trim, when the copy of its group's state was older than "
        "the trim",
        "simulation, seed 400207",
        "tests/stream/test_salvage.py",
    ),
    Found(
        "A backup to a place that another one was just writing to, or that had not told of a "
        "write, was refused as one of another cluster; a single 503 "
        "ended it, and of a restore into an object store all had to be done anew",
        "simulation of backups, while it was built, seed 8",
        "tests/backup/test_taking_and_restoring.py",
    ),
    Found(
        "Backups to one place at the same time: `--keep` of one deleted objects that another "
        "counted on, between its last look and its manifest; and one "
        "that looked at an old backup just when that was deleted ended, as if it were damaged",
        "simulation of backups, seeds 1031 (three operators) and 37",
        "tests/backup/test_taking_and_restoring.py",
    ),
    Found(
        "A fork that was made between the moments at which its source's group and its own were "
        "copied claimed, after a restore, records that its source has "
        "not got, and nothing was said",
        "simulation of backups, seed 14, and reading",
        "tests/stream/test_rebirth.py",
    ),
    Found(
        "The age of orphans was measured by log time, which goes as the fastest clock of any "
        "leader so far: once that was an hour ahead of the store's, a "
        "pack that one leader had just put was swept by the next one and then named, and "
        "acknowledged records were gone",
        "simulation, seeds 20263247 and 8830040",
        "tests/cold/test_flush_and_collect.py",
    ),
    Found(
        "A node that leaves was removed while a group was just giving it a vote, and took the "
        "only replica along; nodes told to go at the same moment left "
        "groups with fewer replicas than asked for, and with none left the planner ended its core",
        "read line by line; simulation with the product's planner, `--planned`",
        "tests/replica/test_planner.py",
    ),
    Found(
        "A member far behind never got its snapshot over a way of 2 Mbit/s, or from a slow disk: "
        "chunks were sent again behind those that waited already",
        "read line by line",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A group that had moved to a node in its first time could not be given on before that "
        "node's next snapshot: the one it had named no members",
        "simulation with the product's planner, seed 5049",
        "tests/raft/test_raft_parts.py",
    ),
    Found(
        "An older image of a node's disk that was put back into a cluster was not noticed: it "
        "voted for, and counted as, what it had forgotten, and what "
        "was acknowledged was gone",
        "simulation, as soon as older images were put back (`--copies`, seeds 1 and 4)",
        "tests/transport/test_peer_journal_positions.py",
    ),
    Found(
        "A node that was away while others were replaced refused the newcomers when none of those "
        "that it knew was up: two of three nodes were there, and had "
        "no leader",
        "read line by line",
        "tests/cluster/test_newcomers.py",
    ),
    Found(
        "While one group had no leader all claims, acknowledgements and deliveries of "
        "subscriptions failed; what was done in part was answered as refused",
        "read line by line",
        "tests/replica/test_claims_while_a_group_waits.py",
    ),
    Found(
        "What another node answered when it was asked for the map of the cluster, and was none, "
        "ended the core that had asked; one that answered "
        "nonsense about itself made every node answer 500 to those who looked at the cluster",
        "fuzzing of the peer ports, seed 2",
        "tests/cluster/test_map_cache.py",
    ),
    Found(
        "A packed snapshot of which a byte changed on the sender's disk was sent again and again, "
        "and the member that was behind stayed so",
        "read line by line",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A member that went on from another node's snapshot while it told the groups what a "
        "subscription watches told them again and again, without end",
        "read line by line",
        "tests/subscriptions/test_a_home_that_moves.py",
    ),
    Found(
        "After a restore a group whose state had been copied later than that of a subscription's "
        "own group stayed with what the subscription had watched then",
        "read line by line",
        "tests/stream/test_rebirth.py",
    ),
    Found(
        "What a node had sent before it lost its disk, and came only after it had greeted with an "
        "empty one, was taken for how far its new journal "
        "was: at its next start it was kept out as an older copy of itself",
        "simulation, seeds 3001024, 3001050 and 3001146",
        "tests/transport/test_peer_journal_positions.py",
    ),
    Found(
        "A restore from the object store alone took a pack that was never named for what "
        "continues a stream, and left out what a later one, which began "
        "behind a trim inside of it, had beyond its end",
        "simulation, seed 3000371",
        "tests/stream/test_salvage.py",
    ),
    Found(
        "A page of a fork that was trimmed while it was read, so that its source let go of what "
        "it had inherited, began behind what was asked for, "
        "and did not say so",
        "simulation, seed 213 after others in one process",
        "tests/service/test_forks.py",
    ),
    Found(
        "A supervisor that asked the other nodes who they are before its cores started printed a "
        "traceback when such a connection ended "
        "in the midst (uvloop's TLS)",
        "chaos, seed 20261123, kill a supervisor",
        "tests/engine/test_no_memory.py",
    ),
    Found(
        "The delta of a state copy lacked what changed after its last pass: a recovery from the "
        "store alone could miss commits until the next delta",
        "simulation, seed 20261826 of the swarm",
        "tests/engine/test_snapshot_capture.py",
    ),
    Found(
        "A recovery from the store alone ended a stream with forks at a slice that was never "
        "published",
        "simulation, seed 20261258 of the swarm",
        "tests/stream/test_salvage.py",
    ),
    Found(
        "A diskless commit whose answer was lost was applied twice, after a clock far ahead had "
        "made the group forget its writer",
        "simulation, seed 20261530 of the swarm",
        "tests/diskless/test_diskless_writer.py",
    ),
    Found(
        "A fork whose source was recreated between two reads was refused for a record that exists",
        "simulation, seed 20262269 of the swarm",
        "tests/service/test_forks.py",
    ),
    Found(
        "A pack whose intent was repeated after its deletion was kept in the log",
        "simulation, seed 20262878 of the swarm",
        "tests/cold/test_flush_and_collect.py",
    ),
    Found(
        "A deleted source kept its long index in another form than a restored replica has it",
        "simulation, seed 20261918 of the swarm",
        "tests/stream/test_long_indexes.py",
    ),
    Found(
        "A core whose disk failed as it stopped ended with a traceback instead of its exit code",
        "chaos, seed 20261127, an fsync that fails on a node that is removed",
        "tests/node/test_shutdown_watchdog.py",
    ),
    Found(
        "A connection that broke in its handshake left a traceback in the log",
        "chaos, seed 20261125, nodes that are killed",
        "tests/transport/test_dialing.py",
    ),
)
