"""The turn loop of a core: propose, write, sync, replicate, apply and answer.

`standalone` runs the groups of a node without peers; `replicated` runs those of a cluster member.
Both work in turns. Input that arrives during a disk write is proposed together, written and synced
together, and applied and answered together. `storage` opens the journal and the snapshots of a
core. `leadership` decides which replicas lead. `replicas/` has the members of Raft groups, and what
is done with them outside of turns. Higher layers use one interface,
`polynya.service.assembly.StandaloneEngine`.
"""
