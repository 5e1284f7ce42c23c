"""Bodies that are not what a route takes are refused, whatever they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import read_json


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    more: Any = None


def test_what_fits_is_read() -> None:
    assert read_json(b'{"name":"\xc3\xa4"}', Wanted) == Wanted("ä")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"name":1}',
        b'{"name":"a","other":1}',
        b'{"name":"\xff"}',
        b'{"name":"\xed\xa0\x80"}',
    ],
)
def test_what_does_not_is_refused(body: bytes) -> None:
    with pytest.raises(Failure, match="is not valid for this path") as failure:
        read_json(body, Wanted)
    assert failure.value.code == "INVALID_REQUEST"


def test_what_is_too_deep_is_refused() -> None:
    with pytest.raises(Failure, match="nested too deeply"):
        read_json(b'{"name":"a","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Wanted)
