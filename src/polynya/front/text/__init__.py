"""The text protocol: Walrus' commands over frames, on a port of its own (docs/walrus.md).

A topic is a stream of JSON strings, so HTTP, tables and SQL see the same messages. The shared
cursor of a topic is a small stream in the bucket `walrus-cursors`: its last `Stream-Seq` is the
position, and only one of two nodes that consume the same message can raise it.
"""
