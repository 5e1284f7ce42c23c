"""Packs in the object store, and the references of streams to them."""
