"""Entries that carry payload, as the counters of bytes between zones tell them from others."""

from __future__ import annotations

from polynya.replica.log import encode_bundle, encode_command, has_payload
from polynya.stream.features.appends.commands import Append, Bundle, Produce
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.profiles.commands import CommitSlices
from polynya.stream.parts import Batch

BATCH = Batch(0, 1, b"x", 7)
APPEND = Append("default/s", 1, "text/plain", BATCH)
PRODUCE = Produce("kafka/t/0", 1, BATCH)


def test_appends_alone_carry_payload() -> None:
    bundle = Bundle([APPEND, PRODUCE])
    encoded = [encode_command(each) for each in (APPEND, PRODUCE, bundle)]
    assert all(map(has_payload, (*encoded, encode_bundle(encoded[:2]))))
    commit = CommitSlices("p", 1, "w" * 32, 1, 1, [], 1)
    others = (commit, Create("default/s", 1, "text/plain", 0), Delete("default/s", 1))
    assert not any(has_payload(encode_command(each)) for each in others)
