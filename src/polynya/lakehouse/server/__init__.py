"""The server as a driver sees it: plans, commits, and where its admin port is."""
