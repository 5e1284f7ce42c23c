"""Backups: their format, how one is taken, and how one is verified (docs/formats/backup.md).

A backup is a manifest, a file for each group, and copies of the objects that the groups name. It is
taken from outside, while the cluster keeps running. Data in a backup is trusted only after its
checksum matches.
"""
