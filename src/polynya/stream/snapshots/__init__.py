"""The state of a group as bytes: images, deltas, and histories rebuilt after a restore."""
