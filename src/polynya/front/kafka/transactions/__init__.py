"""Transactions as Kafka's clients use them: the keys of the coordinator, transactional batches and
offsets, and what administrators ask.

A front has the number of a transaction before it proposes a batch of it. It keeps numbers for a
while; the streams judge them, so a stale number is refused, and the front asks once more. Before it
answers that a former transaction is still ending, it waits for that end: this takes milliseconds.
"""
