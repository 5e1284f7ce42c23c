"""What a node asks of the operating system: ports, memory, scheduling, open files, the data directory and disk speed."""
