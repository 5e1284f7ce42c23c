"""Reducers on a node: the command of its workers, and metrics."""
