"""Requests of many appends: to one stream, all or nothing, and to many streams."""
