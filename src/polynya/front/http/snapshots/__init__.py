"""Snapshots of streams in HTTP: publish, read, list and delete them, and begin at the newest one."""
