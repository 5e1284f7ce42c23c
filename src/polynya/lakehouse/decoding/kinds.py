"""Decode records by the kind of their stream: bytes, JSON, or what may be JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from polynya.lakehouse.decoding.assemble import arrow_type
from polynya.lakehouse.decoding.decode import (
    Bytes,
    Decoded,
    Positions,
    Schema,
    decode,
    may_be_object,
    without_strangers,
)
from polynya.lakehouse.reading.slices import Kind
from polynya.lakehouse.schema.columns import Column


def typed(
    kind: Kind, data: Bytes, ends: Positions, missing: npt.NDArray[np.bool_], schema: Schema
) -> Decoded:
    """Return the typed values of records laid out as for `decode`. `missing` marks those without a
    value. Modifies `data`."""
    chosen = _parsed(kind, data, ends, missing)
    if not chosen.any():
        return _undecoded(schema.columns, len(ends))
    if chosen.all():
        decoded = decode(data, ends, schema)
    else:
        lengths = np.diff(ends, prepend=0)
        text = data[np.repeat(chosen, lengths)]
        decoded = _spread(decode(text, np.cumsum(lengths[chosen]), schema), chosen)
    return without_strangers(decoded) if kind == Kind.MAYBE_JSON else decoded


def _parsed(
    kind: Kind, data: Bytes, ends: Positions, missing: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Mark the records that are parsed as JSON: none of bytes, and no record without a value."""
    if kind == Kind.BYTES:
        return np.zeros(len(ends), np.bool_)
    present = ~missing
    return present if kind == Kind.JSON else present & may_be_object(data, ends)


def _spread(decoded: Decoded, chosen: Any) -> Decoded:
    """Return what was decoded of the chosen records as rows of all records."""
    positions = np.flatnonzero(chosen)
    indices = pa.array(np.cumsum(chosen) - 1, mask=~chosen)
    arrays = [array.take(indices) for array in decoded.arrays]
    problems = {int(positions[row]): found for row, found in decoded.problems.items()}
    return Decoded(arrays, problems, decoded.proposals)


def _undecoded(columns: list[Column], count: int) -> Decoded:
    """Return rows of streams that are not JSON: no typed values and no problems."""
    return Decoded([pa.nulls(count, arrow_type(column)) for column in columns], {}, [])
