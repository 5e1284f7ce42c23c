"""Kafka record batches as rows: decompressed within bounds, divided into records, and checked."""
