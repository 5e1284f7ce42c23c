"""Backups: what one is made of, how it is taken, and whether it is whole (docs/formats/backup.md).

A backup is a manifest, a file for each group, and copies of the objects that the groups name. It is taken from outside, by asking a
cluster that goes on; nothing in it is believed before its checksum is right.
"""
