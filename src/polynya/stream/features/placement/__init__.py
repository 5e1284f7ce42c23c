"""The members of the cluster and the placement of replicas."""
