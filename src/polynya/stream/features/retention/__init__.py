"""Deletion of old records, by policy and on request."""
