"""The handlers of administration: topics, configs, the cluster, and what Kafka has and we refuse.

`configs` is the table of topic configs; `topics`, `partitions`, `settings` and `cluster` answer.
"""
