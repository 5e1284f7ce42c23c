"""Paths that need no access token: an id or a stream with the name of a verb does not make one."""

from __future__ import annotations

import pytest

from polynya.front.http.auth.authorization import is_open


@pytest.mark.parametrize("root", ["/v1/stream/__ds", "/v1/streams/__ds"])
@pytest.mark.parametrize("verb", ["callback", "ack", "release", "retry"])
def test_only_a_workers_request_has_the_token_of_its_wake(root: str, verb: str) -> None:
    assert is_open(f"{root}/subscriptions/x/{verb}") and is_open(
        f"{root}/subscriptions/a%2Fb/{verb}"
    )
    for path in (
        f"subscriptions/{verb}",
        f"subscriptions/x/streams/{verb}",
        f"subscriptions/x/streams/a/{verb}",
        f"subscriptions/x%2F{verb}",
        f"other/x/{verb}",
    ):
        assert not is_open(f"{root}/{path}"), path
    assert not is_open(f"/v1/stream/x/{verb}") and not is_open(f"{root}/subscriptions/x/claim")
