"""Reads of the streams of one core: plan a page, fetch its pieces, and find positions by time."""
