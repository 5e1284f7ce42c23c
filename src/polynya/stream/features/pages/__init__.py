"""Parts of the state in the object store: pages of indexes, and evicted streams."""
