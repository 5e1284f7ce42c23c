"""Fixtures of the tests of the Spark source."""

from s3_server import s3_server  # noqa: F401  (a fixture)
