"""Examples of Hypothesis that depend on the test alone.

Hypothesis also draws constants that it finds in the sources of all modules that are loaded. Then the
examples of a test depend on what ran before it in the same worker, `derandomize` or not.
"""

from __future__ import annotations

from hypothesis.internal.conjecture import providers


def use() -> None:
    """Draw no constants of loaded modules."""
    assert callable(providers._get_local_constants), "this version of Hypothesis has another name"
    providers._get_local_constants = lambda: providers._local_constants
