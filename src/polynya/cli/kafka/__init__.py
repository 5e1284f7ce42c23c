"""Commands that speak the Kafka protocol, with librdkafka from the extra `kafka`."""
