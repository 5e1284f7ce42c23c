"""Rebuild the state of a node: from a backup, from the object store, or after its number of cores
changed."""
