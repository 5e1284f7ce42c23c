"""Jobs that write rows of a table again: merges of its files, replays and rebuilds."""
