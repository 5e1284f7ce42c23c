"""Routes of what Kafka has: topics and their records, consumer groups, transactions, mirrors."""
