"""Routing of a client: to the owner that a response names if the cluster also names it, and
elsewhere when a node is down."""

from __future__ import annotations

import pytest

from polynya.client import Client
from polynya.client.routing import ASK_SECONDS, AVOID_SECONDS, NodeRouter, server_list

A, B, C = "http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1"
S, T = "/v1/stream/s", "/v1/stream/t"


def ok(owner: str = "") -> tuple[int, dict[str, str]]:
    return 200, {"stream-owner": owner} if owner else {}


def learn_owner(
    router: NodeRouter, owner: str, *nodes: str, via: str = A, now: float = 0.0
) -> None:
    """An answer named an owner, and the nodes were asked for if the router wanted that."""
    if router.on_answer(via, S, ok(owner), now):
        router.met(nodes)
        router.on_answer(via, S, ok(owner), now)


def test_the_owner_that_the_cluster_names_is_asked_first_and_for_its_stream_alone() -> None:
    router = NodeRouter([A], with_token=False)
    assert router.ways(S, 0) == [A]
    learn_owner(router, B, A, B, C)
    assert router.ways(f"{S}?offset=-1", 0) == [B, A, C] and router.owns(B, f"{S}/retention")
    assert router.ways(T, 0) == [A, B, C], "all that are known, one after the other"
    assert router.ways(f"{S}?offset=-1&consistency=local", 0)[0] == A, (
        "what the asked node has is what was asked for"
    )
    assert not router.on_answer(B, S, ok(C), 1.0)
    assert router.ways(S, 1)[0] == C, "the lead went on, and known nodes need no look"


@pytest.mark.parametrize(
    ("server", "hint"),
    [
        ("https://a:1", "http://b:1"),  # in the open
        ("http://a:1", "https://b:1"),
        ("http://127.0.0.1:1", "http://b:1"),  # the token was sent within this machine
        (A, "http://u@b:1"),
        (A, "ftp://b"),
        (A, "nonsense"),
    ],
)
def test_a_token_does_not_follow_a_hint_to_where_it_was_not_safe_to_send_it(
    server: str, hint: str
) -> None:
    router = NodeRouter([server], with_token=True)
    assert not router.on_answer(server, S, ok(hint), 0)
    router.met([hint])
    router.on_answer(server, S, ok(hint), 0)
    assert router.ways(S, 0) == [server]


def test_a_hint_to_a_host_that_the_cluster_does_not_name_is_not_followed_nor_asked_about_all_the_time() -> (
    None
):
    router = NodeRouter([A], with_token=True)
    learn_owner(router, "http://evil:1", A, B)
    assert router.ways(S, 0) == [A, B]
    assert not router.on_answer(A, S, ok("http://evil:1"), ASK_SECONDS - 1)
    assert router.on_answer(A, S, ok("http://evil:1"), ASK_SECONDS + 1)


def test_a_node_that_is_away_comes_last_for_a_while_and_longer_each_time() -> None:
    router = NodeRouter([A, B], with_token=False)
    learn_owner(router, B)
    router.on_answer(B, S, None, 0.0)
    assert router.ways(S, AVOID_SECONDS - 0.1) == [A, B] and router.ways(S, AVOID_SECONDS) == [A, B]
    learn_owner(router, B, now=10)
    assert router.ways(S, 10.0) == [B, A]
    router.on_answer(B, S, (503, {}), 10.0)
    assert router.ways(T, 10.0 + 1.5 * AVOID_SECONDS) == [A, B], "the second time it is for longer"
    router.on_answer(B, T, ok(), 20.0)
    router.on_answer(B, T, None, 20.0)
    assert router.ways(T, 20.0 + AVOID_SECONDS) == [A, B], "an answer makes that good"


def test_servers_are_one_or_several() -> None:
    assert (
        server_list("a:1, b:2/,http://a:1")
        == ["http://a:1", "http://b:2"]
        == server_list(["a:1", "http://b:2"])
    )
    with Client(["http://a:1", "http://b:1"]) as client:
        assert client.server == "http://a:1"
    with pytest.raises(ValueError, match="all https or all http"):
        Client("http://a:1,https://b:1")
    with pytest.raises(ValueError, match="server's URL"):
        Client("")
