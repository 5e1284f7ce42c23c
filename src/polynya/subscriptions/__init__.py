"""Run subscriptions: deliver wakes by webhook or through a wake stream, and serve workers that
claim, acknowledge and release.

The machines hold the state (`polynya.stream.features.subscriptions.rules`); this room acts on it. The state
of a subscription lives in one group, its owner. The core of this group runs every operation, and
other cores forward operations to it. Cursors live with their streams, in any group, and are read
before a worker gets a response. Time is log time. Tokens and ids are drawn here and travel in
commands.

A periodic sweep repairs losses of a crash. It resends stream news that never reached the owner and
completes links that some groups lack. An undelivered wake is retried when due, with the same
generation.
"""

from polynya.subscriptions.shell import Subscriptions

__all__ = ["Subscriptions"]
