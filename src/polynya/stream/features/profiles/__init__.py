"""The profile of a stream, and the commits of diskless appends."""
