"""Records that were set aside because the registry did not know their schema: put into the next job
once it does."""

from __future__ import annotations

import re
from contextlib import suppress

from polynya.base.errors import PolynyaError
from polynya.base.payloads import REGISTRY, BadPayload, parse_payload
from polynya.lakehouse.jobs.plan import TableRef
from polynya.lakehouse.server.coordinator import Coordinator

_UNKNOWN = re.compile(r"schema (-?\d+) is unknown", re.ASCII)
_ASKED_MAX = 20  # ids in one round


def retry_registered(coordinator: Coordinator, table: TableRef) -> None:
    """Put ranges of a table that are set aside into its next job if a schema that one lacked is
    registered now. What cannot be found out is left to the next round."""
    if not table.ranges_aside or not isinstance(table.payload, str) or not table.payload:
        return
    with suppress(PolynyaError, BadPayload):
        payload = parse_payload(table.payload)
        if payload.format != REGISTRY:
            return
        found = [_UNKNOWN.search(reason) for reason in coordinator.reasons_aside(table.name)]
        numbers = sorted({int(match[1]) for match in found if match is not None})
        reader = coordinator.schemas(payload.url)
        if any(not reader.writer(number).unknown for number in numbers[:_ASKED_MAX]):
            coordinator.retry(table.name)
