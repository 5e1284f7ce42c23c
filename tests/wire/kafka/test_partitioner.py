"""The partition of a key, against values of Kafka's own tests of `Utils.murmur2`."""

from __future__ import annotations

import pytest

from polynya.wire.kafka.partitioner import partition_of_key

HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", HASHES)
def test_a_key_has_the_partition_that_kafkas_clients_choose(key: bytes) -> None:
    assert partition_of_key(key, 1 << 31) == HASHES[key] & 0x7FFFFFFF
    assert partition_of_key(key, 6) == (HASHES[key] & 0x7FFFFFFF) % 6
