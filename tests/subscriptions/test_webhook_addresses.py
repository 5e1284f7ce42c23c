"""What a webhook may call: nothing private, whatever name or spelling leads there (R141)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from receiver import receiver

from polynya.service.subscriptions.webhooks import Rejected, Webhooks

REJECTED = [
    "http://10.0.0.1/hook",
    "http://example.com/hook",
    "https://10.0.0.1/hook",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data",
    "https://100.64.0.1/",
    "https://127.0.0.1/",
    "https://localhost/",
    "https://0.0.0.0/",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://[::1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[64:ff9b::a00:1]/",
    "https://[fd00::1]/",
    "https://[fe80::1]/",
    "https://224.0.0.1/",
    "https://user:secret@8.8.8.8/",
    "ftp://8.8.8.8/",
    "https://",
    "no url",
    "https://8.8.8.8/" + "x" * 3000,
    "https://" + "a" * 64 + ".example/",  # no name: the resolver does not take it …
    "https://hook..example/",
    "https://xn--/",
    "https://8.8.8.8:65536/",  # … or no socket
    "https://8.8.8.8:0/",
    "https://8.8.8.8:-1/",
]


@pytest.mark.parametrize("url", REJECTED)
def test_rejected(url: str) -> None:
    with pytest.raises(Rejected):
        asyncio.run(_check(url, allow_loopback=True))


@pytest.mark.parametrize("url", ["https://8.8.8.8/hook", "https://[2606:4700::1111]:8443/", "http://127.0.0.7:1/", "http://localhost/"])
def test_allowed(url: str) -> None:
    asyncio.run(_check(url, allow_loopback=True))


def test_a_server_that_others_reach_calls_nothing_on_its_own_machine() -> None:
    with pytest.raises(Rejected, match="https"):
        asyncio.run(_check("http://127.0.0.1:1/", allow_loopback=False))


def test_a_name_that_moves_to_a_private_address_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is asked for once per delivery, checked, and that one is called."""

    async def story() -> None:
        async def resolve(self: Any, host: str, port: int, **more: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

        answers = ["8.8.8.8", "127.0.0.1"]
        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", resolve)
        webhooks = Webhooks(allow_loopback=True)
        await webhooks.check("https://moves.example/hook")
        outcome = await webhooks.post("https://moves.example/hook", b"{}", {}, 1.0)
        assert not outcome.taken and "Rejected" in outcome.reason and not answers

    asyncio.run(story())


def test_what_a_receiver_says_is_bounded_and_may_be_nonsense() -> None:
    async def story() -> None:
        async with receiver() as hook:
            webhooks = Webhooks(allow_loopback=True)
            for said, done in (
                (b'{"done":true}', True),
                (b'{"done":1}', False),
                (b"[[[", False),
                (b'{"x":' + b"[" * 50_000, False),
                (b'{"done":true,"x":"' + b"x" * 70_000 + b'"}', False),
            ):
                hook.answers = [(202, said, "")]
                outcome = await webhooks.post(hook.url, b"{}", {}, 5.0)
                assert (outcome.taken, outcome.done) == (True, done)
            hook.answers = [(301, b"", "Location: http://127.0.0.1:1/\r\n")]
            outcome = await webhooks.post(hook.url, b"{}", {}, 5.0)
            assert not outcome.taken and "301" in outcome.reason
            await webhooks.close()

    asyncio.run(story())


def test_a_receiver_that_does_not_answer_is_given_up() -> None:
    async def story() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        outcome = await Webhooks(allow_loopback=True).post(url, b"{}", {}, 0.05)
        server.close()
        assert not outcome.taken and "no answer" in outcome.reason

    asyncio.run(story())


async def _check(url: str, *, allow_loopback: bool) -> None:
    await Webhooks(allow_loopback=allow_loopback).check(url)
