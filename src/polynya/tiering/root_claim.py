"""Claim the object store's root at start or when the store first answers. `DATA/object-root.json`
records the first claim.

A node that never held the root must not start without the claim. The root may belong to another
cluster or to a later history, and then acknowledged data could never be flushed. A node that held
this root may start. Until the claim succeeds it writes and deletes no objects, as if the store were
down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from polynya.backup import copies
from polynya.base.errors import ConfigError
from polynya.base.msgpack import UNREADABLE
from polynya.config.core_start import CoreStart
from polynya.config.node_identity import write_json
from polynya.objectstore import (
    ObjectStore,
    RootClaim,
    StoreSettings,
    StoreUnavailable,
    claim_root,
    owns_root,
    prove_conditional_writes,
)

FILE = "object-root.json"
FIRST_TRIES = 9  # for a node that never held this root
# own the root together: the leader of a group deletes the objects that it released
MEMBERS = "members of the cluster"
PAUSE_SECONDS = 0.5  # grows with each attempt …
PAUSE_SECONDS_MAX = 1.0  # … up to this; appends at their limit wait for it
SAID_EVERY = 10  # attempts
AWAY = "no response since the start: cold data may be unreadable, and nothing is flushed"
log = logging.getLogger("polynya.tier")


class HeldRoot(msgspec.Struct, frozen=True):
    """A root that this data folder has held."""

    cluster_id: str
    history: int
    backend: str
    root: str
    bucket: str = ""
    endpoint: str = ""


def held_by(start: CoreStart) -> HeldRoot:
    """Return the root that these settings describe."""
    store: StoreSettings = start.config.store
    return HeldRoot(
        start.identity.cluster_id,
        start.identity.history,
        store.backend,
        store.root,
        store.s3_bucket,
        store.s3_endpoint,
    )


class StoreRootClaim:
    """The root claim of one core. `made` is set once the root is claimed."""

    def __init__(
        self, start: CoreStart, store: ObjectStore, indexes: Callable[[], Mapping[int, int]]
    ) -> None:
        """`indexes` returns the applied index of each local group."""
        self.made = asyncio.Event()
        self.root: RootClaim | None = None
        self._trouble = "no request has been sent"
        self._start = start
        self._store = store
        self._indexes = indexes
        self._path = Path(start.config.data) / FILE
        self.is_known = was_held(start)

    @property
    def reason(self) -> str | None:
        """Return why the store is not in use, or None."""
        return None if self.made.is_set() else f"{AWAY}: {self._trouble}"

    async def make(self) -> None:
        """Retry until the root is claimed. Raises ConfigError when the claim is impossible, or when
        a root that was never held cannot be reached."""
        failures = 0
        while True:
            try:
                await self._try()
                break
            except StoreUnavailable as error:
                failures += 1
                self._trouble = error.reason
                if not self.is_known and failures == FIRST_TRIES:
                    raise ConfigError(
                        f"cold: the object store cannot be reached: {error}"
                    ) from None
                if failures == 1 or (self.is_known and not failures % SAID_EVERY):
                    log.warning(
                        "the object store does not respond yet",
                        extra={"error": str(error), "tries": failures},
                    )
            await asyncio.sleep(min(PAUSE_SECONDS * failures, PAUSE_SECONDS_MAX))
        if failures:
            log.info("the object store responds", extra={"tries": failures + 1})
        self.made.set()

    async def owned(self) -> bool:
        """Return True if this start owns the root. Check it before deleting objects."""
        return self.root is not None and await owns_root(self._store, self.root)

    async def _try(self) -> None:
        start = self._start
        if start.core == 0:
            await prove_conditional_writes(self._store)
        if not start.identity.node:
            await self._refuse_older()
        owner = MEMBERS if start.identity.node else start.start_id
        self.root = await claim_root(
            self._store, start.identity.cluster_id, start.identity.history, owner
        )
        if start.core == 0 and not self.is_known:
            write_json(self._path, held_by(start))

    async def _refuse_older(self) -> None:
        """Raise ConfigError when the folder is behind the state copies: it would treat later
        objects as orphans."""
        identity = self._start.identity
        later = await copies.ahead(
            self._store, (identity.cluster_id, identity.history), self._indexes()
        )
        if later is not None:
            raise ConfigError(
                f"data: {self._start.config.data} is a stale copy, has lost its end, or was "
                "restored again: the object store has the "
                f"state of group {later.group} at entry {later.index}, but this folder ends at "
                f"{self._indexes()[later.group]}. Nothing was changed. Start "
                "on the newer folder, or restore from the object store ('polynya restore "
                "--from-store --take-over' into a new folder); "
                "to continue from this folder and lose later data, remove "
                f"{copies.folder_of(identity.cluster_id, identity.history)} from the store"
            )


def was_held(start: CoreStart) -> bool:
    """Return True if this data folder has held exactly this root. An unreadable record counts as
    False."""
    try:
        found = msgspec.json.decode((Path(start.config.data) / FILE).read_bytes(), type=HeldRoot)
    except (OSError, *UNREADABLE):
        return False
    return found == held_by(start)
