"""Round trip of keys and headers: the server reads what the client sends."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.client import NewRecord
from polynya.client.records import header_list, header_text, records_body
from polynya.client.values import encode, split_array, whole_record
from polynya.wire.kafka.batches import records_of
from polynya.wire.record_fields import parse_batch, parse_record_fields

BYTES = st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
NAMES = st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", fullmatch=True)
HEADERS = st.lists(st.tuples(NAMES, st.none() | BYTES), max_size=4).map(tuple)


@given(BYTES, HEADERS)
def test_headers_carry_any_bytes(key: bytes, headers: tuple[tuple[str, bytes | None], ...]) -> None:
    sent = {"record-key": header_text(key)}
    if headers:
        sent["record-header"] = header_list(headers)
    assert all(text.isascii() and text == text.strip() for text in sent.values())
    found = parse_record_fields(sent)
    assert found is not None
    assert (found.key, found.headers) == (key, headers)


@given(
    st.lists(
        st.tuples(st.none() | BYTES, st.none() | BYTES, HEADERS, st.integers(0, 2**40)), min_size=1
    )
)
def test_a_body_of_whole_records_carries_any_bytes(
    rows: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]],
) -> None:
    sent = [NewRecord(value=v, key=k, headers=h, timestamp=t) for k, v, h, t in rows]
    batch = parse_batch(records_body(sent, "text/plain"), 5, is_json=False)
    assert batch is not None
    found = [(r.key, r.value, r.headers, r.timestamp) for r in records_of(batch.payload)]
    assert found == rows
    assert batch.record_time_ms_max == max(time for *_, time in rows)


def test_values_of_json_and_times_are_encoded() -> None:
    time = datetime(2026, 11, 1, tzinfo=UTC)
    body = records_body([NewRecord(value={"a": 1}, timestamp=time), [2]], "application/json")
    assert body == b'[{"value":{"a":1},"timestamp":1793491200000},{"value":[2]}]'
    with pytest.raises(ValueError, match="time zone"):
        records_body([NewRecord(timestamp=datetime(2026, 11, 1))], "")  # noqa: DTZ001
    with pytest.raises(TypeError):
        records_body([7], "text/plain")


def test_threads_decode_pages_with_the_same_decoders() -> None:
    """Escaped text and base64 need room of the decoder's own."""

    def decoded(thread: int) -> bool:
        for number in range(200):
            text = f'é "{thread}"\n{number}' * 3
            shown = {
                "offset": number,
                "timestamp": thread,
                "key": {"$base64": b64encode(text.encode()).decode()},
                "headers": [["h", text]],
                "value": {"v": text},
            }
            raws = split_array(json.dumps([shown, shown]).encode(), "a page")
            whole = [whole_record(raw) for raw in raws]
            if [each.key_bytes for each in whole] != [text.encode()] * 2:
                return False
            if any(each.header_pairs != (("h", text.encode()),) for each in whole):
                return False
            if json.loads(encode(json.loads(whole[1].data(as_json=True)))) != shown["value"]:
                return False
        return True

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as threads:
            assert all(threads.map(decoded, range(6)))
    finally:
        sys.setswitchinterval(before)
