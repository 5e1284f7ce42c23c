"""kill -9 to a node of two cores: subscriptions, links, leases, tokens and keys are there again,
and pending work is delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from product import running_node
from receiver import receiver

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
JSON = {"content-type": "application/json"}


def test_what_was_acknowledged_before_the_kill_holds_after_it(tmp_path: Path) -> None:
    asyncio.run(_story(tmp_path))


async def _story(folder: Path) -> None:
    async with receiver() as hook, httpx.AsyncClient(timeout=30) as client:
        hook.answers = [(503, b"", "")]
        with running_node(folder / "data", "--cores", "2") as node:
            root = f"{node.url}/v1/stream"
            keys = (await client.get(f"{root}/__ds/jwks.json")).json()
            hooked = {"type": "webhook", "pattern": "jobs/**", "webhook": {"url": hook.url}}
            assert (
                await client.put(f"{root}/__ds/subscriptions/hooked", json=hooked)
            ).status_code == 201
            pulled = {
                "type": "pull-wake",
                "pattern": "jobs/*",
                "wake_stream": "wake/pool",
                "lease_ttl_ms": 600_000,
            }
            assert (
                await client.put(f"{root}/__ds/subscriptions/pulled", json=pulled)
            ).status_code == 201
            await client.put(f"{root}/wake/pool", headers=JSON, content=b"[]")
            for number in range(8):
                await client.put(f"{root}/jobs/{number}", headers=JSON, content=b'{"n":1}')
            await hook.next()
            claimed = await _claim(client, root)
            assert len(claimed["streams"]) == 8
            node.kill()
        hook.answers = [(200, b'{"done":true}', "")]
        with running_node(folder / "data") as node:
            root = f"{node.url}/v1/stream"
            assert (await client.get(f"{root}/__ds/jwks.json")).json() == keys
            await _finish(client, root, claimed)
            async with asyncio.timeout(30):
                while not await _all_acknowledged(client, root):
                    await asyncio.sleep(0.05)


async def _claim(client: httpx.AsyncClient, root: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            answer = await client.post(
                f"{root}/__ds/subscriptions/pulled/claim", json={"worker": "w"}
            )
            if answer.status_code == 200:
                return dict(answer.json())
            await asyncio.sleep(0.02)


async def _finish(client: httpx.AsyncClient, root: str, claimed: dict[str, Any]) -> None:
    """The token and the fence of before the kill are good after it."""
    acks = [{"stream": link["path"], "offset": link["tail_offset"]} for link in claimed["streams"]]
    body = {
        "wake_id": claimed["wake_id"],
        "generation": claimed["generation"],
        "acks": acks,
        "done": True,
    }
    headers = {"authorization": f"Bearer {claimed['token']}"}
    answer = await client.post(f"{root}/__ds/subscriptions/pulled/ack", json=body, headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"ok": True, "next_wake": False})


async def _all_acknowledged(client: httpx.AsyncClient, root: str) -> bool:
    hooked = (await client.get(f"{root}/__ds/subscriptions/hooked")).json()
    assert len(hooked["streams"]) == 8
    return all(link["acked_offset"].startswith("0000000000000001_") for link in hooked["streams"])
