"""Kafka topics, in the meta group."""
