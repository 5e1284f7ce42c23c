"""Objects by key: get a range, put if absent, compare and swap, list, delete. Three stores with one behaviour: `local`, `s3`, `memory`.

Invariants:

* What `put` or `compare_and_swap` answered survives a power cut (as far as the service behind `s3` keeps its own promise).
* Nothing is overwritten but by `compare_and_swap`; of racing creators of a key one wins and its bytes are kept whole.
* A write that raised `StoreUnavailable` may have happened. `put` is repeated with the same key and bytes through `put_again`, which
  takes its own earlier success for success; a swap is repeated by reading first.
* No call waits for ever: S3 requests time out, local ones run in a small pool of threads.

The start of a node proves that the store honours its conditions (`prove_conditional_writes`: several S3 look-alikes accept the
headers and ignore them) and claims the root for its cluster (`claim_root`). What this room does not do: it knows no packs, keeps no
references and decides no deletion.
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
from polynya.objectstore.root import MARKER_KEY, RootClaim, RootMarker, claim_root, owns_root, read_root, release_root
from polynya.objectstore.settings import StoreSettings, open_store
from polynya.objectstore.watched import Record, WatchedStore

__all__ = [
    "MARKER_KEY",
    "OBJECT_BYTES_MAX",
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
