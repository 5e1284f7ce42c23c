"""Reads of the records that a fork inherits, wherever its source is."""

from __future__ import annotations

from polynya.local.api import ReadLimits, Span
from polynya.local.reads.local_reads import LocalReads
from polynya.local.reads.pieces import PlannedSpans
from polynya.routing import messages
from polynya.routing.requests.group_requests import GroupRequests
from polynya.routing.requests.local_answers import LocalAnswers


class ForkSources:
    """Implements `polynya.local.dependencies.ParentReader` for one core."""

    def __init__(self, reads: LocalReads, requests: GroupRequests, answers: LocalAnswers) -> None:
        self._reads = reads
        self._requests = requests
        self._answers = answers

    async def read_uid(
        self,
        uid: int,
        at: tuple[int, int],
        until: tuple[int, int],
        limits: ReadLimits,
        *,
        local: bool = False,
    ) -> tuple[list[Span], tuple[int, int]]:
        """Return spans of the source from `at` to at most `until`, and where they end."""
        pair = (limits.bytes_max, limits.whole_records)
        far = self._reads.cold is not None
        times = (limits.append_times, limits.batch_times)
        question = messages.ReadUid(uid, at, until, pair, local, far, *times)
        answer: PlannedSpans = await self._requests.at_replica(
            uid >> 48, messages.READ_UID, question, self._answers.read_uid, local=local
        )
        return await self._reads.pieces.planned_spans(answer, limits, local=local)

    async def place_of_time(
        self, uid: int, time_ms: int, until: tuple[int, int], record_from: int = -1
    ) -> tuple[int, int]:
        """Return the position of a time in a fork's source, at most the fork point `until`.
        `record_from`: of a record time, from this record on."""
        question = messages.TimeOfUid(uid, time_ms, until, record_from)
        found: tuple[int, int] = await self._requests.at_replica(
            uid >> 48, messages.PLACE_OF_TIME, question, self._answers.place_of_time
        )
        return found
