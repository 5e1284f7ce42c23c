"""Defects in pages of long indexes; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function

from polynya.backup.writer import BackupWriter
from polynya.cold.collector import Collector
from polynya.local.reads.pieces import PieceReader
from polynya.recovery.from_store import FromStore
from polynya.stream.features.packs import rules as publishing
from polynya.stream.features.pages import rules as paging
from polynya.stream.state.pack_ledger import PackLedger


async def _nothing(*_: object) -> set[str]:
    return set()


PAGE: dict[str, tuple[Any, str, Any]] = {
    "entries that were replaced before the put are paged": (
        paging,
        "_page",
        edited_function(paging._page, "mark_of(entries) != command.mark", "False"),
    ),
    "a pack is swept while a page names it": (
        Collector,
        "_unnamed",
        edited_function(
            Collector._unnamed, "key not in named and owner_group_of(key) not in lost", "True"
        ),
    ),
    "packs of a lost page are swept": (
        Collector,
        "_unnamed",
        edited_function(Collector._unnamed, "page not in named.pages", "False"),
    ),
    "a page takes over packs that others name": (
        paging,
        "_hand_over",
        edited_function(paging._hand_over, "held.slices == count", "True"),
    ),
    "a page takes over a young pack": (
        paging,
        "_hand_over",
        edited_function(
            paging._hand_over, "machine.counters.log_ms - pack.written_ms > LATE_MS", "True"
        ),
    ),
    "a late intent brings a pack of a page back": (
        publishing,
        "is_late",
        lambda machine, now_ms: False,
    ),
    "a page goes before its packs": (
        PackLedger,
        "drop_slice",
        edited_function(
            PackLedger.drop_slice, "held.slices == 0 and is_page_key(pack)", "held.slices < 0"
        ),
    ),
    "a table's claim ends inside a page": (
        paging,
        "crosses_a_claim",
        lambda stream, begin, end: False,
    ),
    "a page of records goes on behind a page of an index": (
        PieceReader,
        "_open_page",
        edited_function(
            PieceReader._open_page, "pieces[at + 1 :] if is_whole else ()", "pieces[at + 1 :]"
        ),
    ),
    "a backup lacks the packs of pages": (BackupWriter, "_look_into_pages", _nothing),
    "recovery does not look into pages": (FromStore, "_packs_of_pages", _nothing),
}
_COLD = "cold/test_index_pages.py::"
_LOCAL = "local/test_paged_streams.py::"
_BACKUP = "backup/test_pages_in_backups.py::"
_SWEPT = f"{_COLD}test_packs_that_become_a_pages_own_during_a_sweep_stay"
_LOST = f"{_COLD}test_a_lost_page_is_an_error_of_its_records_alone"
PAGE_STORIES = {
    "entries that were replaced before the put are paged": (
        f"{_COLD}test_entries_that_change_before_the_page_is_logged_are_left_as_they_are"
    ),
    "a pack is swept while a page names it": _SWEPT,
    "packs of a lost page are swept": _LOST,
    "a page takes over packs that others name": (
        f"{_COLD}test_a_pack_that_others_name_stays_in_the_tables_of_its_group"
    ),
    "a page takes over a young pack": f"{_COLD}test_a_young_pack_stays_in_the_tables",
    "a late intent brings a pack of a page back": (
        f"{_COLD}test_a_pack_that_is_logged_again_late_does_not_come_back"
    ),
    "a page goes before its packs": (
        f"{_COLD}test_a_page_is_released_with_its_packs_when_all_of_it_is_trimmed"
    ),
    "a table's claim ends inside a page": (f"{_LOCAL}test_tables_take_the_records_of_pages_once"),
    "a page of records goes on behind a page of an index": (
        f"{_LOCAL}test_a_paged_stream_reads_as_a_list"
    ),
    "a backup lacks the packs of pages": f"{_BACKUP}test_a_backup_has_pages_and_their_packs",
    "recovery does not look into pages": (
        f"{_BACKUP}test_the_store_alone_gives_paged_streams_back"
    ),
}
