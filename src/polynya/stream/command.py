"""The base of the commands of a group's log, which are also its wire and journal types.

msgspec structs, array-like, integer tags; fields are only appended, and with defaults; golden bytes
are in the tests. Tags in use: 1-19 streams, 20-29 across groups, 30-39 object tier, 40-59
subscriptions, 60-79 tables, 80-92 cluster, 99 the log itself, 100-109 topics, 120-129 diskless
streams, 130-139 consumer groups.
"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The common base of all commands."""
