"""Move old data of the groups to the object store (flush, merge, evict), and decide which node may
do so."""
