"""Dry runs: what the columns of a table would make of records that exist. Nothing is written."""
