"""Objects by key: get a range, put if absent, compare and swap, list, delete. `local`, `s3` and
`memory` behave alike.

Invariants:

* An acknowledged `put` or `compare_and_swap` survives a power failure (for `s3`, as far as the
  service keeps its promise).
* Only `compare_and_swap` overwrites an object. Of racing creators of a key, one wins and its bytes
  are kept whole.
* A write that raised `StoreUnavailable` may have happened. Repeat a `put` with the same key and
  bytes through `put_again`, which accepts
  its own earlier success. Repeat a swap after reading again.
* Every call ends: S3 requests time out, and local ones run in a small thread pool.

When a node starts, it proves that the store honours conditional writes
(`prove_conditional_writes`): several S3-compatible servers accept the headers and ignore them. Then
it claims the root for its cluster (`claim_root`). This package knows nothing of packs, keeps no
references and decides no deletions.
"""

from polynya.objectstore.api import (
    OBJECT_BYTES_MAX,
    AlreadyExists,
    Conflict,
    NotFound,
    ObjectInfo,
    ObjectStore,
    StoreError,
    StoreUnavailable,
    check_key,
    check_prefix,
    put_again,
)
from polynya.objectstore.memory import MemoryStore
from polynya.objectstore.proof import prove_conditional_writes, remove_in_passing
from polynya.objectstore.root import (
    MARKER_KEY,
    RootClaim,
    RootMarker,
    claim_root,
    owns_root,
    read_root,
    release_root,
)
from polynya.objectstore.settings import StoreSettings, open_store
from polynya.objectstore.usage import REQUESTS, WORKS, StoreUsage
from polynya.objectstore.watched import Record, WatchedStore

__all__ = [
    "MARKER_KEY",
    "OBJECT_BYTES_MAX",
    "REQUESTS",
    "WORKS",
    "AlreadyExists",
    "Conflict",
    "MemoryStore",
    "NotFound",
    "ObjectInfo",
    "ObjectStore",
    "Record",
    "RootClaim",
    "RootMarker",
    "StoreError",
    "StoreSettings",
    "StoreUnavailable",
    "StoreUsage",
    "WatchedStore",
    "check_key",
    "check_prefix",
    "claim_root",
    "open_store",
    "owns_root",
    "prove_conditional_writes",
    "put_again",
    "read_root",
    "release_root",
    "remove_in_passing",
]
