"""Serve the operator: listeners of the admin port, health, metric sources, audit, store checks, and
the SQL and lake workers of a core."""
