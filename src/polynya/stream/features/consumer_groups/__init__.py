"""Kafka consumer groups: the logged state and its rules, and the classic protocol. Pure.

The log has what must survive a failover: the members and assignments of the last rebalance, and
the committed offsets. The coordinator keeps the rest in memory: who waits, and who was heard when.
"""
