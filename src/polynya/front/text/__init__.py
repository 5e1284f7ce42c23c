"""The text protocol: Walrus' commands over frames, on a port of its own (docs/walrus.md).

A topic is a stream of JSON strings, so HTTP, tables and SQL see the same messages. `cursors`
has the shared cursor of each topic.
"""
