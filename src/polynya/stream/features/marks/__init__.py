"""Snapshots of streams: marks on the stream, whose bodies are records of its companion."""
