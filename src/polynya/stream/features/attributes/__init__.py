"""Attributes of streams: one JSON object each."""
