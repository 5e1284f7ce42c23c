"""A `Reducer` whose code is a module in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polynya.base.limits import REDUCER_BATCH_BYTES
from polynya.reducers.reducer import Record
from polynya.reducers.wasm.records import encode
from polynya.reducers.wasm.sandbox import Sandbox


class ModuleReducer:
    """The state of one stream at a time: `restore` and `migrate` begin another one.

    `close` ends the process of the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def content_type(self) -> str:
        """The content type that the module says its states have."""
        self._sandbox.load()
        return self._sandbox.content_type

    def restore(self, state: bytes | None) -> None:
        """Begin with a published state, or before record 0."""
        self._sandbox.begin()
        if state is not None:
            self._sandbox.restore(state)

    def migrate(self, state: bytes) -> None:
        """Begin with a published state of an older revision."""
        self._sandbox.begin()
        self._sandbox.migrate(state)

    def apply(self, records: Sequence[Record]) -> int:
        """Apply records in their order. Return how many."""
        for batch in batches(records):
            self._sandbox.apply(encode(batch), len(batch))
        return len(records)

    def state(self) -> bytes:
        """Return the state after the records so far."""
        return self._sandbox.state()

    def get(self, key: bytes) -> bytes | None:
        """Return what the module has for a key; None: nothing."""
        return self._sandbox.get(key) or None

    def close(self) -> None:
        """End the sandbox process."""
        self._sandbox.close()


def batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Cut records into batches of about 1 MiB, of at least one record each."""
    begin = size = 0
    for at, record in enumerate(records):
        length = len(record.key or b"") + len(record.value or b"")
        if at > begin and size + length > REDUCER_BATCH_BYTES:
            yield records[begin:at]
            begin, size = at, 0
        size += length
    if records:
        yield records[begin:]
