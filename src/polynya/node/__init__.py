"""Assembly: configuration, the core's turn loop, the supervisor. The only room that knows every other.

A node is one supervisor and one process a core. A core owns the groups `g % cores`, with one journal for all of them. It works in
turns: what came in while the disk was busy is proposed together, written and fsynced together, applied and answered together.
"""
