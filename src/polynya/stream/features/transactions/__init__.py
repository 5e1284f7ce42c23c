"""Kafka transactions: the coordinator. Pure.

The Raft group of `transaction/ID` coordinates a transactional id. Each begin increments the number of
the transaction in its log, and participants refuse the numbers that they have ended. The decision and
the markers for the participants are one apply: the markers are in the outbox of the group, and the
last acknowledgement completes the transaction (docs/design/transactions.md).
"""
