"""Subscriptions at work: wakes that leave by webhook or by a wake stream, workers that claim, acknowledge and release (R140 to R147).

State is in the machines (`polynya.stream.subscriptions.rules`); here is what acts on it. A subscription's own state lives in one group, its
home; the core of that group runs every operation on it, and other cores pass operations on. Cursors live with their streams, in any
group; they are asked before a worker is answered. Time is the log's, tokens and ids are drawn here and go into commands.

What may be lost in a crash is repaired: news of a stream that never reached the home are told again by a sweep; a wake that was not
delivered is delivered again, with the same generation, when its retry is due; links that not every group has are completed.
"""

from polynya.subscriptions.shell import Subscriptions

__all__ = ["Subscriptions"]
