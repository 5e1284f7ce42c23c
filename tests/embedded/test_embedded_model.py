"""The embedded log against a model: any sequence of calls, restarts and crashes between them."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from long_tests import examples
from worlds.fake_disk import FakeDisk

from polynya.embedded import Log, UnknownTopic

FOLDER = Path("/log")
TOPICS = st.sampled_from(["a", "b", "c"])
DATA = st.binary(max_size=700)


class ModelTopic:
    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.first = 0
        self.cursors: dict[str, int] = {}


class LogMachine(RuleBasedStateMachine):
    """`each` survives power cuts; `never` survives the death of its process."""

    @initialize(each=st.booleans(), seed=st.integers(0, 1 << 32))
    def begin(self, each: bool, seed: int) -> None:
        self.each = each
        self.disk = FakeDisk(random.Random(seed))
        self.model: dict[str, ModelTopic] = {}
        self.open()

    def open(self) -> None:
        self.log = Log(
            FOLDER, sync="each" if self.each else "never", segment_bytes=4096, files=self.disk
        )

    @rule(topic=TOPICS, data=DATA)
    def append(self, topic: str, data: bytes) -> None:
        known = self.model.setdefault(topic, ModelTopic())
        assert self.log.append(topic, data) == len(known.records)
        known.records.append(data)

    @rule(topic=TOPICS, records=st.lists(DATA, min_size=1, max_size=5))
    def append_batch(self, topic: str, records: list[bytes]) -> None:
        known = self.model.setdefault(topic, ModelTopic())
        assert self.log.append_batch(topic, records) == range(
            len(known.records), len(known.records) + len(records)
        )
        known.records += records

    @rule(topic=TOPICS, share=st.floats(0, 1))
    def trim(self, topic: str, share: float) -> None:
        if known := self.model.get(topic):
            before = int(share * len(known.records))
            self.log.trim(topic, before)
            known.first = max(known.first, before)

    @rule(topic=TOPICS, cursor=st.sampled_from(["x", "y"]), share=st.floats(0, 1))
    def commit(self, topic: str, cursor: str, share: float) -> None:
        if known := self.model.get(topic):
            position = int(share * len(known.records))
            self.log.commit(topic, cursor, position)
            known.cursors[cursor] = position

    @rule(topic=TOPICS)
    def delete(self, topic: str) -> None:
        if self.model.pop(topic, None) is not None:
            self.log.delete(topic)
            return
        try:
            self.log.delete(topic)
        except UnknownTopic:
            return
        raise AssertionError(topic)

    @rule(topic=TOPICS, cursor=st.sampled_from(["x", "y"]))
    def drop_cursor(self, topic: str, cursor: str) -> None:
        known = self.model.get(topic)
        if known and known.cursors.pop(cursor, None) is not None:
            self.log.drop_cursor(topic, cursor)

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.open()

    @rule(some=st.sampled_from([0.0, 0.5, 1.0]))
    def die(self, some: float) -> None:
        if self.each:
            self.disk.power_cut(some)
        else:
            self.disk.kill()
        self.open()

    @rule(some=st.sampled_from([0.0, 0.5, 1.0]))
    def sync_and_cut(self, some: float) -> None:
        self.log.sync()
        self.disk.power_cut(some)
        self.open()

    @rule(topic=TOPICS, share=st.floats(0, 1), count=st.integers(1, 20), size=st.integers(1, 3000))
    def read(self, topic: str, share: float, count: int, size: int) -> None:
        known = self.model.get(topic)
        if known is None:
            return
        start = known.first + int(share * (len(known.records) - known.first))
        expected, total = [], 0
        for number in range(start, min(len(known.records), start + count)):
            total += len(known.records[number])
            if total > size and expected:
                break
            expected.append((number, known.records[number]))
            if total >= size:
                break
        assert self.log.read_batch(topic, start, max_records=count, max_bytes=size) == expected

    @invariant()
    def agrees(self) -> None:
        assert self.log.topics() == sorted(self.model)
        for name, known in self.model.items():
            left = known.records[known.first :]
            assert (self.log.first(name), self.log.end(name)) == (known.first, len(known.records))
            assert (self.log.count(name), self.log.size(name)) == (len(left), sum(map(len, left)))
            assert self.log.cursors(name) == known.cursors

    def teardown(self) -> None:
        for name, known in getattr(self, "model", {}).items():
            assert [record.data for record in self.log.iterate(name)] == known.records[
                known.first :
            ]


LogMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestEmbeddedLogModel = LogMachine.TestCase
