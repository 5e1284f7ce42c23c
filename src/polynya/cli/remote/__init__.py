"""Reach a server: addresses, named contexts, and the HTTP client of the commands."""
