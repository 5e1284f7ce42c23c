"""Reducers of a cluster: which there are, where they are faulted, what is due, and states now."""
