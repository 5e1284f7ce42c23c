"""The columns of a job's schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polynya.lakehouse.jobs.plan import Writer
from polynya.lakehouse.payloads.decode import decoder_of
from polynya.lakehouse.payloads.nodes import BadSchema, proposed_columns
from polynya.lakehouse.schema.columns import Column, adopt, missing, paths


def with_writers(
    columns: Sequence[Column],
    writers: Mapping[int, Writer] | None,
    heads: Mapping[int, Iterable[bytes]],
) -> tuple[list[Column], list[str]]:
    """Return the columns with those of schemas, in order of their ids, and the paths of fields that
    find no room. A schema that cannot be read has no columns. `heads` are the first bytes of some
    bodies by id."""
    wide, left = list(columns), list[str]()
    for number, writer in sorted((writers or {}).items()):
        if writer.unknown:
            continue
        try:
            found = decoder_of(writer).fields(sorted(heads.get(number, ())))
        except BadSchema:
            continue
        for fields in found:
            wanted = proposed_columns(fields, wide)
            wide = adopt(wide, wanted)
            left += paths(missing(wide, wanted))
    return wide, left
