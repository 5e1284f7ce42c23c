"""Arrays assembled from encoded values equal those of an encoder."""

from __future__ import annotations

import msgspec
import pytest

from polynya.base.msgpack import array_head


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_the_head_is_as_an_encoder_writes_it(count: int) -> None:
    values = [None] * count
    assert array_head(count) + msgspec.msgpack.encode(None) * count == msgspec.msgpack.encode(
        values
    )
