"""Reducers in HTTP: bind them to streams, find what is due, and read a state."""
