"""docs/subscriptions.md against the server: its error codes, its shapes, and the code that checks a
signature."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from polling import wait_for
from receiver import receiver
from worlds.subscriptions import shell

from polynya.base import limits

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "subscriptions.md").read_text("utf-8")
SOURCES = [
    *(ROOT / "src/polynya/subscriptions").glob("*.py"),
    ROOT / "src/polynya/front/http/api/subscriptions.py",
]


def block(kind: str, word: str) -> str:
    """Return the page's block of code with `word` in it."""
    (found,) = [
        code for code in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) if word in code
    ]
    return str(found)


def test_the_errors_are_those_that_the_server_answers() -> None:
    documented = {
        (code, int(status))
        for code, status in re.findall(r"^\| `([A-Z_]+)` \| (\d{3}) \|", PAGE, re.MULTILINE)
    }
    source = "".join(path.read_text("utf-8") for path in SOURCES)
    answered = {
        (code, int(status))
        for status, code in re.findall(r'refuse\(\s*(\d{3}),\s*"([A-Z_]+)"', source)
    }
    assert len(answered) > 12
    assert documented == answered


def test_the_numbers_are_the_limits() -> None:
    for number in (
        limits.SUBSCRIPTION_STREAMS_MAX,
        limits.SUBSCRIPTION_LINKS_SHOWN,
        limits.SUBSCRIPTIONS_PER_GROUP_MAX,
        limits.WEBHOOK_URL_BYTES_MAX,
        limits.SUBSCRIPTION_ID_BYTES_MAX,
    ):
        assert f"{number:,}" in PAGE


def test_shapes_and_signatures_are_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(block("python", "def check"))
    check: Callable[..., None] = runpy.run_path(str(tmp_path / "check.py"))["check"]
    config: dict[str, Any] = json.loads(block("json", '"pattern": "orders/*",\n  "streams"'))

    async def story() -> None:
        async with receiver() as hook, shell() as node:
            status, made = await node.put("receipts", **{**config, "webhook": {"url": hook.url}})
            assert status == 201
            assert made.keys() == json.loads(block("json", '"explicit_streams"')).keys()
            await node.world.create("default/audit")
            await node.world.append("default/audit", b"one")
            received = await hook.next()
            wake, example = received.wake, json.loads(block("json", '"callback_token"'))
            assert wake.keys() == example.keys()
            assert wake["streams"][0].keys() == example["streams"][0].keys()  # type: ignore[index]
            jwks = (await node.respond("GET", "jwks.json")).body.decode()
            signature = received.headers["webhook-signature"]
            check(signature, received.body, jwks)
            with pytest.raises(InvalidSignature):
                check(signature, received.body + b" ", jwks)
            with pytest.raises(ValueError, match="too old"):
                check(signature.replace("t=1", "t=0", 1), received.body, jwks)
            await node.put("workers", type="pull-wake", streams=["jobs"], wake_stream="wakes")
            await node.world.create("default/wakes", json=True)
            await node.world.create("default/jobs")
            await node.world.append("default/jobs", b"one")
            announced = await wait_for(lambda: node.world.read("default/wakes"))
            assert (
                json.loads(announced.rstrip(b",")).keys()
                == json.loads(block("json", '"type": "wake"')).keys()
            )
            status, claimed = await node.ask(
                "POST", "subscriptions/workers/claim", {"worker": "w1"}
            )
            example = json.loads(
                block("json", '"lease_ttl_ms": 30000, "streams": [{"path": "jobs/7"')
            )
            assert status == 200 and claimed.keys() == example.keys()

    asyncio.run(story())
