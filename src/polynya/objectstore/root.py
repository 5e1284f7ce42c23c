"""The marker of a root: the cluster that owns its objects, and the node process that may delete
them."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from polynya.base.errors import ConfigError
from polynya.base.formats import FORMAT, check_format
from polynya.base.msgpack import UNREADABLE
from polynya.objectstore.api import Conflict, NotFound, ObjectStore, StoreUnavailable

MARKER_KEY = "polynya-root.json"
_TRIES = 10
_OLDER = (
    "choose another root, or delete its objects with 'polynya store wipe'. Streams in it that are "
    "still needed can be copied from a node of "
    "the release that wrote it, with 'polynya import'"
)


class RootMarker(msgspec.Struct, frozen=True):
    """The content of the marker object, as readable JSON."""

    cluster_id: str
    history: int
    start_id: str  # of the node process that owns the root now; "" after it stopped
    format: int = FORMAT


class RootClaim(msgspec.Struct, frozen=True):
    """A claimed root. `previous` is the earlier marker, or None in a fresh root."""

    marker: RootMarker
    etag: str
    previous: RootMarker | None


async def claim_root(store: ObjectStore, cluster_id: str, history: int, start_id: str) -> RootClaim:
    """Make this node process the owner of the root. Idempotent.

    Raises ConfigError if the root belongs to another cluster, or to a later history than this
    node's data. A stale copy of the data folder must not delete its successor's objects. Raises
    StoreUnavailable.
    """
    marker = RootMarker(cluster_id, history, start_id)
    for _ in range(_TRIES):
        found, etag = await _read(store)
        if found is not None:
            _check(found, marker)
            if found == marker:
                return RootClaim(marker, etag or "", found)
        try:
            return RootClaim(
                marker,
                await store.compare_and_swap(MARKER_KEY, msgspec.json.encode(marker), etag),
                found,
            )
        except Conflict:
            continue
    raise StoreUnavailable(
        "the marker of the object store's root keeps changing: is another node starting on it?"
    )


async def owns_root(store: ObjectStore, claim: RootClaim) -> bool:
    """Report whether the root is still claimed by this process. Check before deleting."""
    return (await _read(store))[0] == claim.marker


async def release_root(store: ObjectStore, claim: RootClaim) -> None:
    """Clear the owner of the root when a node stops. A crash skips this, which is harmless. Raises
    StoreUnavailable."""
    found, etag = await _read(store)
    if found == claim.marker:
        with suppress(Conflict):
            await store.compare_and_swap(
                MARKER_KEY,
                msgspec.json.encode(msgspec.structs.replace(claim.marker, start_id="")),
                etag,
            )


async def read_root(store: ObjectStore, *, any_format: bool = False) -> RootMarker | None:
    """Return the root's marker, or None. Raises StoreUnavailable, and ConfigError if it is no
    marker or of another format."""
    return (await _read(store, any_format=any_format))[0]


async def _read(
    store: ObjectStore, *, any_format: bool = False
) -> tuple[RootMarker | None, str | None]:
    """Return the marker with the etag that it was read under."""
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
    raise StoreUnavailable(
        "the marker of the object store's root keeps changing: is another node starting on it?"
    )


def _decode(data: bytes) -> RootMarker:
    try:
        return msgspec.json.decode(data, type=RootMarker)
    except UNREADABLE:
        raise ConfigError(
            f"the object store's root has a {MARKER_KEY} that is not a root marker: choose "
            "another root"
        ) from None


def _check(found: RootMarker, mine: RootMarker) -> None:
    if found.cluster_id != mine.cluster_id:
        raise ConfigError(
            f"the object store's root belongs to another cluster ({found.cluster_id}; this one is "
            f"{mine.cluster_id}). "
            "Choose another root or bucket, or start on that cluster's data folder."
        )
    if found.history > mine.history:
        raise ConfigError(
            f"the object store's root is used by a later history ({found.history}) of this "
            "cluster than this data folder's "
            f"({mine.history}): the folder is a stale copy. Start on the newer one, or choose "
            "another root."
        )
