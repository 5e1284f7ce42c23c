"""Forks: streams that begin with the records of another one."""
