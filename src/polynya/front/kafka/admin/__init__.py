"""The handlers of administration: topics, configs, the cluster, and what Kafka has and we refuse.

`topics`, `partitions`, `settings`, `placement` and `cluster` answer; `broker_configs` and `config_texts` have what
DescribeConfigs shows beside the table of topic configs (`polynya.front.kafka.configs`).
"""
