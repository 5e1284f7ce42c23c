"""Errors reach the callers that wait for a failed producer or reader. A cancelled one leaves
nothing open."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx
import pytest

from polynya.client import Batching, ProducerFailed, Retry
from polynya.client.aio.producer import AsyncProducer
from polynya.client.aio.wire import AsyncWire
from polynya.client.blocking.generated.wire import Wire
from polynya.client.blocking.producer import Producer
from polynya.client.http import options_of
from polynya.client.messages import HttpRequest
from polynya.client.producing import Names

NAMES = Names(stream="s", content_type="application/json", producer_id="p")
OPTIONS = options_of("http://127.0.0.1:1", "", True)
# in which what would otherwise never end has ended, on a machine that has much else to do
SECONDS = 60.0


def test_a_client_that_is_closed_before_its_producer_does_not_leave_it_waiting():
    async def story() -> None:
        wire = AsyncWire(OPTIONS)
        await wire.close()
        producer = AsyncProducer(wire, NAMES, Batching(), Retry())
        receipt = await producer.append(1)
        async with asyncio.timeout(SECONDS):
            for pending in (producer.flush(), producer.close(), receipt):
                with pytest.raises(ProducerFailed, match=r"the producer failed: .*closed"):
                    await pending

    asyncio.run(story())


@pytest.mark.timeout(60)
def test_nor_does_a_blocking_one():
    wire = Wire(OPTIONS)
    wire.close()
    producer = Producer(wire, NAMES, Batching(), Retry())
    receipt = producer.append(1)
    for call in (producer.flush, producer.close, receipt.result):
        with pytest.raises(ProducerFailed, match=r"the producer failed: .*closed"):
            call()


def test_a_close_that_is_cancelled_does_not_wait_for_the_server():
    class Silent:
        async def send(self, request: HttpRequest) -> None:
            asked.set()
            await asyncio.Event().wait()

    asked = asyncio.Event()

    async def story() -> None:
        producer = AsyncProducer(Silent(), NAMES, Batching(), Retry())
        receipt = await producer.append(1)
        closing = asyncio.create_task(producer.close())
        async with asyncio.timeout(SECONDS):
            await asked.wait()
            await asyncio.sleep(0)  # a busy machine has sent before the task begins to close
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(ProducerFailed, match="abandoned"):
                await receipt
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(story())


def test_an_opened_answer_is_closed_when_its_reader_is_cancelled_before_it_has_it():
    opened: list[httpx.Response] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/node":
            asked.set()
            await asyncio.Event().wait()
        opened.append(httpx.Response(200, stream=Endless()))
        return opened[0]

    class Endless(httpx.AsyncByteStream):
        closed = False

        async def __aiter__(self):
            yield b"x"

        async def aclose(self):
            Endless.closed = True

    asked = asyncio.Event()

    async def story() -> None:
        wire = AsyncWire(OPTIONS)
        wire._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        wire.router = SimpleNamespace(
            ways=lambda *_: list(OPTIONS.servers), owns=lambda *_: False, on_answer=lambda *_: True
        )
        opening = asyncio.create_task(wire.open(HttpRequest("GET", "/v1/stream/s")))
        async with asyncio.timeout(SECONDS):
            await asked.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        assert Endless.closed
        await wire.close()

    asyncio.run(story())
