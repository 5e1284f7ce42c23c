"""The output of key compaction: how far it is, and passes on request."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from polynya.cli.remote.client import Client
from polynya.cli.terminal import output

ROOT = "/v1/compaction"
HEADS = ("partition", "dirty", "cleaned offset", "last pass", "held by")


def begin_pass(client: Client, stream: str) -> dict[str, Any]:
    """Let the server begin a pass of a stream, and return how far its compaction is."""
    answer: dict[str, Any] = client.call("POST", f"{ROOT}/{quote(stream)}", stream=stream).json()
    return answer


def row_of(found: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a table for a stream; None: it is evicted."""
    if found is None:
        return ("-", "-", "-", "the partition is idle and evicted")
    whole = output.size(found["bytes"])
    dirty = f"{found['dirty_ratio']:.0%} of {whole}"
    why = [found[key] for key in ("held_by", "kept_for") if found[key]]
    last = found["last_pass"]
    if last is not None and last["damage"]:
        why.append(last["damage"])
    return (dirty, str(found["cleaned_offset"]), _spelled(last), "; ".join(why) or "-")


def _spelled(last: dict[str, Any] | None) -> str:
    if last is None:
        return "-"
    dropped = output.counted(last["dropped_records"], "record")
    read, size = output.size(last["read_bytes"]), output.size(last["dropped_bytes"])
    return f"{last['ended_at']}: read {read}, dropped {dropped} ({size})"
