"""Avro schemas: their model, their canonical text, and the rules by which one reads what another
wrote.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""
