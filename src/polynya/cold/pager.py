"""Write pages of long indexes: choose closed entries, put the page, replace them by one entry
(docs/formats/pages.md)."""

from __future__ import annotations

import asyncio
import logging
from secrets import token_bytes

import msgspec
from google_crc32c import value as crc32c

from polynya.cold.groups import Groups
from polynya.cold.rewriting.merge_planner import PAGE_FULL_SHARE, next_page
from polynya.cold.settings import MergeSettings
from polynya.cold.steps import Steps
from polynya.stream.command import level_of
from polynya.stream.features.pages.commands import PageEntries
from polynya.stream.features.pages.rules import LATE_MS, mark_of
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply
from polynya.stream.state import index
from polynya.stream.state.entries import ENTRY_BYTES
from polynya.stream.state.model import Stream
from polynya.wire.page import build_page, page_key

log = logging.getLogger("polynya.cold")

PAGES_MAX = 16  # of one stream in one pass
REST_MS = 3_600_000  # until an index that has not grown is looked at again
LOOKED_MAX = 65_536  # streams with long indexes that are remembered


class PageCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    pages: int = 0
    entries: int = 0  # that pages replaced
    refused: int = 0  # pages that a group refused because the stream had changed


class _Planned(msgspec.Struct, frozen=True):
    """A range of an index that becomes a page."""

    record: int
    end: int
    entries: bytes
    packs: dict[int, str]


class Pager:
    """The writer of pages of one core. It shares `in_flight` with the flusher."""

    def __init__(
        self,
        groups: Groups,
        steps: Steps,
        settings: MergeSettings,
        cluster_id: str,
        in_flight: set[str],
    ) -> None:
        self.counters = PageCounters()
        self._groups = groups
        self._steps = steps
        self._settings = settings
        self._cluster_id = cluster_id
        self._in_flight = in_flight
        self._looked: dict[
            int, tuple[int, int]
        ] = {}  # uids: entries, and the time of the next look

    async def page_out(self, group: int, uid: int) -> int:
        """Write pages of a stream's index as long as some of it is closed. Return their number.
        Raises StoreError, Unavailable, OutcomeUnknown."""
        machine = self._groups.machines().get(group)
        if machine is None or not self._groups.may_log(machine, level_of(PageEntries)):
            return 0
        if self._rests(machine, uid):
            return 0
        made, young = await self._pages_of(group, uid)
        stream = machine.directory.by_uid.get(uid)
        if len(self._looked) >= LOOKED_MAX:
            self._looked.clear()
        rest_ms = LATE_MS // 10 if young else REST_MS
        self._looked[uid] = (
            0 if stream is None else index.count(stream.cold),
            self._groups.now_ms() + rest_ms,
        )
        return made

    async def _pages_of(self, group: int, uid: int) -> tuple[int, bool]:
        """Write pages of an index; return their number, and whether others wait for packs to
        age."""
        count_max, at, made = self._settings.page_entries, 0, 0
        while count_max and made < PAGES_MAX:
            machine = self._groups.machines().get(group)
            stream = None if machine is None else machine.directory.by_uid.get(uid)
            if machine is None or stream is None or stream.cold is None:
                break
            entries = index.cut(stream.cold, at, at + count_max + 1)
            if len(entries) // ENTRY_BYTES < 2:
                break
            found, after = next_page(
                entries,
                _bounds_of(stream),
                slice_bytes_max=self._settings.slice_bytes_max,
                count_max=count_max,
            )
            if found is None:
                at += after
            else:
                planned = self._planned(machine, entries, *found)
                if planned is None:
                    return made, True  # those behind it are younger
                if not await self._write(group, uid, planned):
                    return made, True
                at, made = at + found[0] + 1, made + 1
            await asyncio.sleep(0)
        return made, made == PAGES_MAX

    def _rests(self, machine: Machine, uid: int) -> bool:
        """Report whether too little has changed since an index was looked at."""
        stream = machine.directory.by_uid.get(uid)
        entries = 0 if stream is None else index.count(stream.cold)
        known, until_ms = self._looked.get(uid, (0, 0))
        grown = abs(entries - known) >= max(1, self._settings.page_entries // PAGE_FULL_SHARE)
        return not grown and self._groups.now_ms() < until_ms

    def _planned(self, machine: Machine, entries: bytes, begin: int, end: int) -> _Planned | None:
        """Return the page of a range, or None while some of its packs are too young to be its
        own."""
        now_ms = max(machine.counters.log_ms, self._groups.now_ms())
        part = entries[begin * ENTRY_BYTES : end * ENTRY_BYTES]
        packs = {
            number: machine.packs.by_number[number] for number in index.pack_numbers(part) if number
        }
        for key in reversed(packs.values()):
            pack = machine.packs.owned.get(key)
            if pack is not None and now_ms - pack.written_ms <= LATE_MS:
                return None
        return _Planned(*index.span(part, 0, end - begin), part, packs)

    async def _write(self, group: int, uid: int, planned: _Planned) -> bool:
        now_ms = self._groups.now_ms()
        key = page_key(self._cluster_id, group=group, now_ms=now_ms, random=token_bytes(16))
        data = await asyncio.to_thread(
            build_page, key, planned.entries, planned.packs, group=group, uid=uid, now_ms=now_ms
        )
        if data is None:
            log.warning("the packs of the stream with uid %d are elsewhere: it gets no pages", uid)
            return False
        self._in_flight.add(key)
        try:
            await self._steps.write(key, [data], group, [group])
            command = PageEntries(
                key,
                uid,
                planned.record,
                planned.end,
                mark_of(planned.entries),
                len(data),
                int(crc32c(data)),
                self._groups.now_ms(),
            )
            ((_, outcome),) = await self._steps.propose_all({group: command})
        finally:
            self._in_flight.discard(key)
        if not isinstance(outcome, Reply):
            raise outcome
        if outcome.detail != [0]:
            self.counters.refused += 1
            return False
        self.counters.pages += 1
        self.counters.entries += len(planned.entries) // ENTRY_BYTES
        return True


def _bounds_of(stream: Stream) -> set[int]:
    """Return the records at which claims of tables begin and end."""
    claims = (stream.tables or {}).values()
    return {bound for claim in claims for bound in (claim.published, claim.claimed)}
