"""How Hypothesis works here: the same examples in every run, and as much time as a loaded machine takes.

A search for new ones: `pytest --hypothesis-profile=search`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("steady")
