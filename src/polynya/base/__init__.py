"""Shared basics for all packages: names, ids, limits, errors. No I/O, no clock, no randomness."""
