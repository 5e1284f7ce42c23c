"""The turn loop of a core: propose, write, sync, replicate, apply and answer.

`standalone` runs the groups of a node without peers, `replicated` those of a cluster member. Both work in turns: the input that arrived
while the disk was busy is proposed together, written and synced together, applied and answered together. `storage` joins the journal and
the snapshots of a core. `leadership` decides which replicas lead. The rooms above see one surface, `polynya.service.assembly.StandaloneEngine`.
"""
