"""The counts of frames: by their headers, wherever the bytes are cut."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.base.limits import H2_CONTROL_FRAMES_MAX, H2_FLOOD_WINDOW_SECONDS, H2_RESETS_MAX
from polynya.wire.http.http2_floods import REASONS, Flood, FrameCounter
from polynya.wire.http.http2_heads import PREFACE


def frame(kind: int, size: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">I", size)[1:] + bytes((kind, flags)) + b"\0\0\0\1" + bytes(size)


PING, RESET, DATA = frame(6, 8), frame(3, 4), frame(0, 100)


def test_the_last_one_allowed_is_allowed_and_the_next_is_a_flood() -> None:
    for one, most, reason in (
        (PING, H2_CONTROL_FRAMES_MAX, "control"),
        (RESET, H2_RESETS_MAX, "resets"),
    ):
        counter = FrameCounter()
        counter.feed(PREFACE + one * most, 0)
        with pytest.raises(Flood) as flood:
            counter.feed(one, 0)
        assert flood.value.reason == reason
        assert reason in REASONS


def test_data_and_answers_are_no_flood() -> None:
    counter = FrameCounter()
    counter.feed(PREFACE + DATA * (2 * H2_CONTROL_FRAMES_MAX), 0)
    for _ in range(3):
        counter.allow(H2_CONTROL_FRAMES_MAX)
        counter.feed(PING * H2_CONTROL_FRAMES_MAX, 0)


def test_a_new_window_of_time_begins_at_zero() -> None:
    counter = FrameCounter()
    counter.feed(PREFACE + RESET * H2_RESETS_MAX, 0)
    counter.feed(RESET * H2_RESETS_MAX, H2_FLOOD_WINDOW_SECONDS)
    with pytest.raises(Flood):
        counter.feed(RESET, H2_FLOOD_WINDOW_SECONDS + 1)


def test_a_frame_that_is_longer_than_announced_is_refused_by_its_header() -> None:
    counter = FrameCounter()
    with pytest.raises(Flood):
        counter.feed(PREFACE + frame(0, 16_385)[:9], 0)
    FrameCounter().feed(PREFACE + frame(0, 16_384), 0)


def test_headers_in_many_parts_are_refused() -> None:
    counter = FrameCounter()
    counter.feed(PREFACE + frame(1, 10) + frame(9, 10) * 7, 0)
    with pytest.raises(Flood):
        counter.feed(frame(9, 10), 0)
    large = FrameCounter()
    with pytest.raises(Flood):
        large.feed(PREFACE + frame(1, 16_384) + frame(9, 16_384) * 4, 0)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.integers(0, 400), max_size=8))
def test_the_counts_are_the_same_wherever_the_bytes_are_cut(points: list[int]) -> None:
    data = PREFACE + PING + DATA + RESET + frame(0) + PING
    cuts = sorted(point for point in points if point <= len(data))
    counter = FrameCounter()
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        counter.feed(data[begin:end], 0)
    assert (counter._control, counter._resets) == (3, 1)
