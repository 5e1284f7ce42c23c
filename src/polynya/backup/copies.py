"""Copies of the groups' states in the object store, from which a recovery from the store alone
starts (docs/formats/backup.md)."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from polynya.backup.group_file import GroupFile, Header, pack_header, parse
from polynya.base.errors import ConfigError, CorruptData
from polynya.objectstore import AlreadyExists, NotFound, ObjectStore, put_again

MARK = "whole.json"
_KEY = re.compile(r"(\d{20})/(\d{5})/(\d{20})-(\d{20})", re.ASCII)
_DELTA = re.compile(r"(\d{20})/(\d{5})/(\d{20})-(\d{20})-(\d{20})", re.ASCII)
_MARK = re.compile(r"(\d{20})/whole\.json", re.ASCII)


class CompleteMark(msgspec.Struct, frozen=True):
    """The mark of a complete history: each group has a copy here, or was empty when the mark was
    written."""

    cluster: str
    history: int
    groups: int
    format: int = 1


class StateCopy(msgspec.Struct, frozen=True, order=True):
    """The location of a copy. The copy with the largest index is the newest."""

    group: int
    index: int
    term: int
    key: str
    size: int


class CopyDelta(msgspec.Struct, frozen=True, order=True):
    """The location of the changes to a state since its copy at `base`, or since any later copy."""

    index: int
    term: int
    base: int
    key: str


def folder_of(cluster: str, history: int, group: int | None = None) -> str:
    """Return the folder of a history, or of a group in it."""
    folder = f"{cluster}/copies/{history:020d}/"
    return folder if group is None else f"{folder}{group:05d}/"


def key_of(cluster: str, history: int, header: Header) -> str:
    return f"{folder_of(cluster, history, header.group)}{header.index:020d}-{header.term:020d}"


async def mark(store: ObjectStore, whole: CompleteMark) -> None:
    """Write the mark of a complete history. Idempotent. Raises StoreUnavailable."""
    with suppress(AlreadyExists):  # another release wrote it
        await put_again(
            store, folder_of(whole.cluster, whole.history) + MARK, msgspec.json.encode(whole)
        )


async def write(
    store: ObjectStore, cluster_history: tuple[str, int], header: Header, state: Sequence[bytes]
) -> None:
    """Write a copy durably. `cluster_history` is (cluster, history); `state` is in pieces. Raises
    StoreUnavailable."""
    # an earlier leader wrote the same state with the places of its own journal
    with suppress(AlreadyExists):
        await put_again(store, key_of(*cluster_history, header), [pack_header(header), *state])


async def write_delta(
    store: ObjectStore,
    cluster_history: tuple[str, int],
    header: Header,
    base: int,
    delta: Sequence[bytes],
) -> None:
    """Write the changes since the copy at `base` durably. The header describes the delta. Raises
    StoreUnavailable."""
    with suppress(AlreadyExists):  # an earlier leader wrote the same
        await put_again(
            store, f"{key_of(*cluster_history, header)}-{base:020d}", [pack_header(header), *delta]
        )


async def forget_older(
    store: ObjectStore, cluster_history: tuple[str, int], group: int, index: int
) -> None:
    """Delete the group's copies and deltas up to before this index. Raises StoreUnavailable."""
    folder = folder_of(*cluster_history, group)
    old = [
        info.key
        async for info in store.list(folder)
        if int(info.key.removeprefix(folder)[:20]) < index
    ]
    await store.delete(old)


async def ahead(
    store: ObjectStore, cluster_history: tuple[str, int], indexes: Mapping[int, int]
) -> StateCopy | None:
    """Return a copy with a later index than its group's in `indexes`, or None. Raises
    StoreUnavailable."""
    root = f"{cluster_history[0]}/copies/"
    async for info in store.list(folder_of(*cluster_history)):
        match = _KEY.fullmatch(info.key.removeprefix(root))
        if match is not None and int(match[3]) > indexes.get(int(match[2]), sys.maxsize):
            return StateCopy(int(match[2]), int(match[3]), int(match[4]), info.key, info.size)
    return None


async def newest(store: ObjectStore, cluster: str) -> tuple[CompleteMark, dict[int, StateCopy]]:
    """Return the mark of the newest recoverable history, and the newest copy of each group that has
    one.

    Raises ConfigError if no history is complete, StoreUnavailable.
    """
    root = f"{cluster}/copies/"
    histories: list[int] = []
    found: dict[int, dict[int, StateCopy]] = {}
    async for info in store.list(root):
        name = info.key.removeprefix(root)
        if match := _MARK.fullmatch(name):
            histories.append(int(match[1]))
        elif match := _KEY.fullmatch(name):
            history, group, index, term = map(int, match.groups())
            copies = found.setdefault(history, {})
            copies[group] = max(
                copies.get(group, StateCopy(group, -1, 0, "", 0)),
                StateCopy(group, index, term, info.key, info.size),
            )
    if not histories:
        raise ConfigError(
            "the object store holds no copies of the groups' states: nothing can be recovered "
            "from it alone"
        )
    history = max(histories)
    whole = msgspec.json.decode(
        await store.get(f"{folder_of(cluster, history)}{MARK}"), type=CompleteMark
    )
    return whole, found.get(history, {})


async def deltas(
    store: ObjectStore, whole: CompleteMark, found: Mapping[int, StateCopy]
) -> dict[int, list[CopyDelta]]:
    """Return the deltas that fit the copies found by `newest`, by group, the newest first. Each is
    enough: it has all changes since its base. Raises StoreUnavailable."""
    root = f"{whole.cluster}/copies/"
    fitting: dict[int, list[CopyDelta]] = {}
    async for info in store.list(folder_of(whole.cluster, whole.history)):
        if match := _DELTA.fullmatch(info.key.removeprefix(root)):
            _, group, index, term, base = map(int, match.groups())
            copy = found.get(group)
            if copy is not None and base <= copy.index < index:
                fitting.setdefault(group, []).append(CopyDelta(index, term, base, info.key))
    return {group: sorted(some, reverse=True) for group, some in fitting.items()}


async def read(store: ObjectStore, copy: StateCopy) -> GroupFile:
    """Read a copy. Raises CorruptData, StoreUnavailable."""
    return await _read(store, copy.key, copy.group)


async def read_delta(store: ObjectStore, delta: CopyDelta, group: int) -> GroupFile:
    """Read a delta, which is in place of the state. Raises CorruptData, StoreUnavailable."""
    return await _read(store, delta.key, group)


async def _read(store: ObjectStore, key: str, group: int) -> GroupFile:
    try:
        return parse(await store.get(key), group)
    except NotFound:
        raise CorruptData(
            f"{key} was deleted during the recovery: does a node use this root?"
        ) from None
    except CorruptData as fault:
        raise CorruptData(f"{key} is damaged: {fault}") from None
