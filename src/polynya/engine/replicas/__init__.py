"""The replicas of a replicated core, apart from its turns.

`replica_set` has the members of Raft groups. `readiness` tells which of them may serve reads, and
`linearizable_reads` waits until one is recent enough. `journal_keeper` does what snapshots need of
the log. `proposal_answers` answers proposers. `lifecycle` creates and drops replicas, and `lag`
measures those that only read.
"""
