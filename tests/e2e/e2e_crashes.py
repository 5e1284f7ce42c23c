"""Load during a node's crash: writers, tailing readers, flushes. Each keeps a ledger of promises,
checked afterwards."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from e2e_world import JSON, Answer, Client, Lost, World
from polling import wait_until

BATCH = 3  # records of an append: a half batch would show


class Worker(threading.Thread):
    """A worker that repeats `step` until it is stopped. `finish` raises its error."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.stopping = threading.Event()
        self.promised = 0  # acknowledged steps
        self._client: Client | None = None
        self._url = ""
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
        except BaseException as error:
            self._error = error
        finally:
            if self._client is not None:
                self._client.close()

    def finish(self) -> None:
        self.stopping.set()
        self.join(60)
        assert not self.is_alive(), f"{self.name} hangs"
        if self._error is not None:
            raise self._error

    def step(self) -> None:
        raise NotImplementedError

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Answer | None:
        """Send a request. None: the outcome is unknown, also by a 503 that reports it."""
        if self._client is None or self._url != self.world.url:
            if self._client is not None:
                self._client.close()
            self._url = self.world.url
            self._client = Client(self._url)
        try:
            answer = self._client.ask(method, path, body, **headers)
        except Lost:
            self.stopping.wait(0.02)
            return None
        assert answer.status < 500 or answer.status == 503, answer
        if answer.status == 503:
            assert answer.headers["stream-outcome"] in ("unknown", "refused"), answer
            self.stopping.wait(0.02)
            return None
        return answer

    def until(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Answer | None:
        """Repeat an idempotent request until it is answered."""
        while not self.stopping.is_set():
            if (answer := self.ask(method, path, body, **headers)) is not None:
                return answer
        return None

    def created(self, name: str) -> bool:
        answer = self.until("PUT", f"/v1/stream/{name}", **JSON)
        assert answer is None or answer.status in (200, 201), answer
        return answer is not None


def batch(number: int, pad: str = "") -> bytes:
    return json.dumps([[number, part, pad] for part in range(BATCH)]).encode()


def numbers(records: list[Any]) -> list[int]:
    """Return the batch numbers of a stream, in order; assert that every batch is whole and
    contiguous."""
    assert len(records) % BATCH == 0, f"a half batch at the end: {str(records[-2 * BATCH :])[:500]}"
    found = []
    for first in range(0, len(records), BATCH):
        whole = records[first : first + BATCH]
        assert whole == [[whole[0][0], part, whole[0][2]] for part in range(BATCH)], (
            f"a half batch: {str(whole)[:500]}"
        )
        found.append(whole[0][0])
    return found


class PlainWriter(Worker):
    """A writer that never repeats: each acknowledged number is stored once, any other at most
    once."""

    def __init__(self, world: World, stream: str, pad: str = "") -> None:
        super().__init__(world)
        self.stream = stream
        self.pad = pad
        self.acknowledged: list[int] = []
        self._next = 0
        self._made = False

    def step(self) -> None:
        if not self._made:
            self._made = self.created(self.stream)
            return
        number = self._next
        self._next += 1
        answer = self.ask("POST", f"/v1/stream/{self.stream}", batch(number, self.pad), **JSON)
        if answer is not None:
            assert answer.status == 204, answer
            self.acknowledged.append(number)
            self.promised += 1

    def check(self) -> None:
        found = numbers(self.world.records(self.stream))
        assert found == sorted(set(found)), f"{self.stream}: out of order or twice"
        lost = set(self.acknowledged) - set(found)
        assert not lost, (
            f"{self.stream}: acknowledged and lost: {sorted(lost)[:10]} of {len(self.acknowledged)}"
        )


class Producer(Worker):
    """Repeats until it is acknowledged: exactly once, without a gap."""

    def __init__(self, world: World, stream: str) -> None:
        super().__init__(world)
        self.stream = stream
        self._made = False

    def step(self) -> None:
        if not self._made:
            self._made = self.created(self.stream)
            return
        named = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": str(self.promised)}
        answer = self.until(
            "POST", f"/v1/stream/{self.stream}", batch(self.promised), **JSON, **named
        )
        if answer is not None:
            assert answer.status in (200, 204), answer
            self.promised += 1

    def check(self) -> None:
        found = numbers(self.world.records(self.stream))
        assert found in (list(range(self.promised)), list(range(self.promised + 1))), (
            f"{self.stream}: {self.promised} promised"
        )


class Lives(Worker):
    """A worker that creates streams with content, closes some, deletes some, and records
    acknowledgements of each."""

    def __init__(self, world: World, prefix: str) -> None:
        super().__init__(world)
        self.prefix = prefix
        self.states: dict[str, str] = {}
        self._next = 0

    def step(self) -> None:
        name = f"{self.prefix}/{self._next}"
        kind = ("open", "closed", "deleted")[self._next % 3]
        self._next += 1
        created = self.ask("PUT", f"/v1/stream/{name}", batch(7), **JSON)
        if created is None:
            return
        assert created.status == 201, created
        self.states[name] = "open"
        self.promised += 1
        if kind == "open":
            return
        self.states[name] = f"{kind}?"
        if kind == "closed":  # noqa: SIM108
            answer = self.ask("POST", f"/v1/stream/{name}", Stream_Closed="true")
        else:
            answer = self.ask("DELETE", f"/v1/stream/{name}")
        if answer is not None:
            assert answer.status == 204, answer
            self.states[name] = kind
            self.promised += 1

    def check(self) -> None:
        with contextlib.closing(self.world.connect()) as client:
            for name, state in self.states.items():
                head = client.ask("HEAD", f"/v1/stream/{name}")
                if state in ("deleted", "deleted?") and head.status == 404:
                    continue
                assert head.status == 200 and state != "deleted", (name, state, head)
                assert state != "closed" or head.headers.get("stream-closed") == "true", (
                    name,
                    head,
                )
                assert state != "open" or "stream-closed" not in head.headers, (name, head)
                assert numbers(
                    json.loads(client.ask("GET", f"/v1/stream/{name}?offset=-1").body)
                ) == [7]


class Tail(Worker):
    """A reader that follows a growing stream and resumes at its position. Its data is a prefix of
    the final content."""

    def __init__(self, world: World, stream: str) -> None:
        super().__init__(world)
        self.stream = stream
        self.seen: list[Any] = []
        self._offset = "-1"

    def took(self, records: list[Any], offset: str) -> None:
        self.seen += records
        self._offset = offset
        self.promised += bool(records)

    def check(self) -> None:
        found = self.world.records(self.stream)
        assert self.seen == found[: len(self.seen)], (
            f"{self.stream}: a reader saw what is not there"
        )


class LongPollTail(Tail):
    def step(self) -> None:
        answer = self.ask("GET", f"/v1/stream/{self.stream}?offset={self._offset}&live=long-poll")
        if answer is None or answer.status == 404:
            self.stopping.wait(0.02)
        elif answer.status == 200:
            self.took(json.loads(answer.body), answer.next_offset)
        else:
            assert answer.status == 204, answer
            self._offset = answer.next_offset


class SseTail(Tail):
    def step(self) -> None:
        import http.client

        connection = http.client.HTTPConnection(self.world.url.removeprefix("http://"), timeout=5)
        try:
            connection.request("GET", f"/v1/stream/{self.stream}?offset={self._offset}&live=sse")
            response = connection.getresponse()
            if response.status == 200:
                self._follow(response)
            else:
                assert response.status in (404, 503), response.status
                self.stopping.wait(0.02)
        except (OSError, http.client.HTTPException, ValueError):
            self.stopping.wait(0.02)
        finally:
            connection.close()

    def _follow(self, response: Any) -> None:
        kind, data = "", ""
        waiting: list[Any] = []
        while not self.stopping.is_set() and (line := response.readline()):
            text = line.decode().rstrip("\n")
            if text.startswith("event:"):
                kind, data = text[6:].strip(), ""
            elif text.startswith("data:"):
                data += text[5:]
            elif not text and kind == "data":
                waiting = json.loads(data)
                kind = ""
            elif not text and kind == "control":
                self.took(waiting, json.loads(data)["streamNextOffset"])
                waiting, kind = [], ""


class Flushes(Worker):
    """Everything becomes cold again and again."""

    def step(self) -> None:
        with contextlib.suppress(Lost):
            answer = self.world.flush()
            assert answer.status in (200, 503), answer
            self.promised += answer.status == 200
        self.stopping.wait(0.1)


class Progress:
    """Waits for workers and raises their errors."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def __call__(self, count: int) -> None:
        """Wait until the workers have that many more acknowledgements in total."""
        goal = self._total() + count
        self._wait(lambda: self._total() >= goal, f"{count} acknowledgements")

    def of_each(self) -> None:
        """Wait until each worker has an acknowledgement."""
        self._wait(
            lambda: all(worker.promised for worker in self._workers),
            "something acknowledged to each",
        )

    def _total(self) -> int:
        return sum(worker.promised for worker in self._workers)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            for worker in self._workers:
                if not worker.is_alive():
                    worker.finish()
            return condition()

        try:
            wait_until(look, what=what, seconds=120, pause=0.005)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; promised: "
                f"{[(type(one).__name__, one.promised) for one in self._workers]}"
            ) from error


@contextlib.contextmanager
def at_work(workers: list[Worker]) -> Iterator[Progress]:
    """Run them; at the end they are stopped."""
    for worker in workers:
        worker.start()
    try:
        yield Progress(workers)
    except BaseException:
        for worker in workers:
            worker.stopping.set()
        raise
    for worker in workers:
        worker.stopping.set()
    for worker in workers:
        worker.finish()
