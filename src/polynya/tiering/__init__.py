"""Move old data of the groups to the object store: flush, merge, evict, and who may do so."""
