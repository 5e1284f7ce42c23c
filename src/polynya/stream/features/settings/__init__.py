"""Settings of the cluster, and the feature level of a group."""
