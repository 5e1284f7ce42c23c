"""Appends to streams, by HTTP's and by Kafka's rules for producers."""
