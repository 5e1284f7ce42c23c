"""What drivers and the server say to each other of tables' jobs, as JSON: docs/formats/tables.md, section "Routes"."""

from __future__ import annotations

from typing import Annotated

import msgspec

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # exact in every language, and as a sum of many


class StoreRef(msgspec.Struct, frozen=True, gc=False):
    """Where objects are, without credentials: those are the driver's own."""

    kind: str  # "local" or "s3"
    root: str  # absolute folder, or key prefix in the bucket ("" none)
    bucket: str = ""
    region: str = ""
    endpoint: str = ""
    shared: bool = False  # as the setting `cold.shared`


class CommitRequest(msgspec.Struct, frozen=True):
    """Move the pointers of a table and its dead letters, and its job number, if it is still as the plan found it."""

    uid: str
    job: Number
    attempt: str
    base_iceberg: str
    base_iceberg_dlq: str
    iceberg: str
    iceberg_dlq: str
    result: str  # key of the result object
    rows: Number
    dead_rows: Number


class AbandonRequest(msgspec.Struct, frozen=True):
    """Free the job's ranges again, unless it was committed."""

    uid: str
    job: Number
    reason: str = ""
