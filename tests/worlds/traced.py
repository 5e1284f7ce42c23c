"""Tracers of tests: with ids from a seed, and a clock that counts."""

from __future__ import annotations

import itertools
import random

from polynya.base.spans import Tracer

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"  # a client's `traceparent`


def tracer_of(seed: int) -> Tracer:
    """Return a tracer of the requests that a client traces."""
    numbers = random.Random(seed)
    return Tracer(
        ratio=0.0,
        follows_clients=True,
        queue_max=100,
        now_ns=itertools.count().__next__,
        random=numbers.random,
        bits=numbers.getrandbits,
    )
