"""The metrics that Kafka's clients push (KIP-714).

Administrators keep subscriptions: the names of metrics, an interval, and which clients. A client
gets the sum of those that match it (`subscriptions`), and pushes until it stops (`requests`). A core
remembers its clients and their last numbers (`instances`), which `/metrics` and the list of clients
show. They are not stored: after a restart, or at another broker, a client's counters begin again.
"""
