"""Metrics, logs and the build's version."""
