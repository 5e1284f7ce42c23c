"""HTTP/1.1: heads, bodies, conditions, targets, and the events of live reads."""
