"""Assemble the node: configuration, the core's turn loop, the supervisor. Only this package imports
all others.

A node is one supervisor and one process per core. A core owns the groups `g % cores`, with one
journal for all of them. It works in turns: input that arrives during a disk write is proposed,
written, fsynced, applied and answered together.
"""
