"""Rewriting of slices that are in packs: merges of small ones, and marks of ended transactions."""
