"""Messages about table jobs take the uids of all groups."""

from __future__ import annotations

import msgspec
import pytest

from polynya.base.limits import GROUPS_MAX
from polynya.wire.tables import FailedRange, FailRequest


def request(uid: object) -> bytes:
    failed = {"stream": "a", "uid": uid, "record": 0, "records": 1, "pack": "p", "offset": 0}
    ranges = [failed | {"reason": "damaged"}]
    return msgspec.json.encode({"uid": "1", "job": 1, "attempt": "a", "ranges": ranges})


@pytest.mark.parametrize("group", [1, 31, 32, 64, GROUPS_MAX])
def test_the_uids_of_all_groups_are_taken(group: int) -> None:
    uid = group << 48 | (1 << 48) - 1
    read = msgspec.json.decode(request(uid), type=FailRequest)
    assert [each.uid for each in read.ranges] == [uid]
    assert isinstance(read.ranges[0], FailedRange)


@pytest.mark.parametrize("uid", [-1, 2**63, 1.5, "1"])
def test_other_numbers_are_refused(uid: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(request(uid), type=FailRequest)
