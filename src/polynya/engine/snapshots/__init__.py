"""Snapshots of groups: capture, encode, merge, transfer to a replica that fell behind, and
receive."""
