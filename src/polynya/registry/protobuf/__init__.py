"""Protobuf schemas: their text and their descriptors, and when one reads what another wrote.

https://protobuf.dev/reference/protobuf/proto3-spec/
https://protobuf.dev/programming-guides/proto3/#updating
"""
