"""The node's use of the operating system: ports, memory, scheduling, open files, the data directory
and disk latency."""
