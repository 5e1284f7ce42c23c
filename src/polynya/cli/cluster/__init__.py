"""Commands that inspect and change a cluster, and `dev`, which starts one on this machine for
development."""
