"""The state of a group: streams, their index, and the changes since the last snapshot."""
