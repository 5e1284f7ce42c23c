"""Derived tables with a key: the rows of a job are merged into those that the table has."""
