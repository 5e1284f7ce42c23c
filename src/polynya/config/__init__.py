"""Settings of a node and of its cluster, where each value came from, and the identity of the node's
data directory."""
