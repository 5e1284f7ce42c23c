"""Permitted webhook targets: no private address, under any name or spelling."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from receiver import receiver

from polynya.subscriptions.addresses import is_public, special_blocks
from polynya.subscriptions.webhooks import Rejected, Webhooks

PUBLIC = "93.184.215.14"
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
    "https://192.0.0.1/",  # all of 192.0.0.0/24, also what the registry calls reachable inside it …
    "https://192.0.0.8/",
    "https://192.0.0.9/",
    "https://192.0.0.10/",
    "https://192.0.0.170/",
    "https://192.0.0.255/",
    "https://192.88.99.1/",  # … a block that was given back …
    "https://192.88.99.2/",
    "https://198.18.0.1/",
    "https://203.0.113.7/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[64:ff9b:1::1]/",
    "https://[64:ff9b:1:ffff::808:808]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b::c000:9]/",
    "https://[100::1]/",
    "https://[100:0:0:1::1]/",
    "https://[2001::1]/",
    "https://[2001:2::1]/",
    "https://[2001:10::1]/",
    "https://[2001:db8::1]/",
    "https://[2002:a00:1::1]/",
    "https://[2002:808:808::1]/",  # … tunnels, and what says N/A …
    "https://[3fff::1]/",
    "https://[3fff:fff:ffff::1]/",
    "https://[5f00::1]/",
    "https://[::8.8.8.8]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:8.8.8.8]/",
    # … and what no registry of special blocks has, as it is no block of hosts
    "https://[fec0::1]/",
    "https://[4000::1]/",
    "https://[ff02::1]/",
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


@pytest.mark.parametrize(
    "url",
    [
        "https://8.8.8.8/hook",
        "https://[2606:4700::1111]:8443/",
        "https://[64:ff9b::808:808]/",
        "https://[3ffe::1]/",
        "https://[3fff:1000::1]/",
        "https://192.0.1.1/",
        "https://191.255.255.255/",
        "http://127.0.0.7:1/",
        "http://localhost/",
    ],
)
def test_allowed(url: str) -> None:
    asyncio.run(_check(url, allow_loopback=True))


def test_a_server_that_others_reach_calls_nothing_on_its_own_machine() -> None:
    with pytest.raises(Rejected, match="https"):
        asyncio.run(_check("http://127.0.0.1:1/", allow_loopback=False))


def test_a_name_that_moves_to_a_private_address_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        assert sum(webhooks.seconds.counts) == 1, "a failure takes its time too"

    asyncio.run(story())


def test_every_block_of_the_registries_is_judged_at_both_its_ends() -> None:
    blocks = special_blocks()
    assert len(blocks) == 51 and {network.version for network, _ in blocks} == {4, 6}
    for network, reachable in blocks:
        inside = [
            other
            for other, _ in blocks
            if other.version == network.version and other.supernet_of(network) and other != network
        ]
        for address in (network[0], network[-1]):
            if not reachable:
                assert not is_public(address), (network, address)
            elif not inside and network != ipaddress.ip_network("64:ff9b::/96"):
                assert is_public(address), (network, address)


class Trap:
    """A resolver that answers a public address once and a loopback one after that, a listener
    there, and the connections that are tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.tried: list[tuple[str, int]] = []
        self.caught = 0
        loop = asyncio.SelectorEventLoop
        plain_connect, plain_names = loop.sock_connect, loop.getaddrinfo

        async def names(self_: Any, host: Any, port: Any, **more: Any) -> Any:
            if _is_address(host):
                return await plain_names(self_, host, port, **more)
            self.asked.append(host)
            address = PUBLIC if len(self.asked) == 1 else "127.0.0.1"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        async def connect(self_: Any, sock: socket.socket, address: tuple[str, int]) -> None:
            self.tried.append(address[:2])
            if address[0] == PUBLIC:
                raise ConnectionRefusedError(f"{address} is not to be called by a test")
            await plain_connect(self_, sock, address)

        monkeypatch.setattr(loop, "getaddrinfo", names)
        monkeypatch.setattr(loop, "sock_connect", connect)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async def caught(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.caught += 1
            writer.close()

        server = await asyncio.start_server(caught, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()


def test_a_rebound_name_is_called_at_the_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attempt is seen: one connection, to the public address. Asked for the name again, it
    would have gone to this machine."""
    trap = Trap(monkeypatch)

    async def story() -> None:
        async with trap.listening():
            webhooks = Webhooks(allow_loopback=True)
            outcome = await webhooks.post(f"https://moves.example:{trap.port}/hook", b"{}", {}, 5.0)
            await webhooks.close()
            assert not outcome.taken
            assert trap.asked == ["moves.example"]
            assert trap.tried == [(PUBLIC, trap.port)] and trap.caught == 0

    asyncio.run(story())


def test_a_name_that_is_rebound_before_the_delivery_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trap = Trap(monkeypatch)

    async def story() -> None:
        async with trap.listening():
            webhooks = Webhooks(allow_loopback=True)
            url = f"https://moves.example:{trap.port}/hook"
            await webhooks.check(url)
            outcome = await webhooks.post(url, b"{}", {}, 5.0)
            await webhooks.close()
            assert not outcome.taken and "Rejected" in outcome.reason
            assert trap.asked == ["moves.example"] * 2
            assert trap.tried == [] and trap.caught == 0

    asyncio.run(story())


def test_the_trap_catches_a_client_that_asks_for_the_name_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prove that the two tests before this one would have seen it."""
    trap = Trap(monkeypatch)

    async def story() -> None:
        async with trap.listening():
            loop = asyncio.get_running_loop()
            checked = await loop.getaddrinfo("moves.example", trap.port)
            assert checked[0][4][0] == PUBLIC
            async with httpx.AsyncClient(trust_env=False) as client:
                with pytest.raises(httpx.TransportError):
                    await client.post(f"https://moves.example:{trap.port}/hook")
            assert trap.tried == [("127.0.0.1", trap.port)] and trap.caught == 1

    asyncio.run(story())


def _is_address(host: Any) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


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
        assert not outcome.taken and "no response" in outcome.reason

    asyncio.run(story())


async def _check(url: str, *, allow_loopback: bool) -> None:
    await Webhooks(allow_loopback=allow_loopback).check(url)
