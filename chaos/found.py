"""Defects of the product that simulation, chaos and code review found, each with its regression
test. All are fixed."""

from __future__ import annotations

import msgspec


class Found(msgspec.Struct, frozen=True):
    what: str
    by: str
    test: str


FOUND = (
    Found(
        "A connection to another node that broke between TCP and TLS closed an unrelated file "
        "descriptor (uvloop issues 645 and 738). The link to that node stayed dead until a "
        "restart, and no error was reported.",
        "chaos, seed 1, the first `kill -9` of a node",
        "tests/transport/test_dialing.py",
    ),
    Found(
        "A supervisor whose disk had failed exited with a traceback instead of its exit code, "
        "because it could not remove its pid file.",
        "chaos, seed 3, power cuts",
        "tests/system/test_data_dir.py",
    ),
    Found(
        "The cluster rejected a node after a restart with its clock set back by two hours. By "
        "that clock its certificate, at most one hour old, was not valid yet.",
        "chaos, seed 6, a clock jump of -7,200 s, then a disk failure",
        "tests/cluster/test_certificate_dates.py",
    ),
    Found(
        "An append that had waited for a leader kept its old timestamp, so log time moved "
        "backwards.",
        "simulation, seed 0 of the plain world",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A leader repeatedly sent a member a snapshot from which its log no longer continued.",
        "simulation, seed 219 of the plain world",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A node that had lost its disk voted.",
        "simulation, while it was being written",
        "tests/replica/test_cluster.py",
    ),
    Found(
        "An empty snapshot carried a term.",
        "simulation, while it was being written",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "Log time after an installed snapshot started too early.",
        "simulation, while it was being written",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A re-created replica with an empty log voted for a removed member that did not know of "
        "its removal. Two leaders were elected in one term.",
        "simulation of replica moves, seed 231, before moves were released",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A group with a single voter never responded again after its disk had been full.",
        "simulation of replica moves, seed 2",
        "tests/replica/test_cluster_moves.py",
    ),
    Found(
        "A group stayed without a leader permanently. The last heartbeat of its leader's previous "
        "incarnation arrived late and made a member quiescent, and nothing woke that member.",
        "simulation, seed 777140",
        "tests/replica/test_cluster_swarm.py",
    ),
    Found(
        "Log time moved back by milliseconds under a new leader. Snapshots did not record the "
        "time of commands that had changed no stream.",
        "simulation, seed 777028",
        "tests/replica/test_cluster_swarm.py",
    ),
    Found(
        "A re-created replica was made a voter while it was still a learner. When the leader died "
        "before the replica had caught up, the replica cast no vote. The quorum counted on its "
        "vote, so the group never elected a leader again.",
        "simulation of replica moves, seeds 41000119 and 41000153",
        "tests/replica/test_cluster_chaos.py",
    ),
    Found(
        "A new group never elected a leader. The first member to find that the group was new "
        "reported it while it could not yet reach the others. It no longer counted as blank when "
        "they queried it.",
        "a cluster with two cores per node that started beside others on a busy machine",
        "tests/raft/test_disk_loss.py",
    ),
    Found(
        "The object store refused a node whose clock was an hour ahead. The node kept its "
        "leaderships and flushed nothing for that hour. Recent data was on the disks alone, and "
        "appends would eventually have failed with 503.",
        "chaos, seed 203903693 of `--s3 --lose-all`",
        "tests/replica/test_store_refuses.py",
    ),
    Found(
        "After a leader whose clock was an hour ahead, the next leader's log time stood still for "
        "that hour. No stream expired, no lease ended, and no flush was triggered by age.",
        "chaos, seed 3 of `--s3 --lose-all --episodes 6 --only clock`",
        "tests/replica/test_cluster.py",
    ),
    Found(
        "A stopping node hung while another node was connecting to it. uvloop reported no end of "
        "a connection that was cancelled during its setup.",
        "the test suite, under load",
        "tests/transport/test_port.py",
    ),
    Found(
        "A stopping node hung while its lake worker was starting, because the worker never "
        "received the stop request.",
        "a code review for stops that may hang, after the defect above",
        "tests/node/test_supervisor.py",
    ),
    Found(
        "A request to another core never completed if the transport closed in the same event-loop "
        "iteration.",
        "a test that closes a transport after each number of event-loop iterations",
        "tests/transport/test_closing_at_any_step.py",
    ),
    Found(
        "A live reader held up the stop of its front end until the reader was cut off. It had "
        "started during the stop, or its connection had been accepted just before.",
        "a test that stops a front end after each number of event-loop iterations",
        "tests/front/test_stopping_at_any_step.py",
    ),
    Found(
        "Once a request for a stream's tail could not be sent to its node, every later live "
        "reader of that stream waited indefinitely.",
        "a code review for waits without a timeout",
        "tests/routing/test_tails.py",
    ),
    Found(
        "A new replica stalled indefinitely while it caught up. All acknowledgements of one "
        "window were lost, and a learner's heartbeat responses did not report which entries it "
        "had.",
        "simulation of read replicas, seed 71000003",
        "tests/raft/test_disk_loss.py",
    ),
    Found(
        "The loss of another disk left groups of three permanently without a leader, although no "
        "data was missing. It happened in a cluster's first seconds, and while a node with an "
        "empty disk fetched its data.",
        "analysis, and random group creations and disk losses (tests/sim/raft_losses.py)",
        "tests/raft/test_raft_losses.py",
    ),
    Found(
        "A snapshot of a group lacked the changes of the last of four passes if many streams were "
        "written to during encoding. After a restart acknowledged appends were missing.",
        "a timing-dependent test of snapshots, after it was made to write between any two slices",
        "tests/engine/test_incremental_snapshots.py",
    ),
    Found(
        "A leader endlessly sent a member far behind a snapshot that the member could not accept. "
        "The leader had rewritten the snapshot at the same index and size (payload copied "
        "forward). It sent the new bytes under the old snapshot's identity.",
        "simulation with limits drawn from the seed, while that was being written",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "Two groups moving to the same node waited for each other for up to 40 s. One held the "
        "slot at its receiver, and the other held the slot at their common sender.",
        "simulation with limits drawn from the seed, seed 9 of read replicas",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A read replica that lost its disk never received the last entries of an idle group. The "
        "leader still trusted the replica's earlier acknowledgements. It also mistook the "
        "replica's report at each heartbeat for the response to its probe for those entries.",
        "simulation, seed 1054 of read replicas",
        "tests/raft/test_raft_parts.py",
    ),
    Found(
        "A pack whose upload took minutes could be swept as an orphan if the leadership of its "
        "owner group moved meanwhile. The swept pack was then published, and acknowledged data was "
        "lost.",
        "code review",
        "tests/cold/test_flush_and_collect.py",
    ),
    Found(
        "Some entries waited for a quorum for longer than a snapshot round and were applied "
        "during the next round. Their journal segments were deleted although the snapshot "
        "referred to them. The node did not start again, and its copy of acknowledged data was "
        "gone.",
        "code review",
        "tests/replica/test_floors.py",
    ),
    Found(
        "Several large concurrent appends to streams led by one core, or a node catching up in "
        "many groups, produced one message of over 40 MiB. The receiving node dropped the "
        "connection, and the leaderships were lost.",
        "code review",
        "tests/transport/test_nodes.py",
    ),
    Found(
        "A PUT meant only to ensure that a stream with a time to live existed recreated the "
        "stream empty. A read on another node had extended it, but that extension was not in the "
        "log yet.",
        "code review",
        "tests/replica/test_cluster.py",
    ),
    Found(
        "A stopping node got back the leaderships that it had just handed over, because the other "
        "nodes did not know that it was stopping. It exited as leader, and the group waited for "
        "an election.",
        "a code review of the stop sequence, for the outage that it causes",
        "tests/replica/test_cluster_stops.py",
    ),
    Found(
        "A start with a different number of cores took minutes for each 4 MiB of a journal of "
        "small records. The node recounted all staged data after each record.",
        "chaos, seed 7 of `--s3 --lose-all --pace=0.4 --acts=0.08`, the first run with a changed "
        "number of cores among its faults: a node was still down after 120 s",
        "tests/wal/test_journal.py",
    ),
    Found(
        "The disk of a node in a new cluster failed just when the node recorded that it had heard "
        "from all others. The node exited with a traceback and code 1 instead of 74. So did any "
        "node whose disk failed at startup.",
        "chaos, seed 5042 of `--cores 2`",
        "tests/node/test_supervisor.py",
    ),
    Found(
        "A snapshot whose sender was lost while a chunk was missing held its slot at the receiver "
        "permanently if the next leader sent none. After four such snapshots the node accepted no "
        "group's snapshot until a restart.",
        "code review",
        "tests/engine/test_snapshot_receive.py",
    ),
    Found(
        "After a node died, some groups took 2.5 to 2.9 s to elect a leader. The other two "
        "members had requested votes in the same millisecond. Each then waited a full election "
        "timeout before its retry.",
        "chaos, seed 9 of `--only 'as it starts'`, on a busy machine",
        "tests/raft/test_raft_parts.py",
    ),
    Found(
        "A node's newest journal segment was deleted, or its data directory was moved or "
        "unmounted. The node kept writing to a file that no restart could find, and acknowledged "
        "appends. The next start began with less than was acknowledged and reported no error.",
        "a test that removes files of a running node",
        "tests/wal/test_journal_gone.py",
    ),
    Found(
        "A leader logged an entry that decoded to no command. The entry terminated every "
        "follower, and every member at each start.",
        "a test in which a leader logs garbage",
        "tests/replica/test_senseless_entries.py",
    ),
    Found(
        "TLS connections to the client port that never completed their handshake were not "
        "counted. 1,500 of them used up the 400 open files of a core, and no further client could "
        "connect.",
        "a test with crowds of connections at the ports of a real node",
        "tests/front/test_handshakes.py",
    ),
    Found(
        "After a power cut a node refused a node that had joined meanwhile, because its cluster "
        "map did not list it. That node led the meta group, so for 84 s the returning node "
        "received no meta-group entries.",
        "chaos, seed 5052 of `--s3 --lose-all --acts 0.4`",
        "tests/cluster/test_map_cache.py",
    ),
    Found(
        "A snapshot that was corrupted on the disk of a running leader could be neither sent nor "
        "loaded at a start. A member that had lost its disk never got its data from that leader. "
        "All of the snapshot's content was still in memory.",
        "code review, then simulation with bit flips in snapshots and journals of running nodes",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A standalone node restored from a stale disk image started with less than was "
        "acknowledged. It swept the newer packs in its object store as orphans.",
        "code review",
        "tests/tiering/test_root_claim.py",
    ),
    Found(
        "Restoring one backup twice with the same object store produced one history twice, and "
        "offsets were assigned again.",
        "code review",
        "tests/backup/test_taking_and_restoring.py",
    ),
    Found(
        "After 256 restores, each from a backup of the previous one, new streams got uids of "
        "another group.",
        "a code review for numbers that wrap",
        "tests/stream/test_rebirth.py",
    ),
    Found(
        "A restore from the object store alone omitted all data that a stream had flushed after a "
        "trim. It happened if the copy of the group's state was older than the trim.",
        "simulation, seed 400207",
        "tests/stream/test_salvage.py",
    ),
    Found(
        "A backup was refused as another cluster's if another backup was writing to the same "
        "destination. An earlier write with an unreported outcome had the same effect. A single "
        "503 aborted a backup, and a restore into an object store had to start from scratch.",
        "simulation of backups, while it was being written, seed 8",
        "tests/backup/test_taking_and_restoring.py",
    ),
    Found(
        "Concurrent backups to one destination conflicted. `--keep` of one backup deleted objects "
        "that another relied on, between that one's last check and its manifest. A backup that "
        "read an old backup during its deletion aborted as if the old one were damaged.",
        "simulation of backups, seeds 1031 (three operators) and 37",
        "tests/backup/test_taking_and_restoring.py",
    ),
    Found(
        "A fork was created between the copying of its source's group and the copying of its own. "
        "After a restore the fork claimed records that its source did not have, and no warning "
        "was given.",
        "simulation of backups, seed 14, and code review",
        "tests/stream/test_rebirth.py",
    ),
    Found(
        "The age of orphans was measured by log time, which follows the fastest clock of any "
        "leader so far. Once that clock was an hour ahead of the store's, a new leader swept a "
        "pack that another leader had just uploaded. The pack was then published, and "
        "acknowledged records were lost.",
        "simulation, seeds 20263247 and 8830040",
        "tests/cold/test_flush_and_collect.py",
    ),
    Found(
        "A leaving node was removed while a group was giving it a vote, and the group lost its "
        "only replica. Nodes set to leave at the same moment left groups with fewer replicas than "
        "configured. If no replica remained, the planner terminated its core.",
        "code review, and simulation with the product's planner, `--planned`",
        "tests/replica/test_planner.py",
    ),
    Found(
        "A member far behind never received its snapshot over a 2 Mbit/s link, or from a slow "
        "disk. The leader resent chunks behind those that were still queued.",
        "code review",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A group that had moved to a node early in its life could not be moved on until that "
        "node's next snapshot. The current snapshot listed no members.",
        "simulation with the product's planner, seed 5049",
        "tests/raft/test_raft_parts.py",
    ),
    Found(
        "The cluster did not detect a stale image of a node's disk that was restored. The node "
        "voted for, and was counted as holding, entries that it no longer had. Acknowledged data "
        "was lost.",
        "simulation, as soon as it restored stale images (`--copies`, seeds 1 and 4)",
        "tests/transport/test_peer_journal_positions.py",
    ),
    Found(
        "A node that was down while others were replaced refused the new nodes if none of the "
        "nodes that it knew was up. Two of three nodes were up, yet there was no leader.",
        "code review",
        "tests/cluster/test_newcomers.py",
    ),
    Found(
        "While one group had no leader, all claims, acknowledgements and deliveries of "
        "subscriptions failed. Partly completed operations were answered as refused.",
        "code review",
        "tests/replica/test_claims_while_a_group_waits.py",
    ),
    Found(
        "An invalid response to a request for the cluster map terminated the core that had "
        "requested it. A node that sent an invalid status made every node answer cluster-status "
        "requests with 500.",
        "fuzzing of the peer ports, seed 2",
        "tests/cluster/test_map_cache.py",
    ),
    Found(
        "A byte of a packed snapshot changed on the sender's disk. The sender kept resending the "
        "snapshot, and the member stayed behind.",
        "code review",
        "tests/replica/test_far_behind.py",
    ),
    Found(
        "A member installed another node's snapshot while it notified groups of the streams that "
        "a subscription watches. It then repeated these notifications endlessly.",
        "code review",
        "tests/subscriptions/test_a_home_that_moves.py",
    ),
    Found(
        "After a restore, a group's state could be newer than that of a subscription's owner "
        "group. Such a group kept the set of streams that the subscription had watched at that "
        "later time.",
        "code review",
        "tests/stream/test_rebirth.py",
    ),
    Found(
        "Messages that a node had sent before it lost its disk arrived after its handshake with "
        "an empty one. Peers attributed the old journal position to the new journal. At the "
        "node's next start they rejected it as a stale copy of itself.",
        "simulation, seeds 3001024, 3001050 and 3001146",
        "tests/transport/test_peer_journal_positions.py",
    ),
    Found(
        "A restore from the object store alone took an unpublished pack for the continuation of a "
        "stream. A later pack began after a trim inside that pack. The restore omitted the later "
        "pack's records beyond the end of the unpublished one.",
        "simulation, seed 3000371",
        "tests/stream/test_salvage.py",
    ),
    Found(
        "A page of a fork began after the requested offset and reported no error. The fork was "
        "trimmed during the read, and its source released the inherited records.",
        "simulation, seed 213 after others in one process",
        "tests/local/test_forks.py",
    ),
    Found(
        "A supervisor that queried other nodes for their identity before its cores started "
        "printed a traceback. A connection had broken off during such a query (uvloop's TLS).",
        "chaos, seed 20261123, kill a supervisor",
        "tests/engine/test_no_memory.py",
    ),
    Found(
        "The delta of a state copy lacked the streams that changed during its last pass. A "
        "recovery from the object store alone could miss commits until the next delta.",
        "simulation, seed 20261826 of the swarm",
        "tests/engine/test_snapshot_capture.py",
    ),
    Found(
        "A recovery from the object store alone cut off a stream with forks at a slice that was "
        "never published.",
        "simulation, seed 20261258 of the swarm",
        "tests/stream/test_salvage.py",
    ),
    Found(
        "A diskless commit whose response was lost was retried and applied twice. A clock far "
        "ahead had made the group discard the writer's state.",
        "simulation, seed 20261530 of the swarm",
        "tests/diskless/test_diskless_writer.py",
    ),
    Found(
        "A fork was refused for a record that existed, because its source was recreated between "
        "the two reads of the fork request.",
        "simulation, seed 20262269 of the swarm",
        "tests/local/test_forks.py",
    ),
    Found(
        "A pack whose intent was retried after its deletion stayed recorded in the log.",
        "simulation, seed 20262878 of the swarm",
        "tests/cold/test_flush_and_collect.py",
    ),
    Found(
        "A replica kept the long index of a deleted source in a different form than a restored "
        "replica.",
        "simulation, seed 20261918 of the swarm",
        "tests/stream/test_long_indexes.py",
    ),
    Found(
        "A core whose disk failed while the core was stopping exited with a traceback instead of "
        "its exit code.",
        "chaos, seed 20261127, an fsync failure on a node that is removed",
        "tests/node/test_shutdown_watchdog.py",
    ),
    Found(
        "A connection that broke during its handshake left a traceback in the log.",
        "chaos, seed 20261125, nodes that are killed",
        "tests/transport/test_dialing.py",
    ),
    Found(
        "An append was answered with 500 when a member of the cluster answered with a code that this "
        "release does not know; the outcome is unknown then.",
        "fuzzing of peers, seed 34152716, on a busy machine",
        "tests/routing/test_bundles.py",
    ),
    Found(
        "Evicted streams whose packs could not be emptied were returned to memory and evicted again "
        "without end, each time with new objects in the store.",
        "simulation, seed 20263355 of the swarm",
        "tests/cold/test_hidden_packs.py",
    ),
    Found(
        "Readers other than Kafka's got the records of aborted transactions. A node that had lost the "
        "leadership of a group while it wrote a pack took the group for one of an older release, and "
        "published index entries without flags; a term that was asked late let them pass.",
        "chaos, seed 21, all nodes killed under transactions on a stream that changes its profile",
        "tests/cold/test_open_transactions.py",
    ),
    Found(
        "A batch of a transaction for a stream without a leader ended the client's connection with a "
        "traceback in the log. The client now gets an error that it retries.",
        "chaos on real processes, transactional clients under kills",
        "tests/front/test_kafka_producers_in_transactions.py",
    ),
    Found(
        "A backup under many commits took several rounds, and commits waited for up to ten seconds. The "
        "commits that had waited for the end of the hold were counted as if they were decided under "
        "it. The captures of such rounds then took the room of the next one, while commits were held.",
        "eight backups after each other under six transactional producers",
        "tests/admin/test_commits_of_backups.py",
    ),
    Found(
        "The requests in flight of a client that had sent a GOAWAY on HTTP/2 got no response, and left a "
        "traceback in the log.",
        "fuzzing of HTTP/2, seed 490295000",
        "tests/front/test_http2.py",
    ),
    Found(
        "The meta group stayed with two voters in one zone while nodes were drained, although a node of "
        "another zone was free: it waited for voters for which there were no nodes.",
        "simulation, seed 490295038 of the planned world",
        "tests/replica/test_planner.py",
    ),
    Found(
        "A dead read replica that needed a snapshot kept the place of its transfer, so that other read "
        "replicas of that core got no snapshot until it was back. Two dead voters did the same to all.",
        "simulation, seed 34 of the world of read replicas",
        "tests/replica/test_far_behind.py",
    ),
)
