"""Serialized group state: images, deltas, and the history that a restore starts."""
