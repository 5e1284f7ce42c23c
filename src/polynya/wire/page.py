"""The format of pages: a part of a stream's index in one immutable object
(docs/formats/pages.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.base.msgpack import UNREADABLE
from polynya.stream.parts import ColdSlice
from polynya.stream.state import entries as form
from polynya.stream.state import index
from polynya.stream.state.index import Entries, Index
from polynya.wire.pack import pack_key

MAGIC = b"PLYNPAG1"
VERSION = 1
_TAIL = Struct("<IIQ8s")  # footer length, CRC-32C, length of the object, magic
_NO_PACK = 2**32 - 1  # the number of entries that name no pack
_PACKS = "/packs/"
_PAGES = "/pages/"


class PageFooter(msgspec.Struct, array_like=True, frozen=True):
    """The list of a page: where its entries come from. `packs`: (end of the key, entries)."""

    version: int
    group: int
    uid: int
    created_ms: int
    packs: list[tuple[str, int]]


_footer = msgspec.msgpack.Decoder(PageFooter)


class Page:
    """The entries of a page, and the packs that they name."""

    def __init__(self, key: str, footer: PageFooter, data: Entries, size: int) -> None:
        folder = _folder_of(key)
        self.key = key
        self.size = size  # bytes of the object
        self.uid = footer.uid
        self.packs = [(folder + end, count) for end, count in footer.packs]
        keys: dict[int, str] = dict(enumerate(pack for pack, _ in self.packs))
        keys[_NO_PACK] = ""
        self.index = Index(data, keys)

    def between(self, begin: int, end: int) -> Iterator[ColdSlice]:
        """Yield the slices that have some of the records from `begin` to before `end`."""
        data = self.index.data
        for cold in self.index.starting(index.entries_before(data, begin)):
            if cold.record >= end:
                return
            yield cold

    @property
    def records(self) -> tuple[int, int]:
        """The first record, and the record behind the last."""
        return index.span(self.index.data, 0, len(self.index))


def page_key(cluster_id: str, *, group: int, now_ms: int, random: bytes) -> str:
    """Return the key of a new page. `random` must be 16 new random bytes."""
    key = pack_key(cluster_id, owner_group=group, now_ms=now_ms, random=random)
    return key.replace(_PACKS, _PAGES, 1)


def build_page(
    key: str, entries: bytes, packs: Mapping[int, str], *, group: int, uid: int, now_ms: int
) -> bytes | None:
    """Return the object with these entries. `packs` are the keys by the numbers that the entries
    have. None: a pack is not in the folder of the page's cluster."""
    counts = Counter(index.pack_numbers(entries))
    inline = counts.pop(0, 0)
    folder, positions = (
        _folder_of(key),
        {number: position for position, number in enumerate(counts)},
    )
    if inline:
        positions[0] = _NO_PACK
    listed = [(packs[number], count) for number, count in counts.items()]
    if not all(each.startswith(folder) for each, _ in listed):
        return None
    renumbered = b"".join(
        form.ENTRY.pack(*row[:5], positions[row[5]], *row[6:])
        for row in form.ENTRY.iter_unpack(entries)
    )
    body = index.stored(index.loaded(form.chunk_of(renumbered)))
    assert body is not None
    footer = msgspec.msgpack.encode(
        PageFooter(
            VERSION,
            group,
            uid,
            now_ms,
            [(each.removeprefix(folder), count) for each, count in listed],
        )
    )
    data = MAGIC + body + footer
    return data + _TAIL.pack(len(footer), crc32c(data), len(data) + _TAIL.size, MAGIC)


def read_page(key: str, data: bytes) -> Page:
    """Parse a page. Raises CorruptData."""
    if len(data) < len(MAGIC) + _TAIL.size or not data.startswith(MAGIC):
        raise CorruptData(f"the object {key} is not a page of an index")
    length, crc, size, magic = _TAIL.unpack_from(data, len(data) - _TAIL.size)
    whole = data[: -_TAIL.size]
    if magic != MAGIC or size != len(data) or crc32c(whole) != crc:
        raise CorruptData(f"the page {key} is damaged: its checksum is wrong")
    try:
        footer = _footer.decode(whole[len(whole) - length :])
    except UNREADABLE as fault:
        raise CorruptData(f"the footer of the page {key} cannot be decoded: {fault}") from None
    if footer.version != VERSION:
        raise CorruptData(f"the page {key} has version {footer.version}, which is not supported")
    entries = index.loaded(whole[len(MAGIC) : len(whole) - length])
    if not entries:
        raise CorruptData(f"the page {key} has no entries")
    numbers = {-1, *index.pack_numbers(entries)} - {_NO_PACK}
    if max(numbers) >= len(footer.packs):
        raise CorruptData(f"the page {key} names a pack that it does not list")
    return Page(key, footer, entries, len(data))


def spread(
    slices: Sequence[ColdSlice], pages: Mapping[str, Page], begin: int, end: int
) -> list[ColdSlice]:
    """Return the slices with those of pages in place of the pages: of these only the ones that have
    records from `begin` to before `end`. Raises KeyError for a page that is not given."""
    found: list[ColdSlice] = []
    for cold in slices:
        if cold.is_page:
            found += pages[cold.pack].between(max(begin, cold.record), end)
        else:
            found.append(cold)
    return found


def _folder_of(key: str) -> str:
    """Return the folder of the packs that a page's entries name."""
    cluster, folder, _ = key.rpartition(_PAGES)
    if not folder:
        raise CorruptData(f"{key} is not the key of a page")
    return cluster + _PACKS
