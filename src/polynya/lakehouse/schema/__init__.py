"""Typed columns: which a table gets, and what they are called. Pure."""
