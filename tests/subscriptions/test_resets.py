"""Resets of cursors: what moves, who is fenced, and what is refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from test_retries import PULL, begun, claimed, code, given_back, story
from worlds.subscriptions import Shell

from polynya.base.errors import UpgradePending
from polynya.base.offsets import parse_token
from polynya.local.api import Refusal, TrimQuery
from polynya.local.local import LocalGroups

START = "0000000000000000_0000000000000000"


async def reset(node: Shell, to: str, **more: Any) -> tuple[int, Any]:
    return await node.ask("POST", "subscriptions/s/reset", {"to": to, **more})


async def cursors(node: Shell) -> dict[str, tuple[str, int]]:
    """The acknowledged offset and the lag of each stream."""
    status, shown = await node.ask("GET", "subscriptions/s")
    assert status == 200
    return {link["path"]: (link["acked_offset"], link["lag"]) for link in shown["streams"]}


async def acknowledged(node: Shell, offset: str) -> None:
    claim = await claimed(node)
    body = {
        "wake_id": claim["wake_id"],
        "generation": claim["generation"],
        "acks": [{"stream": "test/a", "offset": offset}],
        "done": True,
    }
    status, _ = await node.ask("POST", "subscriptions/s/ack", body, claim["token"])
    assert status == 200


@story
async def test_a_cursor_moves_forward_and_back(node: Shell) -> None:
    one, two, three = await begun(node, PULL, b"1", b"2", b"3")
    assert await cursors(node) == {"test/a": (START, 3)}
    await acknowledged(node, two)
    assert await cursors(node) == {"test/a": (two, 1)}
    status, answer = await reset(node, "earliest")
    assert status == 200
    assert answer == {
        "dry_run": False,
        "streams": [
            {
                "path": "test/a",
                "from_offset": two,
                "to_offset": START,
                "from_lag": 1,
                "to_lag": 3,
            }
        ],
        "unchanged": 0,
    }
    assert await cursors(node) == {"test/a": (START, 3)}
    claim = await claimed(node)
    assert claim["streams"][0]["acked_offset"] == START and claim["streams"][0]["has_pending"]
    await node.ask(
        "POST",
        "subscriptions/s/release",
        {"wake_id": claim["wake_id"], "generation": claim["generation"]},
        claim["token"],
    )
    assert (await reset(node, one, streams=["test/a"]))[0] == 200
    assert await cursors(node) == {"test/a": (one, 2)}
    assert (await reset(node, "latest"))[0] == 200
    assert await cursors(node) == {"test/a": (three, 0)}
    refused = await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})
    assert code(refused) == (409, "NO_PENDING_WORK")
    same = (await reset(node, "latest"))[1]
    assert (same["streams"], same["unchanged"]) == ([], 1)


@story
async def test_a_dry_run_changes_nothing(node: Shell) -> None:
    _, two, _ = await begun(node, PULL, b"1", b"2", b"3")
    claim = await claimed(node)
    before = await cursors(node)
    status, answer = await reset(node, two, streams=["test/a"], dry_run=True)
    assert (status, answer["dry_run"], answer["streams"][0]["to_lag"]) == (200, True, 1)
    assert await cursors(node) == before
    body = {"wake_id": claim["wake_id"], "generation": claim["generation"], "acks": []}
    assert (await node.ask("POST", "subscriptions/s/ack", body, claim["token"]))[0] == 200


@story
async def test_a_worker_keeps_its_work_unless_it_is_taken_away(node: Shell) -> None:
    _, _, three = await begun(node, PULL, b"1", b"2", b"3")
    claim = await claimed(node)
    refused = await reset(node, "latest")
    assert code(refused) == (409, "ALREADY_CLAIMED")
    assert "the worker w has the work" in refused[1]["error"]["message"]
    assert await cursors(node) == {"test/a": (START, 3)}
    assert (await reset(node, "latest", force=True))[0] == 200
    body = {
        "wake_id": claim["wake_id"],
        "generation": claim["generation"],
        "acks": [{"stream": "test/a", "offset": three}],
    }
    late = await node.ask("POST", "subscriptions/s/ack", body, claim["token"])
    assert code(late) == (409, "FENCED")


@story
async def test_a_time_is_that_of_the_append(node: Shell) -> None:
    await begun(node, PULL, b"1")
    began_ms = node.world.clock.ms
    node.world.clock.ms += 60_000
    await node.world.append("test/a", b"2", json=True)
    for to, lag in ((str(began_ms), 2), ("30s", 1), (str(began_ms + 60_001), 0)):
        assert (await reset(node, to))[0] == 200
        assert (await cursors(node))["test/a"][1] == lag, to


@story
async def test_a_trimmed_stream_begins_where_it_is_kept(node: Shell) -> None:
    one, two, _ = await begun(node, PULL, b"1", b"2", b"3")
    await acknowledged(node, two)
    trimmed = await node.world.service.trim(TrimQuery("test/a", *parse_token(one) or ()))
    assert not isinstance(trimmed, Refusal)
    for to in (START, "earliest"):
        assert (await reset(node, to, streams=["test/a"]))[0] == 200
        assert await cursors(node) == {"test/a": (one, 2)}
        assert (await reset(node, "latest"))[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "error", "text"),
    [
        ({"to": "yesterday"}, 400, "INVALID_REQUEST", "expected earliest, latest"),
        ({}, 400, "INVALID_REQUEST", "to"),
        ({"to": "earliest", "dryrun": True}, 400, "INVALID_REQUEST", "dryrun"),
        ({"to": START}, 400, "INVALID_REQUEST", "one stream"),
        ({"to": START, "streams": ["test/a", "test/b"]}, 400, "INVALID_REQUEST", "one stream"),
        ({"to": "earliest", "streams": ["test/b"]}, 404, "STREAM_NOT_LINKED", "test/b"),
        (
            {"to": "0000000000000009_0000000000000099", "streams": ["test/a"]},
            409,
            "INVALID_OFFSET",
            "beyond the tail",
        ),
    ],
)
def test_a_wrong_reset_moves_nothing(
    body: dict[str, Any], status: int, error: str, text: str
) -> None:
    async def tell(node: Shell) -> None:
        await begun(node, PULL, b"1")
        refused = await node.ask("POST", "subscriptions/s/reset", body)
        assert code(refused) == (status, error)
        assert text in refused[1]["error"]["message"]
        assert await cursors(node) == {"test/a": (START, 1)}
        assert (await node.ask("GET", "subscriptions/s/reset"))[0] == 405
        missing = await node.ask("POST", "subscriptions/none/reset", {"to": "latest"})
        assert code(missing) == (404, "SUBSCRIPTION_NOT_FOUND")

    story(tell)()


@story
async def test_an_older_cluster_refuses_it(node: Shell) -> None:
    await begun(node, PULL, b"1")
    with patch.object(LocalGroups, "level", 3), pytest.raises(UpgradePending):
        await reset(node, "latest")


@story
async def test_a_reset_ends_the_pause_after_a_failed_record(node: Shell) -> None:
    """Check a wake that waits for the end of the pause, and an idle subscription."""
    one, two = await begun(node, PULL, b"1", b"2")
    failed = {"stream": "test/a", "offset": one, "after_ms": 60_000, "error": "boom"}
    assert (await given_back(node, await claimed(node), **failed))[0] == 200
    assert (await reset(node, "earliest"))[0] == 200
    claim = await claimed(node)
    assert claim["failure"] is None
    assert (await given_back(node, claim, **failed))[0] == 200
    trimmed = await node.world.service.trim(TrimQuery("test/a", *parse_token(two) or ()))
    assert not isinstance(trimmed, Refusal)
    refused = await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})
    assert code(refused) == (409, "NO_PENDING_WORK")
    shown = (await node.ask("GET", "subscriptions/s"))[1]
    assert (shown["state"], shown["failure"]["attempts"]) == ("idle", 1)
    assert (await reset(node, "latest"))[0] == 200
    assert (await node.ask("GET", "subscriptions/s"))[1]["failure"] is None
    await node.world.append("test/a", b"3", json=True)
    assert (await claimed(node))["failure"] is None
