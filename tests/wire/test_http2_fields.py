"""Header fields as literals: the library's decoder reads them, with no table at all."""

from __future__ import annotations

from hpack import Decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.wire.http import http2_fields
from polynya.wire.http.http2_fields import LiteralEncoder

FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b":status", b"x-a", b"etag", b"n" * 200]),
        st.sampled_from([b"200", b"204", b"404", b"409", b"", b"v" * 127, b"v" * 16_600])
        | st.binary(max_size=300),
    ),
    max_size=6,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=3), st.sampled_from([0, 4096, 65_536]))
def test_each_block_is_read_whatever_table_the_client_has(
    blocks: list[list[tuple[bytes, bytes]]], table: int
) -> None:
    encoder, decoder = LiteralEncoder(), Decoder()
    decoder.max_allowed_table_size = table
    for fields in blocks:
        assert decoder.decode(encoder.encode(fields), raw=True) == fields
    assert decoder.header_table.maxsize == 0  # a client that allows more gets nothing to keep


def test_the_cache_is_bounded() -> None:
    encoder = LiteralEncoder()
    for number in range(2 * http2_fields._CACHE_FIELDS_MAX):
        encoder.encode([(b"x", b"%d" % number)])
    assert len(LiteralEncoder._known) <= http2_fields._CACHE_FIELDS_MAX
