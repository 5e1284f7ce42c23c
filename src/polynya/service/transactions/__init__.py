"""Transactions of Kafka: the calls to their coordinators, and the work of each coordinator on time.

The state and its rules are those of `polynya.stream.features.transactions`. Here a call becomes a
command in the log of the id's group, and a refusal becomes `TransactionRefused`.
"""
