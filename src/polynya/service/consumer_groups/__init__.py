"""The coordinator of Kafka consumer groups on each core: its timers, its log, its lag."""
