"""Commands that inspect and change a cluster, and the one that starts a cluster on this machine for development."""
