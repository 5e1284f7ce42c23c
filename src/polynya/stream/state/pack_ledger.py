"""The packs of a group: those that its streams reference, and those whose owner group it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from polynya.stream.features.packs.commands import ReleasePack
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.changes import Changes, remember
from polynya.stream.state.index import Index
from polynya.stream.state.model import PackReference, Stream
from polynya.stream.state.outbox import Outbox
from polynya.stream.state.pack_tables import HeldPacks, OwnedPacks, is_page_key


class PackLedger:
    """The references to packs.

    Each pack in `held` is referenced by a slice entry in an index, a past, a held page or an
    evicted stub; no other pack is, but those in `pages_gone`. `owned` are the packs of this owner
    group. `by_number` maps the numbers of the held packs to their keys."""

    def __init__(self, group: int, outbox: Outbox, changes: Changes) -> None:
        self.held = HeldPacks()
        self.owned = OwnedPacks()
        self.pages_gone: dict[str, None] = {}  # held pages that no index names any more
        # packs that this group has released and must never hold again, oldest first
        self.released: dict[str, None] = {}
        self.counter = 0
        self._group = group
        self._outbox = outbox
        self._changes = changes

    @property
    def by_number(self) -> Mapping[int, str]:
        """The keys of the held packs, by pack number."""
        return self.held.by_number

    def index_of(self, stream: Stream) -> Index:
        """Return the stream's cold slices in order. The view is valid only until the next command
        is applied."""
        return Index(stream.cold, self.held.by_number)

    def whole_index_of(self, stream: Stream) -> Index:
        """Return the cold slices, preceded by the trimmed slices that forks still need. Records may
        be missing between the two."""
        past = None if stream.extras is None else stream.extras.past
        whole = index.preceded(stream.cold, past) if past else stream.cold
        return Index(whole, self.held.by_number)

    def condemned(self, before_ms: int) -> Iterator[str]:
        """Yield the packs of this owner group that every group released by `before_ms`. Delete the
        object, then log `PackDeleted`."""
        return self.owned.condemned(before_ms)

    def take_slots(self, pack: str, owner_group: int, now_ms: int, taken: Iterable[bool]) -> Reply:
        """Apply a pack that carries parts for several streams of this group. Iterating `taken`
        applies one part after the other and yields whether it was accepted. The reply's detail
        lists the accepted positions. A pack that was already released yields none; a pack without a
        reference here is released."""
        if pack in self.released:
            return Reply(Code.OK, detail=[])
        accepted = [at for at, is_taken in enumerate(taken) if is_taken]
        if pack not in self.held:
            self.release_pack(pack, owner_group, now_ms)
        return Reply(Code.OK, detail=accepted)

    def hold_slice(self, pack: str, owner_group: int) -> int:
        """Add one reference to the pack and return its number."""
        held = self.held.get(pack)
        if held is None:
            self.counter += 1
            held = PackReference(owner_group, 0, self.counter)
        held.slices += 1
        self.held[pack] = held
        self._changes.held.add(pack)
        return held.number

    def drop_slice(self, number: int, now_ms: int, count: int = 1) -> None:
        """Remove references to the pack of this number; the last removal releases the pack. A page
        stays until the packs of its entries are released. 0: an entry without a pack."""
        if not number:
            return
        pack = self.held.key_of(number)
        held = self.held[pack]
        held.slices -= count
        self.held[pack] = held
        self._changes.held.add(pack)
        if held.slices == 0 and is_page_key(pack):
            self.pages_gone[pack] = None
        elif held.slices == 0:
            del self.held[pack]
            self.release_pack(pack, held.owner_group, now_ms)

    def forget_page(self, page: str, now_ms: int) -> None:
        """Release a page that no index names."""
        del self.pages_gone[page], self.held[page]
        self._changes.held.add(page)
        self.release_pack(page, self._group, now_ms)

    def release_pack(self, pack: str, owner_group: int, now_ms: int) -> None:
        """Notify the pack's owner group that this group no longer needs the pack and never will."""
        if remember(self.released, pack):
            self._changes.remember(self._changes.released, pack)
        self._outbox.send(owner_group, ReleasePack(pack, self._group, now_ms))
