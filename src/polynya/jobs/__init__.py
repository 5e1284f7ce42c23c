"""Background jobs: work that a core repeats until it stops.

A job is one coroutine, `repeat(work, seconds)`. The work says how long it rests, an event may end the
rest, and `Failures` keeps its faults in a row: what is retried is logged once until it works. Any
other exception ends the job, and so the process: a core without one of its jobs would not be whole.
A job ends by cancellation, and holds nothing then that its work did not close.
"""

from polynya.jobs.loop import BACKOFF_SECONDS, Failures, Rest, pause_after, repeat, wait_for

__all__ = ["BACKOFF_SECONDS", "Failures", "Rest", "pause_after", "repeat", "wait_for"]
