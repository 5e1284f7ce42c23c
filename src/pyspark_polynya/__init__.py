"""The package that PySpark searches for data sources: `format("polynya")` works without a
registration."""

from polynya.spark.source import PolynyaSource as DefaultSource

__all__ = ["DefaultSource"]
