"""The marker of a root (decision F20): whose objects these are, and which start of which node may delete them."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from polynya.base.errors import ConfigError
from polynya.base.formats import FORMAT, check_format
from polynya.objectstore.api import Conflict, NotFound, ObjectStore, StoreUnavailable

MARKER_KEY = "polynya-root.json"
_TRIES = 10
_OLDER = (
    "choose another root, or delete what is there with 'polynya store wipe'. Streams in it that are still needed can be copied from a node of "
    "the release that wrote it, with 'polynya import'"
)


class RootMarker(msgspec.Struct, frozen=True):
    """The object's content, JSON so that a person can read it."""

    cluster_id: str
    history: int
    start_id: str  # of the node start that owns the root now; "" when it has stopped
    format: int = FORMAT


class RootClaim(msgspec.Struct, frozen=True):
    """A root held. `previous` is the marker found, None in a fresh root."""

    marker: RootMarker
    etag: str
    previous: RootMarker | None


async def claim_root(store: ObjectStore, cluster_id: str, history: int, start_id: str) -> RootClaim:
    """Make this start the owner. Repeating one's own claim succeeds.

    Raises ConfigError when the root is another cluster's, or of a later history than this node's data (an old copy of the data
    folder must not delete what its successor needs); StoreUnavailable."""
    marker = RootMarker(cluster_id, history, start_id)
    for _ in range(_TRIES):
        found, etag = await _read(store)
        if found is not None:
            _check(found, marker)
            if found == marker:
                return RootClaim(marker, etag or "", found)
        try:
            return RootClaim(marker, await store.compare_and_swap(MARKER_KEY, msgspec.json.encode(marker), etag), found)
        except Conflict:
            continue
    raise StoreUnavailable("the marker of the object store's root changes all the time: does another node start on it?")


async def owns_root(store: ObjectStore, claim: RootClaim) -> bool:
    """Whether nobody claimed the root since: ask before deleting."""
    return (await _read(store))[0] == claim.marker


async def release_root(store: ObjectStore, claim: RootClaim) -> None:
    """A node that stops says so: nobody owns the root then. Raises StoreUnavailable; it may be left out, as a crash does."""
    found, etag = await _read(store)
    if found == claim.marker:
        with suppress(Conflict):
            await store.compare_and_swap(MARKER_KEY, msgspec.json.encode(msgspec.structs.replace(claim.marker, start_id="")), etag)


async def read_root(store: ObjectStore, *, any_format: bool = False) -> RootMarker | None:
    """The root's marker, if it has one. Raises ConfigError when it is no marker, or of another format, and StoreUnavailable."""
    return (await _read(store, any_format=any_format))[0]


async def _read(store: ObjectStore, *, any_format: bool = False) -> tuple[RootMarker | None, str | None]:
    """The marker and the etag it was read under."""
    for _ in range(_TRIES):
        try:
            before = await store.head(MARKER_KEY)
            data = await store.get(MARKER_KEY)
            after = await store.head(MARKER_KEY)
        except NotFound:
            return None, None
        if before.etag == after.etag:
            marker = _decode(data)
            if not any_format:
                check_format(f"the object store's root ({MARKER_KEY})", marker.format, older=_OLDER)
            return marker, before.etag
    raise StoreUnavailable("the marker of the object store's root changes all the time: does another node start on it?")


def _decode(data: bytes) -> RootMarker:
    try:
        return msgspec.json.decode(data, type=RootMarker)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigError(f"the object store's root has a {MARKER_KEY} that is not a root marker: choose another root") from None


def _check(found: RootMarker, mine: RootMarker) -> None:
    if found.cluster_id != mine.cluster_id:
        raise ConfigError(
            f"the object store's root belongs to another cluster ({found.cluster_id}; this one is {mine.cluster_id}). "
            "Choose another root or bucket, or start on that cluster's data folder."
        )
    if found.history > mine.history:
        raise ConfigError(
            f"the object store's root is used by a later history ({found.history}) of this cluster than this data folder's "
            f"({mine.history}): the folder is an old copy. Start on the newer one, or choose another root."
        )
