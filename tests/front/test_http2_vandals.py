"""The fuzzer of HTTP/2 accuses the product only of what its vandals cannot have done."""

from __future__ import annotations

from random import Random

from fuzz.http2 import READING, Vandal
from hpack import Decoder, Encoder, HPACKDecodingError

SEED = 20_261_122


def test_vandals_only_read_the_streams_of_keepers() -> None:
    """An append of theirs would be a value that no keeper has written."""
    vandal, paths = Vandal(Random(SEED), 0, "http://127.0.0.1:1"), set[str]()
    for _ in range(1000):
        vandal._encoder, vandal._stream = Encoder(), 1
        sent = vandal._request()
        try:
            fields = dict(Decoder().decode(sent[9 : 9 + int.from_bytes(sent[:3], "big")]))
        except HPACKDecodingError:
            continue  # a damaged block
        if fields[":method"] not in READING:
            paths.add(fields[":path"])
    assert len(paths) > 3
    assert not [path for path in paths if "keeper" in path]
