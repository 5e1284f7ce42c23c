"""Polynya: append and tail streams over HTTP, and find every stream again as an Iceberg and a Delta table.

The rooms, from the bottom: `base`; the pure `raft` and `stream`; `replica` and `wire`; `files`; `objectstore`, `wal`, `transport`, `cold`; the narrow
waist `service`; `backup`; `front`, `console`, `lakehouse`; `node`; `client`, which stands apart and knows nothing of the server; `cli`. Imports point
downwards only (`tests/test_layers.py`).
"""

__version__ = "0.1.0"
