"""A reader's offset: it moves with pages that hold no records, and never past a record that was not
handed out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from operations import END, OPENED, ok, token

from polynya.client import NOW, StreamNotFound
from polynya.client.aio.client import AsyncReader
from polynya.client.blocking.generated.client import Reader
from polynya.client.messages import HttpRequest, HttpResponse, Retry
from polynya.client.reading import Live, ReadPosition, read, tail

JSON = "application/json"
EMPTY = ok(
    200,
    b"[]",
    content_type=JSON,
    stream_next_offset=token(3, 30),
    stream_up_to_date="true",
    stream_incarnation="42",
)
TWO = ok(
    200, b"[10,11]", content_type=JSON, stream_next_offset=token(5, 36), stream_up_to_date="true", stream_closed="true",
    stream_incarnation="42",
)  # fmt: skip
QUIET = ok(204, content_type=JSON, stream_next_offset=token(3, 30), stream_up_to_date="true")


def control(record: int, byte: int) -> bytes:
    return (
        b"event: control\ndata:"
        + json.dumps({"streamNextOffset": token(record, byte), "upToDate": True}).encode()
        + b"\n\n"
    )


class Script:
    """A wire that plays answers; before each it lets the test look at the reader."""

    def __init__(
        self, answers: list[HttpResponse], pieces: list[bytes], look: Callable[[], None]
    ) -> None:
        self._answers = iter(answers)
        self._pieces = iter(pieces)
        self._look = look

    def send(self, _: HttpRequest) -> HttpResponse:
        self._look()
        return next(self._answers)

    def open(self, request: HttpRequest) -> tuple[HttpResponse, Script]:
        return self.send(request), self

    def more(self) -> bytes:
        self._look()
        return next(self._pieces, END)

    def close(self) -> None:
        pass


class AsyncScript:
    """The same without blocking."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def send(self, request: HttpRequest) -> HttpResponse:
        return self._script.send(request)

    async def open(self, request: HttpRequest) -> tuple[HttpResponse, AsyncScript]:
        return self._script.open(request)[0], self

    async def more(self) -> bytes:
        return self._script.more()

    async def close(self) -> None:
        pass


def blocking(
    answers: list[HttpResponse], pieces: list[bytes], live: Live | None
) -> tuple[Any, list[str]]:
    """A reader from now, and its offset before each answer that it waits for."""
    seen: list[str] = []
    position = ReadPosition("s", NOW)
    operation = read(position, Retry()) if live is None else tail(position, Retry(), live)
    reader = Reader(
        Script(answers, pieces, lambda: seen.append(reader.offset)),
        position,
        operation,
        live=live is not None,
    )  # type: ignore[arg-type]
    return reader, seen


class Awaited:
    """An asynchronous reader behind the face of a blocking one."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader
        self._runner = asyncio.Runner()

    @property
    def offset(self) -> str:
        return self._reader.offset

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._next(self._reader)

    def pages(self) -> Iterator[Any]:
        pages = self._reader.pages()
        while True:
            try:
                yield self._next(pages)
            except StopIteration:
                return

    def _next(self, things: AsyncIterator[Any]) -> Any:
        try:
            return self._runner.run(_one(things))
        except StopAsyncIteration:
            raise StopIteration from None


async def _one(things: AsyncIterator[Any]) -> Any:
    return await anext(things)


def asynchronous(
    answers: list[HttpResponse], pieces: list[bytes], live: Live | None
) -> tuple[Any, list[str]]:
    seen: list[str] = []
    position = ReadPosition("s", NOW)
    operation = read(position, Retry()) if live is None else tail(position, Retry(), live)
    wire: Any = AsyncScript(Script(answers, pieces, lambda: seen.append(reader.offset)))
    reader = AsyncReader(wire, position, operation, live=live is not None)
    return Awaited(reader), seen


both = pytest.mark.parametrize("shell", [blocking, asynchronous])


@both
@pytest.mark.parametrize("by", ["records", "pages"])
def test_a_tail_from_now_knows_its_offset_before_the_first_record(shell: Any, by: str) -> None:
    """Saving it and beginning another reader there skips nothing."""
    reader, seen = shell([EMPTY, QUIET, TWO], [], "long-poll")
    things = iter(reader) if by == "records" else reader.pages()
    first = next(things)
    assert seen == [NOW, token(3, 30), token(3, 30)]
    assert first.offset == (token(4, 33) if by == "records" else token(5, 36)) == reader.offset


@both
def test_an_event_without_records_moves_the_offset_too(shell: Any) -> None:
    moved = control(4, 31)  # such as after a trim: nothing to hand out, and further on
    data = b"event: data\ndata:[10]\n\n" + control(5, 34)
    reader, seen = shell([EMPTY, OPENED], [control(3, 30), moved, data], "sse")
    assert next(reader).value == 10
    assert seen == [
        NOW,
        token(3, 30),
        token(3, 30),
        token(3, 30),
        token(4, 31),
    ] and reader.offset == token(5, 34)


@both
def test_a_tail_shows_no_pages_without_records_and_a_read_shows_its_last(shell: Any) -> None:
    reader, _ = shell([EMPTY, QUIET, TWO], [], "long-poll")
    assert [page.values for page in reader.pages()] == [[10, 11]]
    reader, _ = shell([EMPTY], [], None)
    assert [page.up_to_date for page in reader.pages()] == [True] and reader.offset == token(3, 30)


@both
def test_the_offset_stays_before_a_record_that_waits(shell: Any) -> None:
    """Keep the offset before an undelivered record, also when further pages are requested."""
    first = ok(200, b"[1,2]", content_type=JSON, stream_next_offset=token(3, 30))
    reader, _ = shell([first, TWO], [], None)
    assert next(reader).value == 1 and reader.offset == token(2, 28)
    (page,) = reader.pages()
    assert page.values == [10, 11] and reader.offset == token(2, 28)
    assert next(reader).value == 2 and reader.offset == token(5, 36)


@both
def test_a_reader_that_never_heard_of_its_stream_stays_where_it_began(shell: Any) -> None:
    reader, _ = shell([ok(404)], [], "auto")
    with pytest.raises(StreamNotFound):
        next(reader)
    assert reader.offset == NOW
