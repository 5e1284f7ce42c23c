"""Segments of leased streams."""
