"""Fixtures of the tests of the lakehouse."""

from s3_server import s3_server  # noqa: F401  (a fixture)
