"""The TypeScript client in a page of another origin than the node's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from chromium import Browser, browser
from fault_proxy import Faults
from node_js import node
from package_cache import built
from survivor import Guarded
from test_typescript_package import CLIENT, build

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

STORY = """import("/index.js").then(async ({ Client, ConditionFailed, NewRecord, Trimmed }) => {
  const server = new Client(%r, { token: %r })
  const token = () => server.mintToken({ prefix: "page/", verbs: ["read", "append", "create"] })
  const client = new Client(%r, { token })
  const [a, b] = [client.stream("page/a"), client.stream("page/b")]
  await a.create()
  await b.create({ contentType: "application/octet-stream" })
  const many = client.tailMany([a.name, b.name])
  const all = async (reader) => {
    const found = []
    for await (const record of reader) if (record.stream === a.name) found.push(record.value)
    return found
  }
  const followed = [all(a.tail()), all(many)]
  const producer = await a.producer({ id: "page", batchRecords: 10 })
  for (let number = 0; number < 100; number += 1) await producer.append(number)
  await producer.flush()
  const { offset } = await a.head()
  await a.append([new NewRecord({ value: 100, key: "last" })], { ifMatch: offset })
  const failed = await a.append([0], { ifMatch: offset }).catch((error) => error)
  await b.append([new Uint8Array([0, 255])], { close: true })
  await producer.closeStream()
  await server.stream(a.name).trim(offset)
  const trimmed = await all(a.read({ record: 1 })).catch((error) => error)
  const [whole] = await all(a.read({ offset, wholeRecords: true }))
  return {
    followed: await Promise.all(followed),
    whole,
    failed: [failed instanceof ConditionFailed, failed.offset > offset],
    trimmed: [trimmed instanceof Trimmed, trimmed.retainedOffset === offset],
  }
})"""


class Files(SimpleHTTPRequestHandler):
    """The files of a folder, without a log."""

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def origin() -> Iterator[str]:
    """The modules of the package, and a list of them as the page."""
    folder = built("typescript", CLIENT, node(), build) / "user/node_modules/@polynya/client/dist"
    handler = partial(Files, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages:
        thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{pages.server_port}/"
        pages.shutdown()
        thread.join()


def test_a_page_appends_follows_and_is_told_what_is_refused(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    with Guarded(tmp_path / "data", Faults()).serving() as guarded:
        server, token = guarded.variables["SERVER"], guarded.variables["TOKEN"]
        found = browser.open(origin).run(STORY % (server, token, server))
    expected = list(range(101))
    assert found == {
        "followed": [expected, expected],
        "whole": 100,
        "failed": [True, True],
        "trimmed": [True, True],
    }
