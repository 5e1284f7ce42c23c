"""Membership, placement and certificates of a cluster: join, map, reconfiguration, removal and
feature level."""
