"""Find the core and the node that answer a request, and forward it there."""
