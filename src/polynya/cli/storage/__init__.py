"""Commands for backups, restores and the object store."""
